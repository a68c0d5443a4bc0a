"""Images that stay in their files until they are needed: what is read, and how it is cut."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from project.data.augment.basic import sample_keys
from project.data.augment.crop import random_resized_box
from project.data.hashing import run_seed
from project.data.loading import Split
from project.data.padding import pad
from project.data.reading.image_file import MAX_PIXELS, BadImage, read_bytes
from project.data.reading.reader import read_crop, read_middle, stacked
from project.mistakes import UserError


class Names(Protocol):
    """Paths of files, as strings, in little memory."""

    def __getitem__(self, row: int) -> str:
        """Return the path of a row."""


class UnreadableFile(UserError):
    """A file that was whole when it was checked, and is not when it is needed.

    Args:
        message: As for ``UserError``, or the traceback of a worker that ends with it: torch builds
            the exception of a worker anew, with that as its only argument.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.rsplit(f"{type(self).__name__}: ", 1)[-1].strip())


class FileDataset(Split):
    """A split whose images are decoded when a batch is made.

    It holds no Python object for a file, so that forked workers share its memory.

    Args:
        root: What the paths are relative to.
        paths: Of all files.
        labels: Of all files, ``(N,)``.
        rows: Files of this split, int64 ``(M,)``.
        size: Height and width that the images get, or None to leave them as they are; batches are
            then padded and have a mask.
        in_channels: 1 for grey, 3 for colour.
        crop_fraction: Part of the shorter side that is kept, in (0, 1].
        crop_area: Least and largest share of the area of a random crop, or None for the centre.
        max_pixels: A file with more cannot be used.
        change: Augments a single image ``(1, C, H, W)``, given its index ``(1,)`` and the epoch,
            before it is padded.
    """

    def __init__(
        self,
        root: Path,
        paths: Names,
        labels: Tensor,
        rows: Tensor,
        size: int | None,
        in_channels: int,
        crop_fraction: float = 1.0,
        crop_area: tuple[float, float] | None = None,
        max_pixels: int = MAX_PIXELS,
        change: Callable[[Tensor, Tensor, int], Tensor] | None = None,
    ) -> None:
        self.root, self.paths, self.labels, self.rows = root, paths, labels, rows
        self.size, self.in_channels, self.crop_fraction = size, in_channels, crop_fraction
        self.crop_area, self.max_pixels, self.change = crop_area, max_pixels, change
        self.wants_epoch = crop_area is not None or change is not None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        """Return one sample, without the dimension of the batch, as it is in epoch 0."""
        batch = self.__getitems__([(0, index)] if self.wants_epoch else [index])
        return tuple(part[0] for part in batch)

    def __getitems__(self, indices: list[Any]) -> Any:  # noqa: ANN401
        """Return the batch of ``indices``; -1, a sample that is not there, gets label -100.

        Raises:
            UnreadableFile: If a file is not what it was when it was checked.
        """
        pairs = indices if self.wants_epoch else [(0, index) for index in indices]
        index = torch.tensor([at for _, at in pairs])
        images = (self._image(max(at, 0), epoch) for epoch, at in pairs)
        rows = self.rows[index.clamp(min=0)]
        labels = self.labels[rows].long().where(index >= 0, -100)
        if self.size is None:
            padded, mask = pad(list(images))
            return padded, labels, index, mask
        return stacked(images, len(pairs)), labels, index

    def file(self, index: int) -> Path:
        """Return where the file of a sample is."""
        return self.root / self.paths[int(self.rows[index])]

    def _image(self, index: int, epoch: int) -> Tensor:
        """Return a sample's image, uint8 ``(C, H, W)``."""
        area, size = self.crop_area, self.size
        if area is not None and size is not None:
            key = sample_keys(run_seed(), epoch, index)
            box = partial(random_resized_box, key, scale=area)
            return self._decoded(index, read_crop, size, box)
        pixels = self._decoded(index, read_middle, size, self.crop_fraction)
        if self.change is not None:
            pixels = self.change(pixels[None], torch.tensor([index]), epoch)[0]
        return pixels

    def _decoded(self, index: int, read: Callable[..., Tensor], *how: object) -> Tensor:
        try:
            return read(self._bytes(index), self.in_channels, self.max_pixels, *how)
        except BadImage as error:
            raise self._unreadable(index, error) from None

    def _unreadable(self, index: int, error: BadImage) -> UnreadableFile:
        return UnreadableFile(
            f"{self.file(index)}: {error}.\nIt was whole when it was checked. Restore it or delete "
            "it; a run goes on with lightning fit --resume last"
        )

    def _bytes(self, index: int) -> bytes:
        return read_bytes(os.path.join(self.root, self.paths[int(self.rows[index])]))


def centre(images: Tensor, size: int, crop_fraction: float) -> Tensor:
    """Cut a batch of images to squares, as ``middle`` does with one.

    Args:
        images: uint8 ``(B, C, H, W)``.
        size: In pixels.
        crop_fraction: Part of the shorter side that is kept.

    Returns:
        uint8 ``(B, C, size, size)``.
    """
    sides = images.shape[-2:]
    if sides == (size, size):
        return images
    scale = round(size / crop_fraction) / min(sides)
    tall, wide = (int(side * scale) for side in sides)
    top, left = round((tall - size) / 2), round((wide - size) / 2)
    whole = F.interpolate(images.float(), (tall, wide), mode="bilinear", antialias=True)
    cut = whole[..., top : top + size, left : left + size]
    return cut.round_().clamp_(0, 255).to(torch.uint8)
