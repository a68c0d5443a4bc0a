"""Decoded images on the disk: the same batches, and never those of files that have changed."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
from picture_folders import picture, write

from project.data import ImageCSVDataModule, ImageFolderDataModule
from project.data.images import ImageDataset
from project.data.reading import pixel_cache
from project.data.reading.file_dataset import FileDataset, UnreadableFile
from project.data.reading.pixel_cache import CachedCrops, CachedImages
from project.mistakes import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "data", {"a": 20, "b": 20}, size=(16, 12))


def make(folder: Path, **settings) -> ImageFolderDataModule:
    settings = {"image_size": 8, "in_memory": False, "num_workers": 0, "cache": True} | settings
    place = {"cache_dir": str(folder.parent / "cache")} | settings
    data = ImageFolderDataModule(str(folder), batch_size=8, **place)
    data.setup()
    return data


def epoch(data: ImageFolderDataModule, number: int = 0) -> list[torch.Tensor]:
    loader = data.train_dataloader()
    loader.sampler.set_epoch(number)
    return [part for batch in loader for part in batch]


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def stores(folder: Path) -> list[Path]:
    return sorted((folder.parent / "cache").glob("*.pixels"))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are decoded for batches or the cache, here."""
    names, read = [], FileDataset._bytes

    def counting(self, index):
        names.append(self.file(index).name)
        return read(self, index)

    monkeypatch.setattr(FileDataset, "_bytes", counting)
    return names


# What it gives


def test_batches_constants_and_labels_are_those_of_the_files(folder: Path):
    plain, cached = make(folder, cache=False), make(folder)
    assert type(cached.train_set) is CachedImages
    assert (plain.mean, plain.std) == (cached.mean, cached.std)
    assert equal(epoch(plain), epoch(cached))
    for split in ("val_set", "test_set"):
        index = [*range(len(getattr(plain, split))), -1]
        parts = [getattr(data, split).__getitems__(index) for data in (plain, cached)]
        assert equal(*parts), split
    assert equal(list(plain.train_set[3]), list(cached.train_set[3]))


def test_a_later_run_decodes_nothing(folder: Path, decoded: list[str]):
    make(folder)
    assert len(decoded) == 40  # once, for all splits
    decoded.clear()
    epoch(make(folder))
    assert decoded == []


@pytest.mark.slow
def test_workers_and_main_process_make_the_same_batches(folder: Path):
    for settings in ({}, {"random_resized_crop": (0.3, 1.0)}):
        alone, helped = make(folder, **settings), make(folder, num_workers=2, **settings)
        assert equal(epoch(alone, 1), epoch(helped, 1))


@pytest.mark.slow
def test_a_resumed_epoch_goes_on_bit_for_bit(folder: Path):
    for settings in ({}, {"random_resized_crop": (0.3, 1.0)}):
        whole, part = (make(folder, **settings).train_dataloader() for _ in range(2))
        every, begun = list(whole), iter(part)
        next(begun)
        resumed = make(folder, **settings).train_dataloader()
        resumed.load_state_dict(part.state_dict())
        rest = list(resumed)
        assert len(rest) == len(every) - 1 > 1
        assert all(equal(*pair) for pair in zip(rest, every[1:], strict=True))


@pytest.mark.slow
def test_a_table_has_a_cache_for_its_splits(folder: Path, decoded: list[str]):
    lines = [
        f"{path.relative_to(folder.parent)},{path.parent.name},{('train', 'val')[number % 2]}"
        for number, path in enumerate(sorted(folder.rglob("*.png")))
    ]
    (folder.parent / "table.csv").write_text("\n".join(["path,label,split", *lines]))

    def table(**settings) -> ImageCSVDataModule:
        settings |= {"image_size": 8, "in_memory": False, "num_workers": 0, "batch_size": 8}
        settings |= {"cache_dir": str(folder.parent / "cache")}
        data = ImageCSVDataModule(str(folder.parent / "table.csv"), **settings)
        data.setup("fit")
        return data

    plain = epoch(table())
    table(cache=True)
    decoded.clear()
    assert equal(epoch(table(cache=True)), plain)
    assert decoded == []


@pytest.mark.slow
def test_a_process_that_gets_a_split_finds_it_in_the_file(folder: Path):
    data = make(folder)
    sent = pickle.dumps(data.train_set)
    assert equal(list(pickle.loads(sent)[0]), list(data.train_set[0]))
    stores(folder)[0].write_bytes(b"")
    with pytest.raises(UserError, match="deleted or replaced"):
        pickle.loads(sent)


