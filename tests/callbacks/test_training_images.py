import io

import numpy as np
import pytest
import torch
from PIL import Image

from project.callbacks import TrainingImages
from project.callbacks.sheet import draw_sheet, to_pixels
from project.callbacks.training_images import caption

NAMES = ["cat", "dog", "frog"]


def opened(event):
    return np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))


@pytest.fixture
def drawn(monkeypatch):
    """What was drawn: pixels and captions."""
    calls = []
    monkeypatch.setattr(
        "project.callbacks.training_images.draw_sheet",
        lambda pixels, captions: calls.append((pixels, captions)) or draw_sheet(pixels, captions),
    )
    return calls


def test_one_picture_at_the_start_of_a_run(make_trainer, make_module, data, read_events):
    make_trainer(TrainingImages(), num_sanity_val_steps=2).fit(make_module(), data)
    [event] = read_events().Images("train/images")
    assert event.step == 0
    assert opened(event).std() > 10


def test_resumed_run_gets_no_second_picture(
    tmp_path, make_trainer, make_module, data, read_events, drawn
):
    first = make_trainer(TrainingImages(), max_epochs=1)
    first.fit(make_module(), data)
    first.save_checkpoint(tmp_path / "one.ckpt")
    assert len(drawn) == 1
    again = make_trainer(TrainingImages(), max_epochs=2)
    again.fit(make_module(), data, ckpt_path=tmp_path / "one.ckpt", weights_only=True)
    assert again.global_step == 8
    assert len(drawn) == 1


def test_accumulated_batches_are_not_drawn_again(make_trainer, make_module, data, drawn):
    make_trainer(TrainingImages(), accumulate_grad_batches=4).fit(make_module(), data)
    assert len(drawn) == 1


def test_it_shows_what_the_network_sees_after_the_transfer(make_trainer, make_module, data, drawn):
    class Changed(type(data)):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            images, labels, index = batch
            return images.flip(-1) if self.trainer.training else images, labels, index

    changed = Changed()
    changed.mean, changed.std = [0.5], [0.25]
    make_trainer(TrainingImages(num_images=5), max_epochs=1).fit(make_module(), changed)
    [(pixels, captions)] = drawn
    images, labels, _ = next(iter(data.train_dataloader()))
    assert np.array_equal(pixels, to_pixels(images[:5].flip(-1), [0.5], [0.25]))
    assert captions == [[data.class_names[label]] for label in labels[:5]]


def test_mixed_labels_are_shown_with_their_shares(make_trainer, make_module, data, drawn):
    class Mixed(type(data)):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            images, labels, index = batch
            if not self.trainer.training:
                return batch
            soft = torch.nn.functional.one_hot(labels, 3).float()
            return images, 0.7 * soft + 0.3 * soft.roll(1, 0), index

    make_trainer(TrainingImages(num_images=2), max_epochs=1).fit(make_module(), Mixed())
    [(_, captions)] = drawn
    # The labels are 0, 1, 2, 0, 1, 2, 0, 1; the one before the first is 1.
    assert captions == [["zero 0.70", "one 0.30"], ["one 0.70", "zero 0.30"]]


@pytest.mark.parametrize(
    ("label", "lines"),
    [
        (torch.tensor(1), ["dog"]),
        (torch.tensor(-100), ["no label"]),
        (torch.tensor(7), ["7"]),
        (torch.tensor([0.0, 1.0, 0.0]), ["dog"]),
        (torch.tensor([0.75, 0.0, 0.25]), ["cat 0.75", "frog 0.25"]),
        (torch.tensor([0.0, 0.0, 0.0]), ["no label"]),
        (torch.tensor([1.0]), ["cat"]),
    ],
)
def test_caption_names_the_label(label, lines):
    assert caption(label, NAMES) == lines


@pytest.mark.parametrize(
    "make_batch",
    [
        lambda images, labels, index: {"images": images},
        lambda images, labels, index: images,
        lambda images, labels, index: (images.flatten(1), labels),
        lambda images, labels, index: (images, labels.float()),
        lambda images, labels, index: (images, "labels"),
    ],
)
def test_other_batches_are_left_alone(make_trainer, make_module, data, drawn, make_batch):
    class Other(make_module):
        def training_step(self, batch, batch_idx):
            return self.net[-1].weight.sum()

    class Batches(type(data)):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return make_batch(*batch) if self.trainer.training else batch

    make_trainer(TrainingImages(), max_epochs=1).fit(Other(), Batches())
    assert drawn == []


def test_no_tensorboard_no_picture(make_trainer, make_module, data, drawn):
    make_trainer(TrainingImages(), logger=False).fit(make_module(), data)
    assert drawn == []


def test_zero_images_are_refused():
    with pytest.raises(ValueError, match="num_images must be at least 1, got 0"):
        TrainingImages(num_images=0)


def test_captions_keep_their_height_where_tensorboard_leaves_out_pixels():
    white = np.full((16, 8, 8, 3), 255, dtype=np.uint8)
    sheet = draw_sheet(white, [["8"]] * 16)
    size = 330, sheet.height * 330 // sheet.width
    inked = (np.asarray(sheet.resize(size, Image.Resampling.NEAREST).convert("L")) < 128).any(1)
    assert inked[inked.argmax() :].argmin() >= 8
