"""One image is read as a data module reads those it trains on, wherever it comes from."""

import importlib
import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from project.data import DigitsDataModule, ImageFolderDataModule
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
    pixels = reader.read_pixels(file.getvalue(), 3, 10_000, at_least=None)
    assert np.array_equal(pixels.permute(1, 2, 0), expected)


def test_jpeg_that_torchvision_refuses_gets_pillows_reason():
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "JPEG")
    with pytest.raises(BadImage, match="cut off"):
        reader.read_pixels(file.getvalue()[:-50], 3, 10_000, at_least=None)
