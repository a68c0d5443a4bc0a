"""Augmentation of a whole batch at once, on the device that holds it, without any state.

Every function takes images ``(B, C, H, W)``, uint8 or float, and one key per image. The key comes
from (seed, epoch, index), so an image is changed in the same way for any number of workers and
processes, on CPU and CUDA, and after a resume, and differently in every epoch.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from project.data.hashing import join, mix

# One stream per decision, so that no two decisions about an image depend on one another.
_SHIFT_Y, _SHIFT_X, _FLIP, _ERASE_Y, _ERASE_X = range(5)


def sample_keys(seed: int, epoch: int, index: Tensor) -> Tensor:
    """Return one 32-bit key per sample.

    Args:
        seed: Seed of the run.
        epoch: Epoch, from 0.
        index: Position of each sample in its split, int64 ``(B,)``.

    Returns:
        int64 ``(B,)`` with values in [0, 2**32).
    """
    return join(mix(seed, epoch), index)


def _draw(keys: Tensor, stream: int, bound: int) -> Tensor:
    """Return integers ``(B,)``, uniform in [0, bound)."""
    return (join(mix(stream), keys) * bound) >> 32


def random_shift(images: Tensor, keys: Tensor, pixels: int) -> Tensor:
    """Move every image by up to ``pixels`` along both axes; what comes in is 0.

    The same as padding by ``pixels`` and cropping at random to the old size (He et al. 2015,
    https://arxiv.org/abs/1512.03385, section 4.2).

    Args:
        images: ``(B, C, H, W)``.
        keys: From :func:`sample_keys`, ``(B,)``.
        pixels: Largest shift; each of the ``(2 * pixels + 1) ** 2`` shifts is equally likely.

    Returns:
        ``(B, C, H, W)`` of the same dtype.
    """
    height, width = images.shape[-2:]
    padded = F.pad(images, (pixels,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view (B, C, shifts, shifts, H, W)
    top = _draw(keys, _SHIFT_Y, 2 * pixels + 1)
    left = _draw(keys, _SHIFT_X, 2 * pixels + 1)
    return windows[torch.arange(len(images), device=images.device), :, top, left]


def random_flip(images: Tensor, keys: Tensor) -> Tensor:
    """Mirror every second image, at random, left to right."""
    flipped = _draw(keys, _FLIP, 2).bool()
    return torch.where(flipped[:, None, None, None], images.flip(-1), images)


def random_erase(images: Tensor, keys: Tensor, size: int, fill: Tensor) -> Tensor:
    """Paint a square over every image (cutout, https://arxiv.org/abs/1708.04552).

    Args:
        images: ``(B, C, H, W)``.
        keys: From :func:`sample_keys`, ``(B,)``.
        size: Side of the square in pixels. Its centre is anywhere in the image, so that parts of
            the square may lie outside, as in the paper.
        fill: Colour ``(C, 1, 1)`` of the square; the paper takes the mean of the training set.

    Returns:
        ``(B, C, H, W)`` of the same dtype.
    """
    height, width = images.shape[-2:]
    top = _draw(keys, _ERASE_Y, height)[:, None] - size // 2
    left = _draw(keys, _ERASE_X, width)[:, None] - size // 2
    y = torch.arange(height, device=images.device)
    x = torch.arange(width, device=images.device)
    in_rows = (y >= top) & (y < top + size)  # (B, H)
    in_cols = (x >= left) & (x < left + size)  # (B, W)
    square = in_rows[:, None, :, None] & in_cols[:, None, None, :]  # (B, 1, H, W)
    return torch.where(square, fill.to(images), images)
