"""One image from wherever it comes to what the network is given, without a data set."""

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import ExifTags, Image
from torch import Tensor
from torch.nn import functional as F

from project.data.reading.image_file import (
    MAX_PIXELS,
    BadImage,
    open_image,
    read_bytes,
    square,
    upright,
)

# A file, its bytes, a picture of Pillow's, uint8 (H, W) or (H, W, C), or a uint8 tensor (C, H, W).
ImageSource = str | Path | bytes | Image.Image | npt.NDArray[np.uint8] | Tensor

# Of a longer image so many times what is kept would be resized to cut that out.
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
            needed = self.image_size and round(self.image_size / self.crop_fraction)
            pixels = read_pixels(source, self.in_channels, self.max_pixels, needed)
        else:
            with warnings.catch_warnings(action="ignore"):  # about palettes with transparency
                picture = upright(_picture(source), self.in_channels, self.max_pixels)
            pixels = _pixels(picture)
        return middle(pixels, self.image_size, self.crop_fraction)


def read_pixels(
    source: str | Path | bytes, in_channels: int, max_pixels: int, at_least: int | None
) -> Tensor:
    """Read a file as ``read_image`` does, to uint8 ``(C, H, W)``.

    JPEG in colour is decoded by torchvision: the same libjpeg, the same pixels, in two thirds of
    Pillow's time. Pillow has opened it, and takes it over if torchvision refuses it, so that what
    is read does not depend on which of the two does it.

    Raises:
        BadImage: If it cannot be read as an image.
    """
    data = source if isinstance(source, bytes) else read_bytes(source)
    with warnings.catch_warnings(action="ignore"):
        image = open_image(data, max_pixels)
        pixels = _jpeg(data, image, at_least) if in_channels == 3 else None
        if pixels is not None:
            return pixels
        return _pixels(upright(image, in_channels, max_pixels, at_least))


def _jpeg(data: bytes, image: Image.Image, at_least: int | None) -> Tensor | None:
    """Decode a JPEG in colour that stands upright; None for all that Pillow reads better."""
    # At a quarter of its size and less, Pillow is faster.
    small = at_least is not None and min(image.size) >= 8 * at_least
    turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
    if image.format != "JPEG" or image.mode != "RGB" or small or turned:
        return None
    from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-untyped]

    try:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return decode_jpeg(encoded, ImageReadMode.RGB)  # type: ignore[no-any-return]
    except RuntimeError:  # damaged, or a torchvision without libjpeg
        return None


def middle(pixels: Tensor, size: int | None, crop_fraction: float = 1.0) -> Tensor:
    """Bring uint8 ``(C, H, W)`` to ``(C, size, size)`` by resizing and cutting; None: as it is."""
    height, width = pixels.shape[1:]
    if size is None or (height, width) == (size, size):
        return pixels.contiguous()
    shorter, least = round(size / crop_fraction), min(height, width)
    height, width = height * shorter // least, width * shorter // least
    if width * height > _MOST * size**2:  # square is slower, but computes only what it keeps
        return torch.tensor(square(_image(pixels), size, crop_fraction))
    left, top = round((width - size) / 2), round((height - size) / 2)
    return resized(pixels, height, width)[:, top : top + size, left : left + size].contiguous()


def resized(pixels: Tensor, height: int, width: int) -> Tensor:
    """Resize uint8 ``(C, H, W)``, bilinear and antialiased.

    Where torch has vector instructions for it, it takes half of Pillow's time and differs from it
    by a rounded step in a few pixels of a thousand; elsewhere, Pillow takes half of torch's time.
    """
    if len(pixels) != 3 or not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return _pixels(_image(pixels).resize((width, height), Image.Resampling.BILINEAR))
    # In memory as (H, W, C), where those instructions are; a crop of it has gaps.
    rows = pixels.permute(1, 2, 0).contiguous().permute(2, 0, 1)[None]
    return F.interpolate(rows, (height, width), mode="bilinear", antialias=True)[0]


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
