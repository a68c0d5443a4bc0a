"""One image from wherever it comes to what the network is given, without a data set."""

import math
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, JpegImagePlugin
from torch import Tensor
from torch.nn import functional as F

from project.data.augment.crop import Box
from project.data.reading.image_file import (
    MAX_PIXELS,
    BadImage,
    open_image,
    orientation,
    read_bytes,
    upright,
)

# A file, its bytes, a picture of Pillow's, uint8 (H, W) or (H, W, C), or a uint8 tensor (C, H, W).
ImageSource = str | Path | bytes | Image.Image | npt.NDArray[np.uint8] | Tensor

# Resized, an image with more than so many times the pixels that are kept is computed only there,
# which is slower than to throw the others away.
_MOST = 2


class ImageReader:
    """Read images as a data module reads those it trains on.

    Args:
        in_channels: 1 for grey, 3 for colour.
        image_size: Height and width that the images get: the shorter side is resized, the centre
            cut out. None leaves them as they are.
        crop_fraction: Part of the shorter side that is kept, in (0, 1].
        max_pixels: Images with more are refused.
    """

    def __init__(
        self,
        in_channels: int,
        image_size: int | None,
        crop_fraction: float = 1.0,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.in_channels, self.image_size = in_channels, image_size
        self.crop_fraction, self.max_pixels = crop_fraction, max_pixels

    def __call__(self, source: ImageSource) -> Tensor:
        """Return the image, uint8 ``(C, S, S)``, or ``(C, H, W)`` without ``image_size``.

        Raises:
            BadImage: If it cannot be read as an image.
        """
        if isinstance(source, str | Path | bytes):
            how = self.in_channels, self.max_pixels, self.image_size, self.crop_fraction
            return stacked([read_middle(source, *how)], 1)[0]
        with warnings.catch_warnings(action="ignore"):  # about palettes with transparency
            picture = upright(_picture(source), self.in_channels, self.max_pixels)
        return stacked([middle(_pixels(picture), self.image_size, self.crop_fraction)], 1)[0]


def read_middle(
    source: str | Path | bytes,
    in_channels: int,
    max_pixels: int,
    size: int | None,
    crop_fraction: float = 1.0,
) -> Tensor:
    """Read a file as ``read_image`` does, to what :func:`middle` makes of it.

    Raises:
        BadImage: If it cannot be read as an image.
    """
    needed = None if size is None else round(size / crop_fraction)
    pixels, sides = _read(source, in_channels, max_pixels, lambda height, width: needed)
    return middle(pixels, size, crop_fraction, _extents(pixels, sides))


def read_crop(
    source: str | Path | bytes,
    in_channels: int,
    max_pixels: int,
    size: int,
    choose: Callable[[int, int], Box],
) -> Tensor:
    """Read a part of a file and resize it to uint8 ``(C, size, size)``.

    Args:
        source: A file, or its bytes.
        in_channels: 1 for grey, 3 for colour.
        max_pixels: Larger images are refused.
        size: Height and width that the part gets.
        choose: Says which part, given the height and the width of the image; always the same.

    Raises:
        BadImage: If it cannot be read as an image.
    """

    def needed(height: int, width: int) -> float:
        box = choose(height, width)
        return size * min(height, width) / min(box.height, box.width)

    pixels, sides = _read(source, in_channels, max_pixels, needed)
    return cut(pixels, choose(*sides), sides, size, _extents(pixels, sides))


def cut(
    pixels: Tensor, box: Box, sides: tuple[int, int], size: int, extents: tuple[float, float]
) -> Tensor:
    """Cut out a part of uint8 ``(C, H, W)`` and resize it to ``(C, size, size)``.

    Args:
        pixels: An image, or the same image resized.
        box: The part, in pixels of the image.
        sides: Height and width of the image.
        size: Height and width that the part gets.
        extents: Height and width of the image in ``pixels``.
    """
    y, x = (extent / side for extent, side in zip(extents, sides, strict=True))
    bottom, right = math.ceil((box.top + box.height) * y), math.ceil((box.left + box.width) * x)
    return resized(pixels[:, int(box.top * y) : bottom, int(box.left * x) : right], size, size)


def _read(
    source: str | Path | bytes,
    in_channels: int,
    max_pixels: int,
    at_least: Callable[[int, int], float | None],
) -> tuple[Tensor, tuple[int, int]]:
    """Read a file, a JPEG smaller if possible; also returns its real height and width.

    JPEG in colour at its full size is decoded by torchvision: the same libjpeg, the same pixels,
    faster than by Pillow. Pillow takes over what torchvision refuses, so that what is read does not
    depend on which of the two does it.
    """
    data = source if isinstance(source, bytes) else read_bytes(source)
    with warnings.catch_warnings(action="ignore"):
        image = open_image(data, max_pixels)
        if not isinstance(image, JpegImagePlugin.JpegImageFile):  # others may turn when decoded
            pixels = _pixels(upright(image, in_channels, max_pixels))
            return pixels, (pixels.shape[1], pixels.shape[2])
        turn, (width, height) = orientation(image), image.size
        sides = (width, height) if turn >= 5 else (height, width)
        needed = at_least(*sides)
        smaller = needed is not None and min(sides) >= 2 * math.ceil(needed)
        plain = image.format == "JPEG" and image.mode == "RGB" and turn == 1 and in_channels == 3
        found = _jpeg(data) if plain and not smaller else None
        if found is None:
            found = _pixels(upright(image, in_channels, max_pixels, needed))
        return found, sides


def _extents(pixels: Tensor, sides: tuple[int, int]) -> tuple[float, float]:
    """Return the height and the width of an image in the pixels it was decoded to.

    Of 375 rows half are 187.5, in 188 rows of pixels; taken for 188, the image would be stretched.
    """
    scale = next((s for s in (1, 2, 4, 8) if pixels.shape[1] == -(-sides[0] // s)), 1)
    return sides[0] / scale, sides[1] / scale


def _jpeg(data: bytes) -> Tensor | None:
    from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-untyped]

    try:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return decode_jpeg(encoded, ImageReadMode.RGB)  # type: ignore[no-any-return]
    except RuntimeError:  # damaged, or a torchvision without libjpeg
        return None


def middle(
    pixels: Tensor,
    size: int | None,
    crop_fraction: float = 1.0,
    extents: tuple[float, float] | None = None,
) -> Tensor:
    """Bring uint8 ``(C, H, W)`` to ``(C, size, size)`` by resizing and cutting; None: as it is.

    Args:
        pixels: An image.
        size: In pixels.
        crop_fraction: Part of the shorter side that is kept, in (0, 1].
        extents: Height and width of the image, if they end within the last pixels.
    """
    tall, wide = extents or pixels.shape[1:]
    if size is None or (tall, wide) == (size, size):
        return pixels
    shorter, least = round(size / crop_fraction), min(tall, wide)
    height, width = int(tall * shorter // least), int(wide * shorter // least)
    left, top = round((width - size) / 2), round((height - size) / 2)
    if width * height > _MOST * size**2:  # the whole of a very long image may not fit into memory
        y, x = tall / height, wide / width
        box = left * x, top * y, (left + size) * x, (top + size) * y
        return _by_pillow(pixels, size, size, box)
    whole = resized(pixels, height, width, (tall, wide))
    return whole[:, top : top + size, left : left + size]


def resized(
    pixels: Tensor, height: int, width: int, extents: tuple[float, float] | None = None
) -> Tensor:
    """Resize uint8 ``(C, H, W)``, bilinear and antialiased.

    Where torch has vector instructions for it, it takes a third of Pillow's time and differs from
    it by a rounded step in some pixels; elsewhere, Pillow takes half of torch's time.

    Args:
        pixels: An image.
        height: That it gets.
        width: Likewise.
        extents: As for :func:`middle`.
    """
    tall, wide = extents or pixels.shape[1:]
    if len(pixels) != 3 or not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return _by_pillow(pixels, height, width, (0, 0, wide, tall))
    # In memory as (H, W, C), where those instructions are; a crop of it has gaps.
    rows = pixels.permute(1, 2, 0).contiguous()[None].permute(0, 3, 1, 2)
    # Across the rows it is faster: first, if fewer are left of them.
    for axis in (2, 3) if height < tall else (3, 2):
        rows = _stretched(rows, axis, *((height, tall) if axis == 2 else (width, wide)))
    return rows[0]


def _stretched(rows: Tensor, axis: int, length: int, extent: float) -> Tensor:
    """Bring ``extent`` pixels along one axis of ``(1, C, H, W)`` to ``length``."""
    how: dict[str, Any] = {"mode": "bilinear", "antialias": True}
    if length == extent == rows.shape[axis]:
        return rows
    if extent == rows.shape[axis]:
        sides = (length, rows.shape[3]) if axis == 2 else (rows.shape[2], length)
        return F.interpolate(rows, sides, **how)
    factors = (length / extent, 1.0) if axis == 2 else (1.0, length / extent)
    return F.interpolate(rows, scale_factor=factors, **how)


def _by_pillow(
    pixels: Tensor, height: int, width: int, box: tuple[float, float, float, float]
) -> Tensor:
    return _pixels(_image(pixels).resize((width, height), Image.Resampling.BILINEAR, box))


def stacked(images: Iterable[Tensor], count: int) -> Tensor:
    """Put uint8 images ``(C, H, W)`` of one size into a batch ``(count, C, H, W)``.

    Each is copied when it comes, by numpy: where it is ``(H, W, C)`` in memory, in half of torch's
    time.
    """
    batch = np.empty(0, np.uint8)
    for at, image in enumerate(images):
        batch = batch if at else np.empty((count, *image.shape), np.uint8)
        batch[at] = image.numpy()
    return torch.from_numpy(batch)


def _pixels(image: Image.Image) -> Tensor:
    """Pixels of a picture ``L`` or ``RGB``, uint8 ``(C, H, W)``, in memory as ``(H, W, C)``."""
    pixels = np.array(image).reshape(image.height, image.width, -1)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _image(pixels: Tensor) -> Image.Image:
    """Picture of uint8 ``(C, H, W)``, grey or colour."""
    rows = pixels.permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(rows[..., 0] if rows.shape[2] == 1 else rows)


def _picture(source: object) -> Image.Image:
    """Make a picture of what is in memory."""
    if isinstance(source, Image.Image):
        return source
    layout, shape = "(H, W) or (H, W, C)", tuple(getattr(source, "shape", ()))
    if isinstance(source, Tensor):
        layout = "(C, H, W)"
        source = source.detach().cpu()
        source = (source.permute(1, 2, 0) if source.ndim == 3 else source[None, None]).numpy()
    if not isinstance(source, np.ndarray):
        raise BadImage(f"it is no image, but a {type(source).__name__}")
    if source.dtype != np.uint8:
        raise BadImage(f"its numbers are {source.dtype}; give uint8, from 0 to 255")
    pixels = source[..., 0] if source.ndim == 3 and source.shape[2] == 1 else source
    if pixels.ndim not in (2, 3) or 0 in pixels.shape or pixels.shape[2:] not in ((), (3,), (4,)):
        raise BadImage(f"its shape is {shape}; give {layout} with 1, 3 or 4 channels")
    return Image.fromarray(np.ascontiguousarray(pixels))
