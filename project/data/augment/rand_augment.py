"""RandAugment: two operations, drawn for every image, all of one strength."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F  # type: ignore[import-untyped]

from project.data.augment.basic import Draw, beside, draw

LARGEST = 30
_ROUNDS = 2

# Images uint8 (B, C, H, W), strength with its sign in [-1, 1], colour of what comes in.
Operation = Callable[[Tensor, float, list[float]], Tensor]


def rand_augment(images: Tensor, keys: Tensor, magnitude: int, fill: Tensor) -> Tensor:
    """Do two random operations to every image (Cubuk et al. 2019, https://arxiv.org/abs/1909.13719).

    Operations and strengths are those of torchvision's RandAugment. Images with one operation are
    changed together. Those that are neither grey nor RGB keep their colours. On CUDA torchvision
    waits for the device where images are moved.

    Args:
        images: uint8 ``(B, C, H, W)``.
        keys: From ``sample_keys``, ``(B,)``; waits for the device if they are not on the CPU.
        magnitude: Strength of all operations, from 0 to 30.
        fill: Colour ``(C, 1, 1)`` of what comes in.

    Returns:
        uint8 ``(B, C, H, W)``.
    """
    operations = [*GEOMETRIC, *(COLOR if images.shape[1] in (1, 3) else [])]
    colour = fill.flatten().tolist()
    for turn in range(_ROUNDS):
        chosen = draw(keys, Draw.OPERATION + turn, len(operations))
        sign = draw(keys, Draw.SIGN + turn, 2)
        groups: dict[tuple[int, int], list[int]] = {}
        for row, group in enumerate(zip(chosen.tolist(), sign.tolist(), strict=True)):
            groups.setdefault(group, []).append(row)
        changed = torch.empty_like(images)
        for (number, negative), members in groups.items():
            rows = beside(torch.tensor(members), images)
            strength = (-1 if negative else 1) * magnitude / LARGEST
            changed[rows] = operations[number](images[rows], strength, colour)
        images = changed
    return images


def _affine(
    images: Tensor, fill: list[float], x: int = 0, y: int = 0, shear: tuple[float, float] = (0, 0)
) -> Tensor:
    # Shearing is about the top left corner, as in the paper's code; a shift has no centre.
    angles = [math.degrees(math.atan(slope)) for slope in shear]
    changed: Tensor = F.affine(
        images, angle=0.0, translate=[x, y], scale=1.0, shear=angles, fill=fill, center=[0, 0]
    )
    return changed


def _shear_x(images: Tensor, strength: float, fill: list[float]) -> Tensor:
    return _affine(images, fill, shear=(0.3 * strength, 0))


def _shear_y(images: Tensor, strength: float, fill: list[float]) -> Tensor:
    return _affine(images, fill, shear=(0, 0.3 * strength))


def _shift_x(images: Tensor, strength: float, fill: list[float]) -> Tensor:
    return _affine(images, fill, x=int(150 / 331 * images.shape[-1] * strength))


def _shift_y(images: Tensor, strength: float, fill: list[float]) -> Tensor:
    return _affine(images, fill, y=int(150 / 331 * images.shape[-2] * strength))


def _posterize(images: Tensor, strength: float, fill: list[float]) -> Tensor:
    posterized: Tensor = F.posterize(images, bits=8 - round(4 * abs(strength)))
    return posterized


def _as_is(images: Tensor, strength: float, fill: list[float]) -> Tensor:
    return images


GEOMETRIC: list[Operation] = [
    _as_is,
    _shear_x,
    _shear_y,
    _shift_x,
    _shift_y,
    lambda images, strength, fill: F.rotate(images, angle=30 * strength, fill=fill),
]
COLOR: list[Operation] = [
    lambda images, strength, fill: F.adjust_brightness(images, 1 + 0.9 * strength),
    lambda images, strength, fill: F.adjust_saturation(images, 1 + 0.9 * strength),
    lambda images, strength, fill: F.adjust_contrast(images, 1 + 0.9 * strength),
    lambda images, strength, fill: F.adjust_sharpness(images, 1 + 0.9 * strength),
    _posterize,
    lambda images, strength, fill: F.solarize(images, 255 * (1 - abs(strength))),
    lambda images, strength, fill: F.autocontrast(images),
    lambda images, strength, fill: F.equalize(images),
]
