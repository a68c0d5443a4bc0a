"""Every kind of file that people have among their images, in one folder, through the command."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from make_bad_files import Zoo, write_zoo
from picture_folders import write

from project.cli import main
from project.data import ImageFolderDataModule

FIT = ["fit", "--config", "configs/image_folder.yaml", "--data.data_dir", "photos"]


@pytest.fixture
def zoo(tmp_path: Path) -> Zoo:
    """The folder ``photos`` with the class ``zoo``, which has all of them, and another one."""
    write(tmp_path / "photos", {"plain": 40})
    (tmp_path / "photos" / "zoo").mkdir()
    return write_zoo(tmp_path / "photos" / "zoo")


def told_files(message: str) -> list[str]:
    """Names of the files in a message, which start with two spaces."""
    lines = [line for line in message.splitlines() if line.startswith("  photos/")]
    return [line.split(": ")[0].removeprefix("  photos/zoo/") for line in lines]


def test_bad_files_stop_the_run_before_it_begins_with_one_message(
    zoo: Zoo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(FIT) == 2
    message = capsys.readouterr().err
    bad = zoo.wrong | zoo.lost
    assert f"{len(bad)} of {len(bad) + len(zoo.right) + 40} files cannot be used" in message
    named = told_files(message)
    assert len(named) == 10
    assert set(named) <= bad.keys()
    assert f"and {len(bad) - 10} more" in message
    assert "--data.on_error skip" in message
    assert not list(tmp_path.glob("logs/*/*/checkpoints"))


@pytest.mark.slow
def test_too_many_bad_files_are_not_skipped(zoo: Zoo, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT, "--data.on_error", "skip"]) == 2
    assert "more than the 5%" in capsys.readouterr().err


def test_every_other_file_is_trained_on_as_it_is(
    zoo: Zoo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in zoo.wrong | zoo.lost:
        (tmp_path / "photos" / "zoo" / name).unlink()
    data = ImageFolderDataModule("photos", image_size=None, num_workers=0)
    data.setup()
    seen = {}
    for split in (data.train_set, data.val_set, data.test_set):
        for index in range(len(split)):  # type: ignore[arg-type]
            image, label, *_ = split[index]  # type: ignore[index]
            seen[str(split.file(index))] = image.permute(1, 2, 0).numpy(), int(label)  # type: ignore[union-attr]
    pixels = {f"photos/zoo/{name}": image for name, image in zoo.right.items()}
    assert {path for path, (_, label) in seen.items() if label == 1} == pixels.keys()
    for path, image in pixels.items():
        assert np.array_equal(seen[path][0], image), path
    told = capsys.readouterr().out
    assert all(f"{n} {kind}" in told for kind, n in zoo.left_out.items() if kind[0] == ".")


@pytest.mark.slow
def test_a_few_bad_files_can_be_left_out(
    zoo: Zoo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [*zoo.wrong, *zoo.lost][2:]:
        (tmp_path / "photos" / "zoo" / name).unlink()
    write(tmp_path / "photos", {"more": 20}, first=100)
    assert main([*FIT, "--data.on_error", "skip", "--trainer.max_epochs", "1"]) == 0
    assert f"2 of {len(zoo.right) + 62} files cannot be used" in capsys.readouterr().out


@pytest.mark.slow
def test_a_file_damaged_while_training_ends_the_run_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "photos", {"a": 40, "b": 40})
    whole = ImageFolderDataModule.train_dataloader

    def later(self: ImageFolderDataModule) -> object:
        for split in ("a", "b"):
            for file in (tmp_path / "photos" / split).iterdir():
                file.write_bytes(file.read_bytes()[:90])
        return whole(self)

    monkeypatch.setattr(ImageFolderDataModule, "train_dataloader", later)
    settings = ["--data.in_memory", "false", "--data.num_workers", "2"]
    assert main([*FIT, *settings, "--trainer.num_sanity_val_steps", "0"]) == 2
    told = capsys.readouterr().err.strip().splitlines()[-2:]
    assert told[0].startswith("Error: photos/")
    assert "the file is cut off" in told[0]