@pytest.mark.slow
def test_copies_are_kept_once(folder: Path):
    picture(0, (16, 12)).save(folder / "a" / "copy.png")
    data = make(folder)
    assert len(data.train_set.store.rows) == 40


def test_images_that_fit_are_kept_in_memory_instead(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    data = make(folder, in_memory=None)
    assert isinstance(data.train_set, ImageDataset)
    assert stores(folder) == []
    assert "not needed" in capsys.readouterr().out


def test_it_says_once_where_it_lies_and_how_large_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    make(folder)
    said = capsys.readouterr().out
    assert "Cache  40 images in" in said
    assert str(stores(folder)[0]) in said
    assert "0.0 MB; it may be deleted" in said
    make(folder)
    assert "Cache" not in capsys.readouterr().out


@pytest.mark.slow
def test_another_folder_can_be_named(folder: Path):
    make(folder, cache=str(folder.parent / "fast"), cache_dir=None)
    assert len(list((folder.parent / "fast").glob("*.pixels"))) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"image_size": None}, "cache needs images of one size"), ({"cache_dir": None}, "cache_dir")],
)
def test_what_cannot_be_cached_is_refused(folder: Path, settings: dict, said: str):
    with pytest.raises(ValueError, match=said):
        make(folder, **settings, **({} if "image_size" in settings else {"image_size": 8}))


# Random crops


def test_random_crops_have_the_boxes_of_the_files(tmp_path: Path):
    for number in range(8):
        # Smooth: what differs is not the resampling.
        ramp = np.linspace(10 * number, 250, 96 * 64).reshape(96, 64).astype(np.uint8)
        path = tmp_path / "data" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(ramp if number % 3 else ramp.T.copy()).convert("RGB").save(path)
    settings = {"image_size": 32, "random_resized_crop": (0.3, 1.0), "in_channels": 3}
    plain, cached = (make(tmp_path / "data", cache=cache, **settings) for cache in (False, True))
    assert isinstance(cached.train_set, CachedCrops)
    for number in range(3):
        index = [(number, at) for at in range(len(plain.train_set))]
        one, other = (d.train_set.__getitems__(index)[0].int() for d in (plain, cached))
        assert (one - other).abs().max() <= 6  # of 255: two pixels of the ramp
    first, second = (cached.train_set.__getitems__([(n, 0)])[0] for n in (0, 1))
    assert not torch.equal(first, second)


def test_boxes_are_drawn_in_the_size_of_the_file_even_if_it_is_decoded_smaller(tmp_path: Path):
    for number in range(8):
        path = tmp_path / "data" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number, (401, 303)).save(path)
    cached = make(tmp_path / "data", image_size=8, random_resized_crop=(0.3, 1.0))
    sizes = cached.train_set.store.rows[["height", "width"]].tolist()
    assert set(sizes) == {(303, 401)}


@pytest.mark.slow
def test_only_training_images_are_kept_whole(folder: Path):
    make(folder, random_resized_crop=(0.3, 1.0))
    sides = sorted(int(np.sqrt(path.stat().st_size // 1000)) for path in stores(folder))
    assert len(sides) == 2


# What has changed


def test_only_changed_and_new_files_are_decoded_again(folder: Path, decoded: list[str]):
    make(folder)
    picture(100, (16, 12)).save(folder / "a" / "000.png")
    picture(101, (16, 12)).save(folder / "b" / "new.png")
    (folder / "b" / "001.png").unlink()
    decoded.clear()
    cached = make(folder)
    assert sorted(decoded) == ["000.png", "new.png"]
    assert equal(epoch(cached), epoch(make(folder, cache=False)))
    assert len(cached.train_set.store.rows) == 40  # what is gone is left out


@pytest.mark.slow
def test_a_moved_folder_of_the_same_name_is_no_reason_to_decode(folder: Path, decoded: list[str]):
    make(folder)
    decoded.clear()
    (folder / "a" / "000.png").rename(folder / "a" / "zzz.png")
    make(folder)
    assert decoded == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"image_size": 7}, {"in_channels": 1}, {"crop_fraction": 0.8}, {"max_pixels": 999}]
)
def test_every_setting_has_a_cache_of_its_own(folder: Path, settings: dict):
    make(folder)
    cached = make(folder, **settings)
    assert len(stores(folder)) == 2
    assert equal(epoch(cached), epoch(make(folder, **settings, cache=False)))


