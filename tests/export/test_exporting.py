"""From a run to a file in place, or to none."""

from pathlib import Path

import pytest

from project.export import exporting
from project.export.wanted import Wanted
from project.mistakes import RunFailed
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
    with pytest.raises(RunFailed, match="cannot be written: No space"):
        exporting.export(untrained, Wanted(format="pt2"), lambda what: None)
    assert file.read_text() == "earlier"
    assert not list(file.parent.glob(".*"))
