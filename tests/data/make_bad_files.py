"""A folder with every kind of file that people have among their images, and what is right."""

import io
import os
import struct
import warnings
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps


@dataclass
class Zoo:
    """What ``write_zoo`` wrote; all paths are relative to its folder.

    Args:
        right: Files that are images, with their pixels, uint8 (H, W, 3), by Pillow's own means.
        wrong: Files that are listed, but cannot be read, with a word of the reason.
        lost: Paths that the listing itself names, with a word of the reason.
        left_out: Number of files by extension that are no images.
    """

    right: dict[str, np.ndarray] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)


def photo(seed: int = 0, height: int = 24, width: int = 36, channels: int = 3) -> np.ndarray:
    """A smooth gradient with noise, uint8 (H, W, C) or, of one channel, (H, W)."""
    random = np.random.default_rng(seed)
    ramp = np.linspace(0, 200, height * width * channels).reshape(height, width, channels)
    pixels = (ramp + random.integers(0, 56, ramp.shape)).astype(np.uint8)
    return pixels if channels > 1 else pixels[..., 0]


def encode(image: Image.Image | np.ndarray, kind: str = "PNG", **options) -> bytes:
    """An image as the bytes of a file."""
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    """A part of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, bits: int, colour: int, rows: bytes) -> bytes:
    """A PNG file of a kind that Pillow does not write; ``rows`` begin with their filter, 0."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + body


def bomb(side: int = 20_000) -> bytes:
    """A PNG of a few hundred bytes that says it has ``side`` x ``side`` pixels."""
    return png(side, side, 8, 2, b"\0" * 1000)


def deep(bits: int = 16) -> np.ndarray:
    """A grey ramp over the whole range, uint16 (16, 16)."""
    return np.linspace(0, 2**bits - 1, 256).astype(np.uint16).reshape(16, 16)


def scaled(grey: np.ndarray) -> np.ndarray:
    """16 bits as 8, by 1/257, in three channels."""
    return np.repeat(np.round(grey / 257).astype(np.uint8)[..., None], 3, axis=2)


def flipped(data: bytes, place: int) -> bytes:
    """The bytes with one bit changed."""
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def exif(orientation: int) -> Image.Exif:
    """EXIF data that say how the camera was held, 1 to 8."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def reference(data: bytes) -> np.ndarray:
    """The pixels of a file by Pillow's own means, uint8 (H, W, 3)."""
    with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def good_files() -> dict[str, bytes]:
    """Files that Pillow's own ``convert("RGB")`` reads right once they are upright."""
    colour, grey = Image.fromarray(photo()), Image.fromarray(photo(channels=1))
    alpha = Image.fromarray(photo(channels=4), "RGBA")
    frames = [Image.fromarray(photo(seed)) for seed in range(3)]
    moving = {"save_all": True, "append_images": frames[1:]}
    files = {
        "plain.jpg": encode(colour, "JPEG"),
        "progressive.jpeg": encode(colour, "JPEG", progressive=True),
        "cmyk.jpg": encode(colour.convert("CMYK"), "JPEG"),
        "grey.jpg": encode(grey, "JPEG"),
        "grey.png": encode(grey),
        "palette.png": encode(colour.quantize(17)),
        "palette_clear.png": encode(colour.quantize(17), transparency=bytes(range(17))),
        "alpha.png": encode(alpha),
        "grey_alpha.png": encode(grey.convert("LA")),
        "one_bit.png": encode(grey.convert("1")),
        "colour16.png": png(1, 1, 16, 2, b"\0" + struct.pack(">3H", 0, 30_000, 65_535)),
        "moving.gif": encode(frames[0], "GIF", **moving),
        "moving.webp": encode(frames[0], "WEBP", lossless=True, **moving),
        "pages.tif": encode(frames[0], "TIFF", **moving),
        "packed.tiff": encode(colour, "TIFF", compression="tiff_lzw"),
        "lab.tif": encode(Image.fromarray(photo(), "LAB"), "TIFF"),
        "cmyk.tif": encode(colour.convert("CMYK"), "TIFF"),
        "lossy.webp": encode(colour, "WEBP"),
        "plain.bmp": encode(colour, "BMP"),
        "plain.ppm": encode(colour, "PPM"),
        "LOUD.JPG": encode(colour, "JPEG"),
        "png_in_truth.jpg": encode(colour),
        "with spaces, and (more).png": encode(colour),
        "größe 猫 🐈.png": encode(colour),
        "x" * 236 + ".png": encode(colour),
        os.fsdecode(b"latin-1 \xe9.png"): encode(colour),
        "-rf.png": encode(colour),
        "line\nbreak.png": encode(colour),
        "one_pixel.png": encode(photo(height=1, width=1)),
        "deeper/than/that.png": encode(colour),
    }
    files |= {f"held_{o}.jpg": encode(colour, "JPEG", exif=exif(o)) for o in range(1, 9)}
    files |= {f"held_6.{k}": encode(colour, k, exif=exif(6)) for k in ("png", "webp", "tiff")}
    return files


