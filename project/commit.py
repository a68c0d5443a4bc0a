"""The commit that a run is of, and what git does not have of it yet."""

import subprocess
from pathlib import Path
from typing import Any

import project
from project.recipes import CONFIGS, ENDINGS, HOME
from project.runs import DIFF

_LARGEST = 200_000  # bytes, of a new file whose text is kept


def commit() -> str | None:
    """Return the project's commit; None where git knows none."""
    return _git("rev-parse", "HEAD").strip() or None


def keep_changes(run_dir: Path) -> dict[str, Any]:
    """Write ``uncommitted.diff`` where something is not committed; return what the record says.

    New Python and YAML files of the package and of ``configs/`` are among it, though git does not
    know them yet: a network that was just written is what is trained.

    Args:
        run_dir: The run's folder.
    """
    if (found := commit()) is None:
        return {"git_commit": None, "git_dirty": None}
    diff = _new_files() + _git("diff", "HEAD")
    if diff:
        (run_dir / DIFF).write_text(diff)
    return {"git_commit": found, "git_dirty": bool(diff)}


def _new_files() -> str:
    """Say what is in the files that git does not know, as a diff that ``git apply`` takes."""
    folders = (project.__name__, CONFIGS.name)
    names = _git("ls-files", "-z", "--others", "--exclude-standard", "--", *folders).split("\0")
    found = [name for name in names if name.endswith((".py", *ENDINGS))]
    return "".join(_new_file(name) for name in found)


def _new_file(name: str) -> str:
    size = (HOME / name).stat().st_size
    text = _git("diff", "--no-index", "--", "/dev/null", name) if size <= _LARGEST else ""
    return text or f"New file whose text is not kept, {size:,} bytes: {name}\n"


def _git(*args: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(HOME), *args], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode in (0, 1) else ""  # 1: `diff --no-index` differs
