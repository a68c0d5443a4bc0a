"""MixUp and CutMix: every image becomes part of another one, and so does its label.

What is drawn for a batch depends on (seed, epoch) and the samples in it, so a resume and another
number of workers draw the same, and it is drawn on the CPU, so the device is never waited for.
"""

import math
import random

import torch
from torch import Tensor
from torch.nn import functional as F

from project.mistakes import UserError


def probabilities(labels: Tensor, num_classes: int) -> Tensor:
    """Return labels as probabilities ``(B, num_classes)``, float32; zeros where there is none.

    Args:
        labels: int64 ``(B,)``; negative where there is none.
        num_classes: Number of classes.

    Raises:
        UserError: If a label is too large; CUDA asserts in the kernel.
    """
    try:
        return F.one_hot(labels.clamp(min=0), num_classes).float() * (labels >= 0)[:, None]
    except RuntimeError as error:
        raise UserError(
            f"A label is {int(labels.max())}, but there are {num_classes} classes, labels end at "
            f"{num_classes - 1}. Correct num_classes or the labels."
        ) from error


def mix_batch(
    images: Tensor,
    labels: Tensor,
    num_classes: int,
    key: int,
    mixup: float = 0.0,
    cutmix: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Mix every image of a batch with another one of it: by MixUp or by CutMix, at random.

    A sample without a label (negative) is left alone and mixed into no other.

    Args:
        images: float ``(B, C, H, W)``, normalised; not changed.
        labels: int64 ``(B,)``.
        num_classes: Number of classes.
        key: Decides all that is random.
        mixup: ``alpha`` of :func:`mix_up`; 0 to do without.
        cutmix: ``alpha`` of :func:`cut_mix`; 0 to do without.

    Returns:
        Images of the same shape, and probabilities float32 ``(B, num_classes)``.
    """
    targets = probabilities(labels, num_classes)
    chance = random.Random(key)
    methods = [(mix_up, mixup), (cut_mix, cutmix)]
    method, alpha = chance.choice([(m, a) for m, a in methods if a > 0])
    if len(images) < 2:
        return images, targets
    partner = chance.randrange(1, len(images))  # places ahead, so that none is its own partner
    known = labels >= 0
    both = known & known.roll(partner)
    images, kept = method(images, images.roll(partner, 0), both, alpha, chance)
    share = torch.where(both, kept, 1.0)[:, None]  # (B, 1)
    return images, targets * share + targets.roll(partner, 0) * (1 - share)


def mix_up(
    images: Tensor, others: Tensor, chosen: Tensor, alpha: float, chance: random.Random
) -> tuple[Tensor, float]:
    """Blend images with others (Zhang et al. 2017, https://arxiv.org/abs/1710.09412).

    Args:
        images: ``(B, C, H, W)``.
        others: Likewise.
        chosen: Which ones to blend, bool ``(B,)``.
        alpha: The weight of the image itself is drawn from Beta(alpha, alpha).
        chance: What draws it.

    Returns:
        The images and the weight.
    """
    kept = chance.betavariate(alpha, alpha)
    weight = (chosen * (1 - kept)).to(images.dtype)[:, None, None, None]
    return images.lerp(others, weight), kept


def cut_mix(
    images: Tensor, others: Tensor, chosen: Tensor, alpha: float, chance: random.Random
) -> tuple[Tensor, float]:
    """Paste a box of others into images (Yun et al. 2019, https://arxiv.org/abs/1905.04899).

    Args:
        images: ``(B, C, H, W)``.
        others: Likewise.
        chosen: Which ones to paste into, bool ``(B,)``.
        alpha: The share of the area that stays is drawn from Beta(alpha, alpha); the box is shaped
            like the image, its centre anywhere, and what lies outside stays too.
        chance: What draws them.

    Returns:
        The images and the share of the area that stays.
    """
    height, width = images.shape[-2:]
    side = math.sqrt(1 - chance.betavariate(alpha, alpha))
    top, bottom = _span(height, side, chance)
    left, right = _span(width, side, chance)
    box = (..., slice(top, bottom), slice(left, right))
    mixed = images.clone()
    mixed[box] = torch.where(chosen[:, None, None, None], others[box], images[box])
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)


def _span(length: int, share: float, chance: random.Random) -> tuple[int, int]:
    size, middle = int(length * share), chance.randrange(length)
    start = middle - size // 2
    return max(start, 0), min(start + size, length)
