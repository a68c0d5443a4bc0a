"""The digits that come with this project: no network, no files, seconds to train."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from project.data.images import ImageDataModule


class DigitsDataModule(ImageDataModule):
    """1,797 handwritten digits of 8 x 8 pixels, embedded in the package; DIGITS.md says from where.

    360 of them, stratified, are the test set; which ones is stored with the images, so no seed and
    no version changes it.

    Args:
        kwargs: See :class:`ImageDataModule`. At 8 x 8, a ``shift`` of 1 is a lot.
    """

    class_names: ClassVar[list[str]] = [str(digit) for digit in range(10)]
    in_channels: ClassVar[int] = 1
    native_size: ClassVar[int] = 8
    # Of the 1,437 images that are not in the test set, computed from them (a test repeats it).
    mean: ClassVar[tuple[float, ...]] = (0.3055,)
    std: ClassVar[tuple[float, ...]] = (0.3759,)
    may_flip: ClassVar[bool] = False
    fill: ClassVar[tuple[float, ...]] = (0.0,)  # the background is black

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read the images; their 17 levels become 0 to 255, as in every image file."""
        with np.load(Path(__file__).with_name("digits.npz")) as file:
            rows = file["test"] != train
            levels, labels = file["images"][rows], file["labels"][rows]
        images = (levels * (255 / 16)).round().astype(np.uint8)
        return torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64))
