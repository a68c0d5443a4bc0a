"""One image is read as a data module reads those it trains on, wherever it comes from."""

import importlib
import io
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
from make_bad_files import bad_files, encode, exif, photo

from project.data import DigitsDataModule, ImageFolderDataModule
from project.data.augment.crop import Box
from project.data.reading import reader
from project.data.reading.image_file import BadImage
from project.data.reading.reader import ImageReader


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)


def png(pixels: np.ndarray, **how) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png", **how)
    return stream.getvalue()


def test_all_kinds_of_sources_give_the_same_image(pixels: np.ndarray, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(png(pixels))
    read = ImageReader(3, 8)
    wanted = read(file)
    assert wanted.shape == (3, 8, 8)
    assert wanted.dtype == torch.uint8
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    for source in (str(file), file.read_bytes(), Image.open(file), pixels, tensor):
        assert torch.equal(read(source), wanted)


def test_grey_arrays_may_have_a_dimension_for_it(pixels: np.ndarray) -> None:
    grey = pixels[..., 0]
    read = ImageReader(1, None)
    wanted = torch.from_numpy(grey)[None]
    for source in (grey, grey[..., None], torch.from_numpy(grey)[None]):
        assert torch.equal(read(source), wanted)


def test_grey_becomes_colour_and_the_other_way_round(pixels: np.ndarray) -> None:
    assert ImageReader(3, 8)(pixels[..., 0]).shape == (3, 8, 8)
    assert ImageReader(1, 8)(pixels).shape == (1, 8, 8)


def test_a_picture_in_memory_is_turned_as_its_file_is(pixels: np.ndarray) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: turned to the right
    turned = png(pixels, exif=exif)
    read = ImageReader(3, None)
    assert read(turned).shape == (3, 16, 12)
    assert torch.equal(read(Image.open(io.BytesIO(turned))), read(turned))


def test_a_data_module_reads_its_own_images_unchanged() -> None:
    data = DigitsDataModule()
    data.setup("test")
    image = data.test_set.images[7]
    assert torch.equal(data.read(png(image[0].numpy())), image)
    assert data.preprocess(data.read(image)[None]).mean().abs() < 3


def test_a_file_is_read_as_in_training(photos: Path) -> None:
    data = ImageFolderDataModule(str(photos), image_size=10, crop_fraction=0.8, in_memory=False)
    data.setup("test")
    images, *_ = data.test_set[3]
    assert torch.equal(data.read(data.predict_path(3)), images)


def test_the_reader_is_made_elsewhere_from_json(photos: Path, pixels: np.ndarray) -> None:
    data = ImageFolderDataModule(str(photos), image_size=10, crop_fraction=0.8)
    said = json.loads(json.dumps(data.reader()))
    module, name = said["class_path"].rsplit(".", 1)
    reader = getattr(importlib.import_module(module), name)(**said["init_args"])
    image = data.read(png(pixels))
    assert torch.equal(reader(png(pixels)), image)
    assert torch.equal(pickle.loads(pickle.dumps(reader))(png(pixels)), image)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("gone.png", "no such file"),
        (b"", "empty"),
        (b"hello", "not an image"),
        (3, "it is no image, but a int"),
        (np.zeros((8, 8)), "its numbers are float64; give uint8"),
        (torch.zeros(1, 8, 8), "its numbers are float32; give uint8"),
        (np.zeros((8, 8, 5), np.uint8), r"its shape is \(8, 8, 5\)"),
        (np.zeros((0, 8), np.uint8), r"its shape is \(0, 8\)"),
        (torch.zeros(2, 2, 8, 8, dtype=torch.uint8), r"its shape is .*; give \(C, H, W\)"),
        (torch.zeros(8, 9, dtype=torch.uint8), r"its shape is \(8, 9\); give \(C, H, W\)"),
        (torch.zeros(8, 9, 3, dtype=torch.uint8), r"its shape is \(8, 9, 3\); give \(C, H, W\)"),
        (np.zeros((100, 100), np.uint8), "more than the 5,000 allowed"),
    ],
)
def test_what_is_no_image_is_refused_for_a_reason(source: object, reason: str) -> None:
    with pytest.raises(BadImage, match=reason):
        ImageReader(1, 8, max_pixels=5000)(source)


@pytest.mark.parametrize(
    "how",
    [
        {"quality": 50},
        {"quality": 95, "subsampling": 0},
        {"subsampling": 1},
        {"progressive": True},
        {"keep_rgb": True},
    ],
    ids=str,
)
def test_jpeg_by_torchvision_has_the_pixels_of_pillow(how, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((101, 83)).save(file, "JPEG", **how)
    expected = np.asarray(Image.open(file))
    monkeypatch.setattr(reader, "upright", None)  # Pillow decodes nothing
    pixels = reader.read_middle(file.getvalue(), 3, 10_000, None)
    assert np.array_equal(pixels.permute(1, 2, 0), expected)


def test_jpeg_that_torchvision_refuses_gets_pillows_reason():
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "JPEG")
    with pytest.raises(BadImage, match="cut off"):
        reader.read_middle(file.getvalue()[:-50], 3, 10_000, None)


