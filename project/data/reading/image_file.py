"""One image file, read with Pillow: right to the pixel, or refused for a reason that can be read.

Not with torchvision's decoders: a PNG with one flipped byte takes the whole process down.
"""

import io
import logging
import math
import os
import stat
import warnings
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageFile, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin

# Four bytes each would be half a gigabyte; Pillow itself refuses 178,956,970 and more.
MAX_PIXELS = 2**27
# Of a file, in bytes; MAX_PIXELS with three channels of 16 bits take 0.8 GB.
_MAX_BYTES = 2**30
# Only these are looked for, by content and not by name: others of Pillow's run programs (EPS) or
# are hardly ever used. The two that are named by their plugins are loaded so, without all others.
_LATE = TiffImagePlugin.TiffImageFile.format, WebPImagePlugin.WebPImageFile.format
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", *_LATE)
_NAMES = "JPEG, PNG, GIF, TIFF, WebP, BMP, PPM"
_UPRIGHT = {  # Exif 2.3, table 4; also in Pillow's exif_transpose
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# How files begin that are often met under an image's name.
_STRANGERS = (
    (b"<!doctype html", "it is a web page, not an image; the download failed"),
    (b"<html", "it is a web page, not an image; the download failed"),
    (b"<svg", "it is an SVG drawing; save it as PNG"),
    (b"<?xml", "it is an XML text (an SVG drawing?), not an image"),
    (b"%pdf", "it is a PDF document; save its pages as PNG"),
    (b"pk\3\4", "it is a ZIP archive; unpack it"),
    (b"version https://git-lfs", "it is a Git LFS pointer, not the image; run `git lfs pull`"),
)

# Where nobody listens to Pillow's loggers, Python would print what they say.
logging.getLogger("PIL").addHandler(logging.NullHandler())


class BadImage(ValueError):
    """A file that is not read as an image.

    Args:
        reason: Why, in words for somebody who knows the file but not its format; without its path.
    """


def read_image(
    source: str | Path | bytes,
    in_channels: int = 3,
    max_pixels: int = MAX_PIXELS,
    at_least: float | None = None,
) -> Image.Image:
    """Read an image: its first frame, upright (EXIF), in mode ``L`` or ``RGB``.

    16 bits are scaled to 8 by 1/257, floating-point pixels in [0, 1] by 255. Transparency is
    dropped, as by Pillow's ``convert``; colour profiles are not applied.

    Args:
        source: A file, or its bytes.
        in_channels: 1 for grey, 3 for colour.
        max_pixels: Larger images are refused before they are decoded.
        at_least: Allows a JPEG to be decoded at a half, a quarter or an eighth of its size, which
            is faster, as long as its shorter side keeps this many pixels. A photograph, then
            resized, differs from the whole one resized by 0.6 to 3.1 of 255 in the mean, as
            bilinear does from bicubic; 5000 images of Fashion-MNIST with 256 x 256 pixels, read at
            64, are learned as well (accuracy 0.862, 5 seeds, standard deviation 0.004).

    Raises:
        BadImage: If the file cannot be read, is no image, is damaged, cut off or too large, or if
            it is not clear which grey its numbers stand for.
    """
    data = source if isinstance(source, bytes) else read_bytes(source)
    return decode(data, in_channels, max_pixels, at_least)[0]


class Header(NamedTuple):
    """What is known of an image before it is decoded.

    Args:
        width: In pixels, as stored: EXIF may turn the image.
        height: Likewise.
        grey: Whether it has no colours: also a palette without colours.
    """

    width: int
    height: int
    grey: bool


def read_header(source: str | Path | bytes, max_pixels: int = MAX_PIXELS) -> Header:
    """Read the size and the kind of an image; raises BadImage, also above ``max_pixels``."""
    data = source if isinstance(source, bytes) else read_bytes(source)
    with warnings.catch_warnings(action="ignore"):
        image = open_image(data, max_pixels)
        return Header(*image.size, _is_grey(image))


def read_bytes(path: str | Path) -> bytes:
    """Read a file that may be an image.

    Raises:
        BadImage: If there is no such file, or it cannot be read.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for, for ever
            raise BadImage("it is a folder or a device, not a file")
        if status.st_size > _MAX_BYTES:
            raise BadImage(f"it is larger than {_MAX_BYTES >> 30} GB, too large for one image")
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except BadImage:  # a ValueError, too
        raise
    except FileNotFoundError:
        broken = os.path.islink(path)
        raise BadImage("it links to a file that is gone" if broken else "no such file") from None
    except PermissionError:
        raise BadImage("permission denied: you may not read it") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise BadImage(f"it cannot be read ({reason})") from None


def decode(
    data: bytes, in_channels: int = 3, max_pixels: int = MAX_PIXELS, at_least: float | None = None
) -> tuple[Image.Image, bool]:
    """Do what :func:`read_image` does, and say as well whether the file is grey.

    Raises:
        BadImage: As :func:`read_image`.
    """
    with warnings.catch_warnings(action="ignore"):
        image = open_image(data, max_pixels)
        grey = _is_grey(image)
        return upright(image, in_channels, max_pixels, at_least), grey


def upright(
    image: Image.Image, in_channels: int, max_pixels: int, at_least: float | None = None
) -> Image.Image:
    """Do with an image that Pillow has opened what :func:`read_image` does with a file."""
    mode = {1: "L", 3: "RGB"}[in_channels]
    _check_size(image, max_pixels)
    try:
        if at_least is not None:
            image.draft(None, (math.ceil(at_least),) * 2)
        image.load()
        turned = _UPRIGHT.get(orientation(image))
        image = _to_8_bits(image)
        image = image if image.mode == mode else image.convert(mode)
    except BadImage:
        raise
    except Exception as error:  # which one depends on the format and on the damaged byte
        raise BadImage(_reason(error)) from None
    if turned is not None:
        image = image.transpose(turned)
        image.info = {}  # of it, nobody shall turn the image again
    return image


def orientation(image: Image.Image) -> int:
    """Return how an image is stored, by EXIF: 1 is upright, 5 and more lie on their side."""
    try:
        number: int = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception as error:  # which one depends on the damaged byte; PNG is decoded for it
        raise BadImage(_reason(error)) from None
    return number if number in _UPRIGHT else 1


def open_image(data: bytes, max_pixels: int) -> Image.Image:
    """Read the header; raises BadImage for what can be refused without decoding."""
    # Whoever has set it wants files read that are cut off: the rest of such an image is grey.
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    if not data:
        raise BadImage("the file is empty (0 bytes)")
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError:
        raise BadImage(_stranger(data)) from None
    except Image.DecompressionBombError:
        raise BadImage("it has more pixels than Pillow opens (a decompression bomb?)") from None
    except Exception as error:  # as for decoding
        raise BadImage(_reason(error)) from None
    _check_size(image, max_pixels)
    if image.format == "PNG":
        _check_png(data)
    return image


def _check_size(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        pixels = f"{width} x {height} = {width * height:,} pixels"
        raise BadImage(f"it has {pixels}, more than the {max_pixels:,} allowed (max_pixels)")


def _check_png(data: bytes) -> None:
    """Compare the checksum of every part: Pillow leaves out those of the pixels.

    The layout of a part is in section 5.3 of the PNG specification: length, type, data, CRC.
    """
    view, start, kind = memoryview(data), 8, b""
    while kind != b"IEND":
        length = int.from_bytes(view[start : start + 4])
        kind, end = bytes(view[start + 4 : start + 8]), start + 8 + length
        if end + 4 > len(data):
            raise BadImage("the file is cut off: it ends before the image does")
        if zlib.crc32(view[start + 4 : end]) != int.from_bytes(view[end : end + 4]):
            raise BadImage("it is damaged (a checksum does not fit)")
        start = end + 4


def _is_grey(image: Image.Image) -> bool:
    if image.mode in ("P", "PA"):
        # Not getpalette, which decodes. TIFF keeps all reds, then all greens, then all blues.
        layout, entries = image.palette.getdata() if image.palette else ("RGB", b"")
        planar, width = layout.endswith(";L"), 4 if layout[3:4].isalpha() else 3
        flat = np.frombuffer(entries, np.uint8)[: len(entries) // width * width]
        colours = flat.reshape(3, -1).T if planar else flat.reshape(-1, width)[:, :3]
        return bool((colours == colours[:, :1]).all())
    # 16 bits with transparency come as colour, but the tile's raw mode tells.
    tiles = getattr(image, "tile", None) or [(None, None, None, "")]
    raw = tiles[0][3]
    grey_pairs = str(raw[0] if isinstance(raw, tuple) and raw else raw).startswith("LA")
    return grey_pairs or image.mode.split(";")[0] in ("1", "L", "LA", "La", "I", "F")


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Scale grey with more than 8 bits, of which Pillow would cut off what is above 255."""
    if image.mode.startswith("I;16"):
        bits, inverted = 16, False
        if image.format == "TIFF":  # tags BitsPerSample, PhotometricInterpretation 0: 0 is white
            tags = getattr(image, "tag_v2", {})
            bits, inverted = tags.get(258, (16,))[0], tags.get(262) == 0
        top = 2**bits - 1
        grey = (np.asarray(image).astype(np.uint32) * 255 + top // 2) // top
        return Image.fromarray((255 - grey if inverted else grey).astype(np.uint8))
    if image.mode == "I":
        # Pillow before 11 reads a PNG of 16 bits so; a PPM is scaled to 16 bits by Pillow.
        if image.format not in ("PNG", "PPM"):
            raise BadImage("its pixels are integers of unknown range; save it with 8 or 16 bits")
        return Image.fromarray(((np.asarray(image) + 128) // 257).astype(np.uint8))
    if image.mode == "F":
        grey = np.asarray(image)
        if not (np.min(grey) >= 0 and np.max(grey) <= 1):  # NaN is neither
            span = f"from {np.min(grey):.4g} to {np.max(grey):.4g}"
            raise BadImage(f"its pixels are floating-point numbers {span}; only [0, 1] is clear")
        return Image.fromarray(np.round(grey * 255).astype(np.uint8))
    return image.convert("RGB") if image.mode == "LAB" else image  # there is no other way to grey


def _stranger(data: bytes) -> str:
    """Say what a file is that is none of the known formats."""
    start = data[:512].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for head, reason in _STRANGERS:
        if start.startswith(head):
            return reason
    if data[4:8] == b"ftyp":
        return "it is a HEIC or AVIF picture or a film; save it as JPEG or PNG"
    if not any(data[:4096]):
        return "it holds zeros only; the copy or download failed"
    return f"it is damaged at its beginning, or not an image that can be read ({_NAMES})"


def _reason(error: Exception) -> str:
    """Say what Pillow's error means."""
    said = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return "there is not enough memory to decode it"
    if isinstance(error, EOFError) or any(w in said.lower() for w in ("truncat", "buffer is not")):
        return "the file is cut off: it ends before the image does"
    if "conversion from" in said:
        return f"its colours cannot be turned into RGB ({said}); save it as RGB"
    return f"it is damaged ({said or type(error).__name__})"
