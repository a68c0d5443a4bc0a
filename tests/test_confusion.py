import numpy as np
import pytest
import torch
from PIL import Image

from project.confusion import draw_confusion_matrix, per_class_table

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


def test_the_table_has_a_row_for_every_class():
    assert row(per_class_table(FIGURES, NAMES), "cat") == ["0.8889", "0.8000", "0.8421", "10 |"]


def test_what_is_not_defined_is_not_a_number_and_classes_without_samples_are_named():
    table = per_class_table(FIGURES, NAMES)
    assert row(table, "dog") == ["n/a", "0.0000", "0.0000", "3 |"]
    assert row(table, "a\\|b") == ["n/a", "n/a", "n/a", "0 |"]
    assert table.endswith("n/a: no samples of a\\|b.")


def test_a_name_is_no_html_and_ends_no_row():
    table = per_class_table(FIGURES, ["<b>", "two\nlines", "cat"])
    assert "| &lt;b> |" in table
    assert "| two lines |" in table


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


def test_letters_keep_their_height_where_tensorboard_leaves_out_pixels():
    picture = draw_confusion_matrix(np.zeros((10, 10), dtype=np.int64), list("0123456789"))
    size = 330, picture.height * 330 // picture.width
    shown = np.asarray(picture.resize(size, Image.Resampling.NEAREST).convert("L"))
    inked = (shown < 128).any(axis=1)[::-1]
    below = inked[inked.argmax() :]  # of the line below the matrix, from "g" up to "h"
    assert below.argmin() >= 11
