"""Colour jitter of a whole batch as one matrix per image."""

import math

import torch
from torch import Tensor

from project.data.augment.basic import Draw, beside, uniform

# Of red, green and blue in brightness (ITU-R BT.601), as in Pillow and torchvision.
_LUMA = 0.299, 0.587, 0.114
_STEPS = 2048


def color_jitter(images: Tensor, keys: Tensor, strength: float) -> Tensor:
    """Change brightness, contrast, saturation and hue of every image, in this order.

    The factors of the first three are uniform in [1 - strength, 1 + strength); the hue is turned
    about the grey axis by up to ``strength / 4`` of the circle (the proportion of SimCLR,
    https://arxiv.org/abs/2002.05709). All four are linear in the colours, so they are one matrix
    (https://arxiv.org/abs/2006.06676, appendix B), and only the result is limited to 0 to 255.
    Images that are not RGB have neither saturation nor hue. The same to the bit on every device.

    Args:
        images: uint8 ``(B, C, H, W)``.
        keys: From ``sample_keys``, ``(B,)``.
        strength: In [0, 1].

    Returns:
        uint8 ``(B, C, H, W)``.
    """
    keys = keys.cpu()  # whose cosine is the same everywhere
    around = 1 - strength, 1 + strength
    brightness, contrast = (uniform(keys, s, *around) for s in (Draw.BRIGHTNESS, Draw.CONTRAST))
    scale = beside(brightness * contrast, images)
    offset = beside(brightness * (1 - contrast), images) * _mean_brightness(images)
    offset = _exact(offset)[:, None, None]
    if images.shape[1] != 3:
        return _bytes(images.float() * _exact(scale)[:, None, None, None] + offset[:, None])
    saturation = uniform(keys, Draw.SATURATION, *around)
    hue = uniform(keys, Draw.HUE, -strength / 4, strength / 4) * (2 * math.pi)
    matrix = beside(_hue_matrix(hue) @ _saturation_matrix(saturation), images)
    matrix = _exact(matrix * scale[:, None, None])
    planes = images.float().unbind(1)
    changed = torch.empty_like(images)
    for channel in range(3):
        row = matrix[:, channel, :, None, None]  # (B, 3, 1, 1)
        total = planes[0] * row[:, 0] + offset
        total.addcmul_(planes[1], row[:, 1]).addcmul_(planes[2], row[:, 2])
        changed[:, channel] = _bytes(total)
    return changed


def _mean_brightness(images: Tensor) -> Tensor:
    """Mean over the pixels of each image ``(B,)``; whole numbers up to it, so exact."""
    sums = images.float().sum(3).long().sum(2).float() / (images.shape[2] * images.shape[3])
    if images.shape[1] != 3:
        return sums.mean(1)
    red, green, blue = sums.unbind(1)
    return _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue


def _saturation_matrix(factor: Tensor) -> Tensor:
    """Away from each pixel's grey by ``factor`` ``(B,)``; ``(B, 3, 3)``."""
    grey = torch.tensor(_LUMA).expand(3, 3)
    return torch.eye(3) * factor[:, None, None] + grey * (1 - factor)[:, None, None]


def _hue_matrix(angle: Tensor) -> Tensor:
    """Turn by ``angle`` ``(B,)``, in radians, about the axis of the greys; ``(B, 3, 3)``.

    A third of the circle makes red green, green blue and blue red.
    """
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    cross = torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]) / math.sqrt(3)
    return cos * torch.eye(3) + sin * cross + (1 - cos) / 3


def _exact(values: Tensor) -> Tensor:
    """Round to 11 bits after the point: times a byte, float32 then has nothing left to round."""
    return (values.float() * _STEPS).round_() / _STEPS


def _bytes(values: Tensor) -> Tensor:
    return values.round_().clamp_(0, 255).to(torch.uint8)
