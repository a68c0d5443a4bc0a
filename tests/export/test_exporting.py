"""From a run to a file in place, or to none."""

import errno
import os
from pathlib import Path

import pytest

from project.export import exporting
from project.export.model_card import write_model_card
from project.export.wanted import Wanted
from project.export.weights import write_weights
from project.mistakes import RunFailed, UserError
from project.runs import LoadedRun


def test_on_a_full_disk_an_earlier_file_stays(
    untrained: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_):
        path.write_text("half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "_write", full)
    file = untrained.run.path / "model.pt2"
    file.write_text("earlier")
    with pytest.raises(RunFailed, match="cannot be written: the disk is full"):
        exporting.export(untrained, Wanted(format="pt2"), lambda what: None)
    assert file.read_text() == "earlier"
    assert not list(file.parent.glob(".*"))


def test_a_read_only_folder_is_told(untrained: LoadedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("write_text", "mkdir", "unlink"):
        monkeypatch.setattr(Path, name, refused)
    monkeypatch.setattr(exporting, "_write", refused)
    with pytest.raises(RunFailed, match=r"read-only\.\nMake it writable.*--output FILE"):
        exporting.export(untrained, Wanted(format="pt2"), lambda what: None)
    with pytest.raises(UserError, match=r"MODEL_CARD\.md cannot be written.*\n.*--run FOLDER"):
        write_model_card(untrained)
    with pytest.raises(UserError, match=r"weights cannot be written.*\n.*--run FOLDER"):
        write_weights(untrained, untrained.run.path / "weights")
