"""Augmentation of a whole batch at once, on the device that holds it, without any state.

Every function takes images ``(B, C, H, W)``, uint8 or float, leaves them as they are and returns
new ones, and takes one key per image. The key comes from (seed, epoch, index), so an image is
changed in the same way for any number of workers and processes, on CPU and CUDA, and after a
resume, and differently in every epoch. Keys may be on the CPU while the images are elsewhere: then
no device is waited for.
"""

import math
from enum import IntEnum
from functools import cache
from typing import overload

import torch
from torch import Tensor
from torch.nn import functional as F

from project.data.hashing import Word, join, mix

# From so many numbers on, a CPU mirrors images faster one by one than all together.
_LARGE = 2**15


class Draw(IntEnum):
    """One stream per decision, so that no two decisions about an image depend on one another."""

    SHIFT_Y = 0
    SHIFT_X = 1
    FLIP = 2
    ERASE_Y = 3
    ERASE_X = 4
    VERTICAL_FLIP = 5
    ANGLE = 6
    CROP_Y = 7
    CROP_X = 8
    BRIGHTNESS = 9
    CONTRAST = 10
    SATURATION = 11
    HUE = 12
    MIX = 13
    # From here on as many as there are attempts or rounds.
    OPERATION = 100
    SIGN = 200
    CROP_AREA = 300
    CROP_RATIO = 400


@cache
def _stream(number: int) -> int:
    return mix(number)


def sample_keys(seed: int, epoch: int, index: Word) -> Word:
    """Return one 32-bit key per sample.

    Args:
        seed: Seed of the run.
        epoch: Epoch, from 0.
        index: Position of each sample in its split, int64 ``(B,)``, or of one sample.

    Returns:
        int64 ``(B,)`` with values in [0, 2**32), or one such number.
    """
    return join(mix(seed, epoch), index)


def draw(keys: Word, stream: int, bound: int) -> Word:
    """Return integers ``(B,)``, or one, uniform in [0, bound)."""
    return (join(_stream(stream), keys) * bound) >> 32


@overload
def uniform(keys: int, stream: int, low: float, high: float) -> float: ...
@overload
def uniform(keys: Tensor, stream: int, low: float, high: float) -> Tensor: ...
def uniform(keys: int | Tensor, stream: int, low: float, high: float) -> float | Tensor:
    """Return numbers ``(B,)``, or one, uniform in [low, high), of 24 bits: all that float32 has."""
    whole: int | Tensor = draw(keys, stream, 1 << 24)  # type: ignore[type-var]
    return low + (high - low) * (whole / (1 << 24))


def beside(values: Tensor, images: Tensor) -> Tensor:
    """Return small ``values`` on the device of ``images``, without waiting for CUDA."""
    return values.to(images.device, non_blocking=images.is_cuda)


def random_shift(images: Tensor, keys: Tensor, pixels: int, fill: Tensor | None = None) -> Tensor:
    """Move every image by up to ``pixels`` along both axes.

    The same as padding by ``pixels`` and cropping at random to the old size (He et al. 2015,
    https://arxiv.org/abs/1512.03385, section 4.2).

    Args:
        images: ``(B, C, H, W)``.
        keys: From :func:`sample_keys`, ``(B,)``.
        pixels: Largest shift; each of the ``(2 * pixels + 1) ** 2`` shifts is equally likely.
        fill: Colour ``(C, 1, 1)`` of what comes in; by default 0.

    Returns:
        ``(B, C, H, W)`` of the same dtype.
    """
    batch, channels, height, width = images.shape
    padded = images.new_zeros(batch, channels, height + 2 * pixels, width + 2 * pixels)
    if fill is not None:
        padded += beside(fill, images).to(images.dtype)
    padded[..., pixels : pixels + height, pixels : pixels + width] = images
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view (B, C, shifts, shifts, H, W)
    top = beside(draw(keys, Draw.SHIFT_Y, 2 * pixels + 1), images)
    left = beside(draw(keys, Draw.SHIFT_X, 2 * pixels + 1), images)
    return windows[torch.arange(batch, device=images.device), :, top, left]


def random_flip(images: Tensor, keys: Tensor, vertical: bool = False) -> Tensor:
    """Mirror every second image, at random, left to right, or upside down if ``vertical``."""
    stream, axis = (Draw.VERTICAL_FLIP, -2) if vertical else (Draw.FLIP, -1)
    chosen = draw(keys, stream, 2)
    if images.device.type == "cpu" and images[:1].numel() >= _LARGE:
        each = zip(images, chosen.tolist(), strict=True)
        return torch.stack([image.flip(axis) if one else image for image, one in each])
    # Copies of images as a whole: two thirds of the time of writing some into a copy of all.
    mirrored = images.index_select(0, beside(chosen.nonzero()[:, 0], images)).flip(axis)
    places = torch.arange(len(images), device=keys.device)
    places = places.where(chosen == 0, len(images) - 1 + chosen.cumsum(0))
    return torch.cat([images, mirrored]).index_select(0, beside(places, images))


def random_rotation(images: Tensor, keys: Tensor, degrees: float, fill: Tensor) -> Tensor:
    """Turn every image about its centre, by an angle uniform in [-degrees, degrees).

    Interpolates bilinearly; the devices agree to one grey level.

    Args:
        images: ``(B, C, H, W)``.
        keys: From :func:`sample_keys`, ``(B,)``.
        degrees: Largest angle, counter-clockwise or clockwise.
        fill: Colour ``(C, 1, 1)`` of the corners that come in.

    Returns:
        ``(B, C, H, W)`` of the same dtype.
    """
    height, width = images.shape[-2:]
    # On the CPU, whose cosine is the same everywhere.
    angle = uniform(keys.cpu(), Draw.ANGLE, -degrees, degrees).mul(math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    # Of the place in the old image for one in the new; coordinates run from -1 to 1 on both axes.
    rows = [cos, -sin * height / width, sin * width / height, cos]
    turn = torch.stack(rows, 1).view(-1, 2, 2)
    theta = beside(torch.cat([turn, turn.new_zeros(len(keys), 2, 1)], 2), images)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    fill = beside(fill, images).float()
    # What lies outside counts as 0, so 0 has to be the fill.
    turned = F.grid_sample(images.float().sub_(fill), grid, align_corners=False).add_(fill)
    return (turned if images.is_floating_point() else turned.round_().clamp_(0, 255)).to(images)


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
    top = beside(draw(keys, Draw.ERASE_Y, height), images)[:, None] - size // 2
    left = beside(draw(keys, Draw.ERASE_X, width), images)[:, None] - size // 2
    y = torch.arange(height, device=images.device)
    x = torch.arange(width, device=images.device)
    in_rows = (y >= top) & (y < top + size)  # (B, H)
    in_cols = (x >= left) & (x < left + size)  # (B, W)
    square = in_rows[:, None, :, None] & in_cols[:, None, None, :]  # (B, 1, H, W)
    return torch.where(square, beside(fill, images).to(images.dtype), images)
