"""A run is one folder, ``logs/<experiment>/<run>/``: where it is, what is in it, which is best."""

import importlib
import json
import os
import re
import shutil
import socket
import warnings
import zipfile
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from project.checkpoints import is_intact, saved_at
from project.disk import writing
from project.loaded_run import LoadedRun as LoadedRun
from project.mistakes import UserError, did_you_mean

LOGS = "logs"
RECORD = "run.json"
CONFIG = "config.yaml"
DIFF = "uncommitted.diff"


@dataclass(frozen=True)
class Run:
    """One run's folder, read without torch.

    Args:
        path: The folder that holds ``run.json`` and ``config.yaml``.
    """

    path: Path

    @cached_property
    def record(self) -> dict[str, Any]:
        """What ``run.json`` says, or nothing where it is missing or unreadable."""
        try:
            content = json.loads((self.path / RECORD).read_text())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    @property
    def experiment(self) -> str:
        """The recipe's name; the folder above where the record does not say."""
        return str(self.record.get("experiment", self.path.parent.name))

    @property
    def config(self) -> Path:
        """The whole resolved configuration."""
        return self.path / CONFIG

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``preempted`` or ``failed``; without its process: failed."""
        state = str(self.record.get("state", "failed"))
        return "failed" if state == "running" and not _alive(self.record) else state

    @property
    def other_process(self) -> int | None:
        """The process that trains this run here and now, unless it is this one."""
        record = self.record
        here = record.get("host") == socket.gethostname() and record.get("pid_began")
        if not here or self.state != "running" or record["pid"] == os.getpid():
            return None
        return int(record["pid"])

    def checkpoint(self, which: str) -> Path:
        """Return the file of the ``best`` or the ``last`` checkpoint, wherever the folder is now.

        Raises:
            UserError: If the run has no such checkpoint.
        """
        if which not in ("best", "last"):
            raise UserError(f"A checkpoint is best, last or a file, got {which!r}.")
        recorded = self.record.get(f"{which}_ckpt")
        files = self.checkpoints()
        if which == "last" and files:
            return max(files, key=saved_at)
        if recorded and (self.path / recorded).is_file():
            return Path(self.path, recorded)
        raise UserError(
            f"Run {self.path} (state: {self.state}) has no {which} checkpoint."
            + (" Take --ckpt_path last." if files else " Train one: lightning fit")
        )

    def preferred(self) -> str:
        """Return ``best``, or ``last`` for a run that has no best, e.g. without validation."""
        return "best" if self.record.get("best_ckpt") or not self.checkpoints() else "last"

    def newest_intact(self) -> Path:
        """Return the newest checkpoint that is whole; a damaged one is named and passed over.

        Raises:
            UserError: If there is none.
        """
        ages = {file: saved_at(file) for file in self.checkpoints()}
        # Those that do not say how old they are first, so that they are named if they are damaged.
        order = sorted(ages, key=lambda file: (ages[file][0] < 0, ages[file]), reverse=True)
        for file in order:
            if not is_intact(file):
                print(f"Passed over {file}: it is damaged.")
            elif ages[file][0] >= 0:
                return file
        raise UserError(
            f"Run {self.path} has no checkpoint to go on from.\n"
            f"Begin it again: lightning fit --config {self.config}"
        )

    def checkpoints(self) -> list[Path]:
        """Return the checkpoint files, oldest first."""
        files = [f for f in (self.path / "checkpoints").glob("*.ckpt") if f.is_file()]
        return sorted(files, key=lambda f: f.stat().st_mtime_ns)


def _alive(record: dict[str, Any]) -> bool:
    """Whether the process that wrote the record still runs; yes if it is on another host."""
    if record.get("host") != socket.gethostname():
        return True
    try:
        os.kill(int(record.get("pid", 0)), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError):
        pass
    # Numbers of processes come again, after a reboot soon.
    began = record.get("pid_began")
    return began is None or began == process_began(record["pid"])


def process_began(pid: int) -> str | None:
    """When a process began, in the system's ticks since it booted; None where it does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return "ended" if fields[0] == "Z" else fields[19]  # a zombie: nobody has asked how it was
    except (OSError, IndexError):
        return None


def safe_name(name: str) -> str:
    """Turn a name into one that file systems, URLs and TensorBoard's filters take unchanged."""
    return re.sub(r"[^\w.+=-]+", "-", name, flags=re.ASCII).strip("-.") or "run"


