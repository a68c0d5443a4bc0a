import io
import logging
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

sys.path.insert(0, str(Path(__file__).parent))
from make_bad_files import (
    Zoo,
    bad_files,
    bomb,
    deep,
    encode,
    exif,
    good_files,
    photo,
    png,
    reference,
    scaled,
    write_zoo,
)

from project.data.reading.image_file import BadImage, read_header, read_image

GOOD, BAD = good_files(), bad_files()


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Zoo]:
    folder = tmp_path_factory.mktemp("zoo")
    return folder, write_zoo(folder)


def test_every_good_file_is_right_to_the_pixel(zoo: tuple[Path, Zoo]) -> None:
    folder, files = zoo
    for name, pixels in files.right.items():
        image = read_image(folder / name)
        assert image.mode == "RGB", name
        assert np.array_equal(np.asarray(image), pixels), name


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_its_reason(name: str) -> None:
    data, reason = BAD[name]
    with pytest.raises(BadImage, match=reason):
        read_image(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP", "PPM"])
def test_a_cut_file_is_refused_or_whole_wherever_it_is_cut(kind: str) -> None:
    data = encode(photo(height=9, width=12), kind)
    pixels = reference(data)
    for length in range(len(data)):
        try:
            image = read_image(data[:length])
        except BadImage:
            continue
        assert np.array_equal(np.asarray(image), pixels), length  # only its end mark is missing


def test_no_flipped_bit_of_a_png_slips_in() -> None:
    # A smooth one: Pillow checks no checksum of pixels, and zlib's comes after the last row.
    data = encode(np.tile(np.arange(40, dtype=np.uint8)[:, None], (1, 40)))
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadImage):
            read_image(bytes(changed))


def test_a_cut_file_is_refused_where_others_allow_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    cut = GOOD["plain.jpg"][:-100]
    assert reference(cut).shape == (24, 36, 3)  # Pillow fills up with grey
    with pytest.raises(BadImage, match="cut off"):
        read_image(cut)


@pytest.mark.parametrize("name", [name for name in GOOD if name.startswith("held_")])
def test_an_upright_image_is_not_turned_again(name: str) -> None:
    image = read_image(GOOD[name])
    assert image.getexif().get(0x0112, 1) == 1


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("it was decoded"))
    with warnings.catch_warnings(action="error"):
        for side in (12_000, 20_000):
            with pytest.raises(BadImage, match="pixels"):
                read_image(bomb(side))


def test_max_pixels_counts() -> None:
    data = encode(photo(height=10, width=10))
    assert read_image(data, max_pixels=100).size == (10, 10)
    with pytest.raises(BadImage, match=r"10 x 10 = 100 pixels, more than the 99 allowed"):
        read_image(data, max_pixels=99)


def test_nothing_is_printed_or_warned(
    zoo: tuple[Path, Zoo], capfd: pytest.CaptureFixture[str]
) -> None:
    folder, files = zoo
    with warnings.catch_warnings(action="error"):
        for name in [*files.right, *files.wrong]:
            try:
                read_image(folder / name)
            except BadImage:
                continue
    assert capfd.readouterr() == ("", "")


def test_what_pillow_logs_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's
    logging.getLogger("PIL.TiffImagePlugin").error("More samples per pixel than can be decoded")
    assert capfd.readouterr().err == ""


def test_grey_of_16_bits_keeps_every_step() -> None:
    every = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    assert np.array_equal(np.asarray(read_image(encode(every))), scaled(every))


def test_grey_of_16_bits_whose_zero_is_white_is_turned_round() -> None:
    normal, inverted = (encode(deep(), "TIFF", tiffinfo={262: kind}) for kind in (1, 0))
    pixels = np.asarray(read_image(inverted, in_channels=1))
    assert np.array_equal(pixels, 255 - np.asarray(read_image(normal, in_channels=1)))


def test_one_channel_is_pillows_grey() -> None:
    image = read_image(GOOD["plain.jpg"], in_channels=1)
    expected = Image.open(io.BytesIO(GOOD["plain.jpg"])).convert("L")
    assert image.mode == "L"
    assert np.array_equal(np.asarray(image), np.asarray(expected))


@pytest.mark.parametrize("name", ["grey.jpg", "grey.png", "one_bit.png", "grey_alpha.png"])
def test_a_grey_file_is_grey(name: str) -> None:
    assert read_header(GOOD[name]).grey


@pytest.mark.parametrize("name", ["plain.jpg", "palette.png", "alpha.png", "cmyk.jpg"])
def test_a_coloured_file_is_not_grey(name: str) -> None:
    assert not read_header(GOOD[name]).grey


@pytest.mark.parametrize("kind", ["PNG", "GIF", "TIFF", "BMP"])
@pytest.mark.parametrize("grey", [True, False])
def test_a_palette_is_grey_if_all_its_colours_are(kind: str, grey: bool) -> None:
    image = Image.fromarray(photo(channels=1) // 64, "P")
    image.putpalette([9, 9, 9, 200, 200, 200, 3, 3, 3, 77, 77, 77 if grey else 78])
    assert read_header(encode(image, kind)).grey is grey


def test_grey_of_16_bits_is_grey_with_and_without_transparency() -> None:
    assert read_header(encode(deep())).grey
    assert read_header(png(1, 1, 16, 4, bytes(5))).grey
    assert not read_header(png(1, 1, 16, 2, bytes(7))).grey


def test_a_header_is_read_without_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("it was decoded"))
    for name in ("plain.jpg", "palette.png", "moving.gif", "packed.tiff", "lossy.webp"):
        assert read_header(GOOD[name]) == (36, 24, False)


def test_a_jpeg_is_decoded_smaller_but_not_too_small() -> None:
    data = encode(photo(height=320, width=480), "JPEG", exif=exif(6))
    assert read_image(data, at_least=80).size == (80, 120)
    assert read_image(data, at_least=81).size == (160, 240)
    assert read_image(data, at_least=300).size == (320, 480)


@pytest.mark.parametrize(
    ("path", "reason"),
    [("gone.png", "no such file"), ("folder", "a folder"), ("zero\0.png", "cannot be read")],
)
def test_a_path_that_cannot_be_read_is_a_bad_image(path: str, reason: str) -> None:
    Path("folder").mkdir()
    with pytest.raises(BadImage, match=reason):
        read_image(path)


def test_a_forbidden_file_is_a_bad_image(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.png").write_bytes(encode(photo()))

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)  # a mode of 0 does not stop root
    with pytest.raises(BadImage, match="permission denied"):
        read_image("mine.png")


@pytest.mark.parametrize("name", sorted(GOOD))
def test_what_is_read_in_colour_is_read_in_grey(name: str) -> None:
    image = read_image(GOOD[name], in_channels=1)
    assert image.mode == "L"
    assert image.size == read_image(GOOD[name]).size
