"""Random resized crop: a part of the image, of random size and shape, at the size of the whole."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from project.data.augment.basic import Draw, beside, draw, uniform

_RATIOS = math.log(3 / 4), math.log(4 / 3)
_ATTEMPTS = 10
_STEPS = 256  # of a pixel


class Box(NamedTuple):
    """A part of an image, in whole pixels."""

    top: int
    left: int
    height: int
    width: int


def random_resized_box(key: int, height: int, width: int, scale: tuple[float, float]) -> Box:
    """Return the part of one image to crop (Szegedy et al. 2014, https://arxiv.org/abs/1409.4842).

    As torchvision's RandomResizedCrop: the share of the area is uniform, the logarithm of width
    over height is uniform between 3:4 and 4:3; where ten such boxes do not fit, the largest one in
    the middle.

    Args:
        key: Of this image, from ``sample_keys``.
        height: Of the image in pixels.
        width: Likewise.
        scale: Smallest and largest share of the area, in (0, 1].
    """
    for attempt in range(_ATTEMPTS):
        area = height * width * uniform(key, Draw.CROP_AREA + attempt, *scale)
        ratio = math.exp(uniform(key, Draw.CROP_RATIO + attempt, *_RATIOS))
        size = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < size[0] <= height and 0 < size[1] <= width:
            top = draw(key, Draw.CROP_Y, height - size[0] + 1)
            return Box(top, draw(key, Draw.CROP_X, width - size[1] + 1), *size)
    least, most = (math.exp(limit) for limit in _RATIOS)
    size = min(height, round(width / least)), min(width, round(height * most))
    return Box((height - size[0]) // 2, (width - size[1]) // 2, *size)


def random_resized_crop(images: Tensor, keys: Tensor, scale: tuple[float, float]) -> Tensor:
    """Crop a random box out of every image and bring it to the size of the image, bilinear.

    The same to the bit on every device.

    Args:
        images: uint8 ``(B, C, H, W)``.
        keys: From ``sample_keys``, ``(B,)``; waits for the device if they are not on the CPU.
        scale: Smallest and largest share of the area, in (0, 1].

    Returns:
        uint8 ``(B, C, H, W)``.
    """
    height, width = images.shape[-2:]
    boxes = [random_resized_box(key, height, width, scale) for key in keys.tolist()]
    top, left, rows, columns = torch.tensor(boxes).view(-1, 4).unbind(1)
    halfway = _stretch(images, 2, top, rows)
    return _stretch(halfway, 3, left, columns).round_().to(images.dtype)


def _stretch(images: Tensor, axis: int, start: Tensor, length: Tensor) -> Tensor:
    """Stretch a window of every image ``(B, C, H, W)`` along one axis to the whole axis.

    Args:
        images: uint8, or what this function has returned.
        axis: 2 for rows, 3 for columns.
        start: Where each window begins, int64 ``(B,)``.
        length: Of each window, ``(B,)``.

    Returns:
        float32 of the same shape.
    """
    size = images.shape[axis]
    # In steps of a 256th, which float32 adds and multiplies without rounding, in any order: 8 bits
    # of the image and 8 of each axis. (i + 0.5) * length / size - 0.5, rounded down.
    steps = ((2 * torch.arange(size) + 1) * length[:, None] * _STEPS) // (2 * size) - _STEPS // 2
    steps = steps.clamp(min=0)  # (B, size); the largest is within half a pixel of the last one
    first, part = steps // _STEPS, (steps % _STEPS).float() / _STEPS
    second = (first + 1).minimum(length[:, None] - 1)
    shape = [len(images), 1, 1, 1]
    shape[axis] = size

    def taken(where: Tensor) -> Tensor:
        index = beside((start[:, None] + where).view(shape), images)
        return images.gather(axis, index.expand(images.shape)).float()

    return taken(first).lerp_(taken(second), beside(part.view(shape), images))