def new_run(root: Path, experiment: str) -> Path:
    """Make the folder of a new run; its name is the time, so that names sort."""
    stem = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    with writing(root):
        for attempt in range(1, 1000):
            path = root / experiment / (stem if attempt == 1 else f"{stem}_{attempt}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:  # another run began in the same second
                continue
            return path
    raise RuntimeError(f"1000 runs of {experiment} in one second under {root}")


def discard_unrecorded(path: Path | None, recorded: bool = False) -> None:
    """Remove the folder of a run that never began, and the folders above it that hold nothing.

    Args:
        path: A folder that ``new_run`` has made for this process; one with a record stays.
        recorded: Remove that, too: a setting was refused before the first step.
    """
    if path is None or ((path / RECORD).exists() and not recorded):
        return
    shutil.rmtree(path, ignore_errors=True)
    for folder in path.parents[:2]:
        try:
            folder.rmdir()
        except OSError:
            return


def all_runs(root: Path, experiment: str | None = None) -> list[Run]:
    """Return the runs below ``root``, of one experiment or of all, oldest first."""
    found = [Run(f.parent) for f in root.glob(f"{experiment or '*'}/*/{RECORD}")]
    return sorted(found, key=lambda run: (str(run.record.get("started", "")), run.path.name))


def find_run(spec: str | Path, root: Path | str = LOGS, experiment: str | None = None) -> Run:
    """Find a run by its folder, or the newest by the word ``last``.

    Args:
        spec: A run's folder, or ``last``.
        root: Where ``last`` looks.
        experiment: Where given, ``last`` is the newest run of this experiment.

    Raises:
        UserError: If there is no such run.
    """
    if str(spec) != "last":
        return _run_at(Path(spec), Path(root))
    runs = [run for run in all_runs(Path(root), experiment) if run.checkpoints()]
    if runs:
        return runs[-1]
    which = f"run of {experiment}" if experiment else "run"
    others = [run for run in all_runs(Path(root)) if run.checkpoints()]
    hint = "Train one (lightning fit), or go to the folder in which you have trained."
    if others:
        hint = f"The newest of all is {others[-1].path}: add --run last."
    raise UserError(f"No {which} with a checkpoint in {Path(root).absolute()}.\n{hint}")


def is_run(path: Path) -> bool:
    """Whether a folder is that of a run."""
    return (path / CONFIG).is_file()


def _run_at(path: Path, root: Path) -> Run:
    if is_run(path):
        return Run(path)
    if path.name == "checkpoints" and is_run(path.parent):
        return Run(path.parent)
    raise UserError(f"{path} is not a run: {_why_no_run(path, root)}")


def _why_no_run(path: Path, root: Path) -> str:
    """Say what a path is instead, and what to give."""
    rule = (
        f"\nA run is a folder that lightning fit has made, with {CONFIG} and checkpoints/ in it, "
        "e.g. logs/digits/2026-01-31_12-00-00; last is the newest."
    )
    if path.is_file():
        owners = [folder for folder in [*path.parents][:2] if is_run(folder)]
        return f"it is a file of one. Give {owners[0]}" if owners else f"it is a file.{rule}"
    if not path.exists():
        hint = did_you_mean(str(path), [str(run.path) for run in all_runs(root)])
        return f"there is no such folder.{hint or rule}"
    inside = all_runs(path) or all_runs(path.parent, path.name)
    if inside:
        return f"it is a folder of runs. The newest is {inside[-1].path}"
    return f"there is no {CONFIG} in it.{rule}"


def load_run(
    run: str | Path = "last", ckpt_path: str = "best", root: str | Path = LOGS
) -> LoadedRun:
    """Load a run's weights and data module; no code runs but that of the classes it names.

    Args:
        run: A run's folder, or ``last``.
        ckpt_path: ``best``, ``last`` or a file.
        root: Where ``last`` looks.

    Raises:
        UserError: If there is no such run or checkpoint.
    """
    import yaml

    from project.pretrained import left_out

    found = find_run(run, root)
    file = found.checkpoint(ckpt_path) if ckpt_path in ("best", "last") else Path(ckpt_path)
    check_loadable(file)
    config = yaml.safe_load(found.config.read_text())
    # Lightning refuses classes that only a checkpoint names; the configuration is the user's own.
    task_class, data_class = (find_class(config[key]["class_path"]) for key in ("model", "data"))
    with left_out():
        task = task_class.load_from_checkpoint(file, map_location="cpu", weights_only=True)
    datamodule = data_class.load_from_checkpoint(file, map_location="cpu", weights_only=True)
    return LoadedRun(found, task.eval(), datamodule, file)


def check_loadable(file: Path) -> None:
    """Refuse what is not a checkpoint, and what would run code if Python's pickle loaded it.

    Raises:
        UserError: If it is one of these.
    """
    import torch

    try:
        with warnings.catch_warnings(action="ignore"):  # about a pickle that torch did not write
            # With weights_only, code is found and not run; with mmap, no weights are read.
            torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except FileNotFoundError:
        raise UserError(f"No checkpoint {file}.") from None
    except Exception as error:  # what torch raises depends on the content, whatever that is
        if found := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise UserError(
                f"{file} is refused: it holds {found[1]}, which may run code when it is loaded.\n"
                "A checkpoint holds tensors and plain values. If you trust where it is from, save "
                "its state_dict alone: --init_from takes that."
            ) from None
        raise UserError(f"{file} is not a checkpoint, or it is damaged.") from None


def find_class(path: str) -> type[Any]:
    """Import a class by its path, e.g. ``project.models.MLP``."""
    module, name = path.rsplit(".", 1)
    found: type[Any] = getattr(importlib.import_module(module), name)
    return found