@pytest.mark.slow
def test_another_decoder_makes_another_cache(folder: Path, monkeypatch: pytest.MonkeyPatch):
    make(folder)
    monkeypatch.setattr("PIL.__version__", "99.0")
    make(folder)
    assert len(stores(folder)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b"", b"other", "cut", "flipped"])
def test_a_damaged_cache_is_made_again(folder: Path, damage: bytes | str, decoded: list[str]):
    make(folder)
    (path,) = stores(folder)
    whole = path.read_bytes()
    flipped = bytes([*whole[:50], whole[50] ^ 1, *whole[51:]])
    path.write_bytes({"cut": whole[:-1], "flipped": flipped}.get(damage, damage))
    decoded.clear()
    make(folder)
    assert len(decoded) == 40
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_a_file_that_changes_between_check_and_decoding_stops_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    read = FileDataset._bytes
    changed = (folder / "a" / "001.png").read_bytes()
    monkeypatch.setattr(
        FileDataset,
        "_bytes",
        lambda self, at: changed if self.file(at).name == "000.png" else read(self, at),
    )
    with pytest.raises(UnreadableFile, match="it has changed since it was checked"):
        make(folder)
    assert stores(folder) == []
    assert list((folder.parent / "cache").glob("*.draft")) == []


# What can happen to it


def test_a_full_disk_is_said_and_leaves_the_old_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    make(folder)
    (path,) = stores(folder)
    before = path.read_bytes()
    picture(100, (16, 12)).save(folder / "a" / "000.png")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"No space left on device\).\nSet --data.cache"):
        make(folder)
    assert path.read_bytes() == before
    assert list((folder.parent / "cache").glob("*.draft")) == []


LIMITED = """
import resource, sys
from project.data import ImageFolderDataModule
from project.data.reading import pixel_cache
if sys.argv[2] == "late":
    pixel_cache._reserve = lambda *_: None
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
ImageFolderDataModule(sys.argv[1], image_size=8, in_memory=False, num_workers=0, cache=True,
    cache_dir=sys.argv[1] + "/../cache").setup()
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["early", "late"])
def test_a_limit_on_the_size_of_files_is_said(folder: Path, when: str):
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, str(folder), when], capture_output=True, text=True
    )
    assert "project.mistakes.UserError: The cache of decoded images" in ran.stderr
    assert "File too large" in ran.stderr
    assert stores(folder) == []
    assert list((folder.parent / "cache").glob("*.draft")) == []


WRITING = """
import sys, time
from project.data import ImageFolderDataModule
from project.data.reading.file_dataset import FileDataset
read = FileDataset._bytes
def slowly(self, index):
    print("x", flush=True)
    time.sleep(0.02)
    return read(self, index)
FileDataset._bytes = slowly
data = ImageFolderDataModule(sys.argv[1], image_size=8, in_memory=False, num_workers=0, cache=True,
    cache_dir=sys.argv[1] + "/../cache")
data.setup()
print("done", int(data.train_set[0][0].sum()))
"""


def start(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", WRITING, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_run_killed_while_it_writes_leaves_nothing_that_is_read(folder: Path):
    running = start(folder)
    for _ in range(5):
        assert running.stdout.readline() == "x\n"
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert stores(folder) == []
    assert equal(epoch(make(folder)), epoch(make(folder, cache=False)))
    assert list((folder.parent / "cache").glob("*.draft")) == []


@pytest.mark.slow
def test_of_two_runs_at_once_one_writes(folder: Path):
    running = [start(folder) for _ in range(2)]
    said = [process.communicate()[0] for process in running]
    assert sum(text.count("x\n") for text in said) == 40
    assert len({text.splitlines()[-1] for text in said}) == 1
    assert said[0].splitlines()[-1].startswith("done")


@pytest.mark.slow
def test_a_cache_that_was_replaced_goes_on_for_those_that_have_it(folder: Path):
    data = make(folder)
    before = epoch(data)
    for number, path in enumerate(folder.rglob("*.png")):
        picture(1000 + number, (16, 12)).save(path)
    make(folder)
    assert equal(epoch(data), before)


@pytest.mark.slow
def test_a_complete_cache_is_used_where_nothing_can_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    before = epoch(make(folder))

    def refuse(*_):
        raise AssertionError("it was locked")

    monkeypatch.setattr(pixel_cache, "lock", refuse)
    assert equal(epoch(make(folder)), before)


@pytest.mark.slow
def test_a_place_that_cannot_be_written_is_said(folder: Path):
    (folder.parent / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written") as told:
        make(folder, cache=str(folder.parent / "file" / "cache"))
    assert "Set --data.cache" in str(told.value)