def bad_files() -> dict[str, tuple[bytes, str]]:
    """Files under an image's name that cannot be read, with a word of the reason."""
    jpeg, whole = encode(photo(), "JPEG"), encode(photo())
    floats = np.linspace(-1, 3, 64, dtype=np.float32).reshape(8, 8)
    return {
        "cut.jpg": (jpeg[: len(jpeg) // 2], "cut off"),
        "cut.png": (whole[: len(whole) // 2], "cut off"),
        "cut.bmp": (encode(photo(), "BMP")[:-200], "cut off"),
        "cut.webp": (encode(photo(), "WEBP")[:-20], "damaged"),
        "nothing.png": (b"", "empty"),
        "zeros.jpg": (bytes(5000), "zeros only"),
        "flipped.png": (flipped(whole, len(whole) // 2), "damaged"),
        "page.jpg": (b"\n<!DOCTYPE html><html>404</html>", "web page"),
        "notes.png": (b"buy milk", "not an image"),
        "drawing.png": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        "pointer.png": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        "telephone.jpg": (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC"),
        "script.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        "bomb.png": (bomb(), "pixels"),
        "large.png": (bomb(12_000), "max_pixels"),
        "floats.tif": (encode(Image.fromarray(floats), "TIFF"), "floating-point"),
        "integers.tif": (
            encode(Image.fromarray(np.full((8, 8), 70_000, np.int32)), "TIFF"),
            "integers",
        ),
    }


def write_zoo(folder: Path) -> Zoo:
    """Write all of them into ``folder``, with links and what file managers leave behind."""
    zoo = Zoo()
    for name, data in good_files().items():
        zoo.right[name] = reference(data)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    for name in ("deep.png", "deep.tif", "deep.pgm"):
        Image.fromarray(deep()).save(folder / name)
        zoo.right[name] = scaled(deep())
    unit = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    Image.fromarray(unit).save(folder / "unit.tif")
    zoo.right["unit.tif"] = np.repeat(np.round(unit * 255).astype(np.uint8)[..., None], 3, axis=2)
    for name, (data, reason) in bad_files().items():
        zoo.wrong[name] = reason
        (folder / name).write_bytes(data)
    if os.geteuid() != 0:  # root may read all
        (folder / "locked.png").write_bytes(encode(photo()))
        (folder / "locked.png").chmod(0)
        zoo.wrong["locked.png"] = "permission"
    _write_links(folder, zoo)
    _write_litter(folder, zoo)
    return zoo


def _write_links(folder: Path, zoo: Zoo) -> None:
    (folder / "linked.png").symlink_to("plain.bmp")
    zoo.right["linked.png"] = zoo.right["plain.bmp"]
    (folder / "deeper" / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "again").symlink_to("deeper", target_is_directory=True)
    (folder / "dangling.png").symlink_to("gone.png")
    (folder / "itself.png").symlink_to("itself.png")
    os.mkfifo(folder / "pipe.jpg")
    zoo.lost |= {"dangling.png": "does not exist", "itself.png": "leads nowhere"}
    zoo.lost |= {"pipe.jpg": "no ordinary file"}


def _write_litter(folder: Path, zoo: Zoo) -> None:
    image = encode(photo())
    hidden = (".ipynb_checkpoints", "__MACOSX", "@eaDir")
    for name in hidden:
        (folder / name).mkdir()
    for name in (".hidden.png", "._plain.jpg", *(f"{place}/a.png" for place in hidden)):
        (folder / name).write_bytes(image)
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store"):
        (folder / name).write_bytes(b"x")
    for name in ("labels.csv", "a.TXT", "b.txt", "README", "film.mp4"):
        (folder / name).write_bytes(b"x")
    zoo.left_out |= {".csv": 1, ".mp4": 1, ".txt": 2, "without extension": 1}
