"""What a run keeps of changes that git does not have."""

import subprocess
from pathlib import Path

import pytest

from project import commit
from project.runs import DIFF

PACKAGE = commit.__name__.partition(".")[0]  # `make rename` gives it another name


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in git, everything committed."""
    for name in (f"{PACKAGE}/models/mlp.py", "configs/digits.yaml"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("old = 1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    me = ("-c", "user.name=me", "-c", "user.email=me@here")
    git(tmp_path, *me, "commit", "--quiet", "--no-verify", "-m", "first")
    monkeypatch.setattr(commit, "HOME", tmp_path)
    return tmp_path


def git(home: Path, *args: str) -> None:
    subprocess.run(["git", "-C", home, *args], check=True)


def kept(home: Path) -> str:
    """Make a run; return its diff."""
    (run := home / "logs").mkdir()
    said = commit.keep_changes(run)
    assert said["git_commit"]
    diff = (run / DIFF).read_text() if (run / DIFF).exists() else ""
    assert said["git_dirty"] == bool(diff)
    return diff


def test_of_what_is_committed_there_is_no_diff(home: Path) -> None:
    (home / PACKAGE / "models" / "notes.txt").write_text("nothing that trains\n")
    (home / "scratch.py").write_text("nor is this the project's\n")
    assert kept(home) == ""


def test_files_that_git_does_not_know_are_in_the_diff(home: Path) -> None:
    files = [home / PACKAGE / "models" / "tiny net.py", home / "configs" / "mine.yaml"]
    for file in [*files, home / PACKAGE / "models" / "mlp.py"]:
        file.write_text("new = 2\n")
    (home / "all.diff").write_text(kept(home))
    git(home, "checkout", "--quiet", PACKAGE)
    for file in files:
        file.unlink()
    git(home, "apply", "all.diff")
    for file in [*files, home / PACKAGE / "models" / "mlp.py"]:
        assert file.read_text() == "new = 2\n"


def test_a_large_new_file_is_named_only(home: Path) -> None:
    (home / PACKAGE / "table.py").write_text("x = 1\n" * 100_000)
    (home / PACKAGE / "tiny.py").write_text("new = 2\n")
    diff = kept(home)
    assert f"600,000 bytes: {PACKAGE}/table.py" in diff
    assert "+new = 2" in diff
    assert len(diff) < 1000
