"""A sheet of images with lines of text below each, and how images become pixels for it."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from project.drawing import BLACK, WHITE, Color, fit_text, font

Channels = Sequence[float] | Tensor

# TensorBoard leaves out pixels to show a sheet on a card of some 330 px: letters grow with the
# sheet, in this share of its width, so that no stroke is lost.
_TEXT = 1 / 25
_TILE = 112  # px
_SMALLEST = 13  # px, of text
_LARGEST = 224
_GAP = 8


def to_pixels(
    images: Tensor, mean: Channels | None = None, std: Channels | None = None
) -> npt.NDArray[np.uint8]:
    """Bytes ``(B, H, W, 3)`` for the eye, from normalised images ``(B, C, H, W)``.

    Args:
        images: float32, on the CPU.
        mean: Per channel, what was subtracted; None to stretch each image to its own range.
        std: Per channel, what was divided by.
    """
    if mean is not None and std is not None:
        scale, shift = (torch.as_tensor(value).float().reshape(-1, 1, 1) for value in (std, mean))
        images = images * scale + shift
    else:
        low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
        images = (images - low) / (high - low).clamp_min(1e-8)
    images = images.nan_to_num(0.0)
    # Grey to RGB; of any other number of channels the first one stands for the image.
    images = images if images.shape[1] == 3 else images[:, :1].expand(-1, 3, -1, -1)
    pixels = (images * 255).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return np.asarray(pixels.contiguous().numpy())


def draw_sheet(
    pixels: npt.NDArray[np.uint8],
    captions: Sequence[Sequence[str]],
    colors: Sequence[Color] | None = None,
) -> Image.Image:
    """A grid of images with their captions.

    Args:
        pixels: ``(B, H, W, 3)``.
        captions: Lines below each image.
        colors: Of each caption; by default black.
    """
    width, height = _shown_size(pixels.shape[2], pixels.shape[1])
    lines = max(len(caption) for caption in captions)
    columns = math.ceil(math.sqrt(len(pixels)))
    tile_width = max(width, _TILE)
    text = max(_SMALLEST, round(columns * (tile_width + _GAP) * _TEXT))
    tile_height = height + lines * (text + 3) + 1
    rows = -(-len(pixels) // columns)
    size = (columns * (tile_width + _GAP) + _GAP, rows * (tile_height + _GAP) + _GAP)
    sheet = Image.new("RGB", size, WHITE)
    draw = ImageDraw.Draw(sheet)
    for index, caption in enumerate(captions):
        left = _GAP + index % columns * (tile_width + _GAP)
        top = _GAP + index // columns * (tile_height + _GAP)
        image = Image.fromarray(pixels[index]).resize((width, height), Image.Resampling.NEAREST)
        sheet.paste(image, (left + (tile_width - width) // 2, top))
        color = BLACK if colors is None else colors[index]
        for line, said in enumerate(caption):
            where = (left + tile_width // 2, top + height + 2 + line * (text + 3))
            draw.text(where, fit_text(said, tile_width, text), color, font(text), anchor="ma")
    return sheet


def _shown_size(width: int, height: int) -> tuple[int, int]:
    """Small images grow by a whole factor so that pixels stay square; large ones shrink."""
    longest = max(width, height)
    if longest > _LARGEST:
        return max(1, width * _LARGEST // longest), max(1, height * _LARGEST // longest)
    factor = max(1, _TILE // longest)
    return width * factor, height * factor


def name_of(names: list[str], index: int) -> str:
    """Name of a class, or its number where there is none."""
    return names[index] if 0 <= index < len(names) else str(index)
