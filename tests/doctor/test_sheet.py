"""The picture of a training batch."""

import numpy as np
import torch
from PIL import Image

from project.doctor.sheet import sheet


def test_labels_keep_their_height_where_tensorboard_leaves_out_pixels() -> None:
    images = torch.zeros(36, 1, 4, 4)
    images[:, :, 0, 0] = -1.0  # of images that are white else
    whole = sheet(images, torch.full((36,), 8), None)
    size = 330, whole.height * 330 // whole.width
    shown = np.asarray(whole.resize(size, Image.Resampling.NEAREST).convert("L"))
    # Between the black corners of two rows of images.
    inked = (shown[:, 20:40] < 128).any(axis=1)
    assert inked[inked.argmax() :].argmin() >= 8