def scene(width: int = 400, height: int = 300) -> Image.Image:
    """Large shapes and fine grain, as in photographs."""
    random, whole = np.random.default_rng(0), np.zeros((height, width, 3))
    for cells, share in ((3, 0.6), (12, 0.25), (100, 0.15)):
        layer = Image.fromarray(random.integers(0, 256, (cells, cells, 3), np.uint8))
        whole += share * np.asarray(layer.resize((width, height), Image.Resampling.BICUBIC))
    return Image.fromarray(whole.astype(np.uint8))


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Mean difference in steps of 255."""
    return (one.int() - other.int()).abs().float().mean().item()


def decoded(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[int, int]]:
    """Heights and widths of what is given to a function of the reader from here on."""
    noted, function = [], getattr(reader, name)

    def noting(pixels: torch.Tensor, *how) -> torch.Tensor:
        noted.append(tuple(pixels.shape[1:]))
        return function(pixels, *how)

    monkeypatch.setattr(reader, name, noting)
    return noted


# Halves, quarters and eighths of most of these are not whole.
@pytest.mark.parametrize("sides", [(304, 400), (301, 403), (299, 403), (351, 300)])
@pytest.mark.parametrize(("size", "scale"), [(30, 8), (40, 4), (64, 4), (80, 2), (155, 1)])
def test_a_jpeg_that_is_decoded_smaller_looks_as_the_whole_one(
    size: int, scale: int, sides: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode(scene(*sides[::-1]), "JPEG", quality=90)
    whole = reader.middle(reader.read_middle(data, 3, 10**6, None), size)
    sizes = decoded(monkeypatch, "middle")
    smaller = ImageReader(3, size)(data)
    assert sizes == [tuple(-(-side // scale) for side in sides)]
    assert apart(smaller, whole) < 1.5


@pytest.mark.parametrize(("size", "scale"), [(40, 4), (80, 2), (120, 1)])
@pytest.mark.parametrize("turn", [1, 6, 8])
def test_a_part_of_a_jpeg_is_decoded_as_small_as_it_may_be(
    size: int, scale: int, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode(scene(), "JPEG", quality=90, exif=exif(turn))
    whole = reader.read_middle(data, 3, 10**6, None)
    sides = (300, 400) if turn == 1 else (400, 300)
    box = Box(sides[0] // 5, sides[1] // 3, 200, 180)
    expected = reader.cut(whole, box, sides, size, sides)
    sizes = decoded(monkeypatch, "cut")
    told = []
    part = reader.read_crop(data, 3, 10**6, size, lambda *said: (told.append(said), box)[1])
    assert set(told) == {sides}
    # Of the 180 pixels of the box, no fewer than `size` are left.
    assert sizes == [tuple(side // scale for side in sides)]
    assert apart(part, expected) < 3


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_a_part_of_another_file_is_one_of_the_upright_image(kind: str) -> None:
    lossless = {"lossless": True} if kind == "WEBP" else {}
    data = encode(scene(40, 30), kind, exif=exif(6), **lossless)
    part = reader.read_crop(data, 3, 10**6, 8, lambda height, width: Box(9, 1, 8, 8))
    assert torch.equal(part, reader.read_middle(data, 3, 10**6, None)[:, 9:17, 1:9])
    assert reader.read_middle(data, 3, 10**6, None).shape == (3, 40, 30)


@pytest.mark.parametrize("name", bad_files())
def test_no_bad_file_slips_in_by_a_part_of_it(name: str) -> None:
    data, reason = bad_files()[name]
    with pytest.raises(BadImage, match=reason):
        reader.read_crop(data, 3, 10**6, 8, lambda height, width: Box(0, 0, height, width))


@pytest.mark.parametrize("sides", [(50, 70), (300, 70), (50, 400), (450, 600), (450, 70)])
def test_resizing_is_pillows_up_to_rounded_steps(sides: tuple[int, int]) -> None:
    pixels = torch.from_numpy(np.array(scene())).permute(2, 0, 1)
    found = reader.resized(pixels, *sides).permute(1, 2, 0).numpy().astype(int)
    wanted = np.asarray(scene().resize(sides[::-1], Image.Resampling.BILINEAR))
    assert np.abs(found - wanted).max() <= 1


@pytest.mark.parametrize("fraction", [1.0, 0.875, 0.5])
@pytest.mark.parametrize("shape", [(24, 36), (61, 40), (300, 17), (33, 33)])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_middle_is_what_resizing_and_then_cropping_gives(
    shape: tuple[int, int], fraction: float, channels: int
) -> None:
    image = Image.fromarray(photo(height=shape[0], width=shape[1], channels=channels))
    shorter = round(20 / fraction)
    width, height = (side * shorter // min(image.size) for side in image.size)
    left, top = round((width - 20) / 2), round((height - 20) / 2)
    whole = image.resize((width, height), Image.Resampling.BILINEAR)
    expected = np.asarray(whole.crop((left, top, left + 20, top + 20))).reshape(20, 20, -1)
    pixels = torch.from_numpy(np.array(image).reshape(*shape, -1)).permute(2, 0, 1)
    found = reader.middle(pixels, 20, fraction).permute(1, 2, 0).numpy()
    # One step, where a sum of weighted pixels is rounded.
    assert np.abs(found.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("sides", [(1, 1), (40, 1), (1, 40), (2, 3)])
def test_a_tiny_jpeg_is_read_too(sides: tuple[int, int]) -> None:
    data = encode(scene(*sides), "JPEG")
    assert torch.equal(ImageReader(3, 16)(data), ImageReader(3, 16)(Image.open(io.BytesIO(data))))


def test_a_very_long_image_takes_no_more_room_than_its_middle() -> None:
    long = torch.zeros(1, 1, 200_000, dtype=torch.uint8)
    assert reader.middle(long, 224).shape == (1, 224, 224)  # else 10 GB


def test_an_edge_that_is_rounded_stays_within_the_image() -> None:
    square = torch.zeros(1, 29, 29, dtype=torch.uint8)
    assert reader.middle(square, 224).shape == (1, 224, 224)  # 224 * (29 / 224) > 29


def test_an_image_of_the_size_stays_as_it_is() -> None:
    pixels = torch.from_numpy(photo(height=20, width=20)).permute(2, 0, 1)
    assert torch.equal(reader.middle(pixels, 20, 0.875), pixels)
