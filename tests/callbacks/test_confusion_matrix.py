import numpy as np
import pytest
import torch

from project.callbacks import ConfusionMatrixPicture
from project.callbacks.confusion_matrix import draw_confusion_matrix, per_class_table

NAN = float("nan")
NAMES = ["cat", "dog", "a|b"]
# Precision, recall, F1 and support: of dogs none is predicted, of the third class there are none.
FIGURES = (
    *(
        torch.tensor([8 / 9, NAN, NAN]),
        torch.tensor([0.8, 0.0, NAN]),
        torch.tensor([16 / 19, 0, NAN]),
    ),
    torch.tensor([10, 3, 0]),
)


def row(table, name):
    line = next(line for line in table.splitlines() if line.startswith(f"| {name}"))
    return [cell.strip() for cell in line.split("| ")[2:]]


def text(events, tag):
    (event, *_) = events.Tensors(f"{tag}/text_summary")
    return event.tensor_proto.string_val[0].decode()


def test_a_picture_and_a_table_of_every_validation_and_test(
    make_trainer, make_module, data, read_events
):
    trainer, module = make_trainer(ConfusionMatrixPicture(), num_sanity_val_steps=2), make_module()
    trainer.fit(module, data)
    trainer.test(module, data, verbose=False)
    events = read_events()
    assert [event.step for event in events.Images("val/confusion_matrix")] == [4, 8]
    assert len(events.Images("test/confusion_matrix")) == 1
    assert "| zero |" in text(events, "val/per_class")
    # The tenth test sample is a zero, so zeros are four of ten.
    assert row(text(events, "test/per_class"), "zero")[-1] == "4 |"


def test_nothing_happens_without_a_matrix(make_trainer, make_module, data, read_events):
    class Bare(make_module):
        def on_validation_end(self):
            del self.confusion_matrix

    module = Bare()
    # Callbacks come before the module, so that only a validation of its own can leave none.
    module.validation_step = lambda batch, batch_idx: None
    module.on_validation_epoch_start = lambda: None
    module.on_validation_end = lambda: None
    make_trainer(ConfusionMatrixPicture()).fit(module, data)
    assert read_events().Tags()["images"] == []


def test_a_module_without_figures_of_classes_has_a_picture_alone(
    make_trainer, make_module, data, read_events
):
    class Bare(make_module):
        per_class = None

    make_trainer(ConfusionMatrixPicture()).fit(Bare(), data)
    tags = read_events().Tags()
    assert "val/confusion_matrix" in tags["images"]
    assert not any("per_class" in tag for tag in tags["tensors"])


def test_the_table_has_a_row_for_every_class():
    assert row(per_class_table(FIGURES, NAMES), "cat") == ["0.889", "0.800", "0.842", "10 |"]


def test_what_is_not_defined_is_not_a_number_and_classes_without_samples_are_named():
    table = per_class_table(FIGURES, NAMES)
    assert row(table, "dog") == ["n/a", "0.000", "0.000", "3 |"]
    assert row(table, "a\\|b") == ["n/a", "n/a", "n/a", "0 |"]
    assert table.endswith("n/a: no samples of a\\|b.")


def test_right_cells_are_blue_and_wrong_ones_red():
    picture = np.asarray(draw_confusion_matrix(np.array([[0, 9], [0, 9]]), ["a", "b"])).astype(int)
    wide = picture[..., 2] - picture[..., 0]
    assert (wide > 100).sum() > 1000
    assert (wide < -100).sum() > 1000


def test_rows_are_true_classes_and_columns_predicted_ones():
    picture = np.asarray(draw_confusion_matrix(np.array([[9, 9], [0, 9]]), ["a", "b"])).astype(int)
    rows, columns = np.nonzero(picture[..., 0] - picture[..., 2] > 50)
    blue_rows, blue_columns = np.nonzero(picture[..., 2] - picture[..., 0] > 50)
    # The mistakes are in the upper right cell.
    assert rows.mean() < blue_rows.mean()
    assert columns.mean() > blue_columns.mean()


@pytest.mark.parametrize("classes", [1, 2, 20, 21, 100, 1000])
def test_any_number_of_classes_fits_a_picture(classes):
    counts = np.eye(classes, dtype=np.int64) * 123456
    picture = draw_confusion_matrix(
        counts, [f"a very long class name {i}" * 3 for i in range(classes)]
    )
    assert max(picture.size) < 1500
