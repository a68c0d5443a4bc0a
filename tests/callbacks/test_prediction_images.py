import io

import numpy as np
import pytest
import torch
from PIL import Image

from project.callbacks import PredictionImages
from project.callbacks.prediction_images import _together, draw_predictions, to_pixels


def opened(event):
    return np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))


def is_red(picture):
    return (picture[..., 0].astype(int) - picture[..., 1] > 100).any()


def test_one_picture_a_validation_and_none_of_the_sanity_check(
    make_trainer, make_module, data, read_events
):
    make_trainer(PredictionImages(), num_sanity_val_steps=2).fit(make_module(), data)
    images = read_events().Images("val/predictions")
    assert [event.step for event in images] == [4, 8]
    assert opened(images[0]).std() > 10


def test_every_n_epochs_leaves_out_the_others(make_trainer, make_module, data, read_events):
    make_trainer(PredictionImages(every_n_epochs=2), max_epochs=4).fit(make_module(), data)
    assert [event.step for event in read_events().Images("val/predictions")] == [8, 16]


def test_padding_is_never_shown(make_trainer, make_module, data, read_events, monkeypatch):
    shown = []
    monkeypatch.setattr(
        "project.callbacks.prediction_images.draw_predictions",
        lambda pixels, labels, preds, names: (
            shown.extend(labels) or draw_predictions(pixels, labels, preds, names)
        ),
    )
    make_trainer(PredictionImages(num_images=100), max_epochs=1).fit(make_module(), data)
    assert len(shown) == 19
    assert min(shown) == 0


def test_no_tensorboard_no_picture(make_trainer, make_module, data, tmp_path):
    make_trainer(PredictionImages(), logger=False).fit(make_module(), data)
    assert list(tmp_path.iterdir()) == []


def test_other_tasks_are_left_alone(make_trainer, make_module, data, read_events):
    class Scalar(make_module):
        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)

    make_trainer(PredictionImages(), max_epochs=1).fit(Scalar(), data)
    assert read_events().Tags()["images"] == []


def test_a_wrong_prediction_is_red_and_a_right_one_is_not():
    pixels = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    names = ["cat", "dog"]
    assert is_red(np.asarray(draw_predictions(pixels, [0], [1], names)))
    assert not is_red(np.asarray(draw_predictions(pixels, [1], [1], names)))


def test_small_images_grow_without_blur():
    pixels = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    pixels[0, 0, 0] = (0, 0, 255)
    picture = np.asarray(draw_predictions(pixels, [0], [0], ["cat"]))
    blue = (picture == (0, 0, 255)).all(axis=-1)
    assert blue.sum() == 14 * 14


def test_mean_and_std_undo_the_normalisation():
    original = torch.rand(2, 3, 5, 7)
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    normalised = (original - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    pixels = to_pixels(normalised, mean, std)
    expected = (original * 255).permute(0, 2, 3, 1).numpy()
    # Half a step of rounding to bytes, and float32's own.
    assert np.abs(pixels - expected).max() < 0.51


def test_without_mean_and_std_every_image_uses_its_whole_range():
    pixels = to_pixels(torch.stack([torch.rand(1, 4, 4), 100 * torch.rand(1, 4, 4) - 300]))
    assert pixels.shape == (2, 4, 4, 3)
    assert pixels.min(axis=(1, 2, 3)).tolist() == [0, 0]
    assert pixels.max(axis=(1, 2, 3)).tolist() == [255, 255]


@pytest.mark.parametrize("setting", ["num_images", "every_n_epochs"])
def test_zero_is_refused(setting):
    with pytest.raises(ValueError, match=f"{setting} must be at least 1, got 0"):
        PredictionImages(**{setting: 0})


def test_batches_of_images_padded_to_different_sizes_are_one_picture():
    parts = [torch.ones(2, 1, 4, 7), torch.ones(1, 1, 6, 3)]
    images = _together(parts)
    assert images.shape == (3, 1, 6, 7)
    assert images.sum((1, 2, 3)).tolist() == [28, 28, 18]
