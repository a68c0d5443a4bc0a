"""What a run writes about itself: ``config.yaml``, ``run.json``, the diff; `runs.py` reads them."""

import json
import os
import platform
import socket
import subprocess
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only

import project
from project import report
from project.request import HOME, Request
from project.runs import CONFIG, DIFF, RECORD

PACKAGES = (
    "torch",
    "torchvision",
    "lightning",
    "torchmetrics",
    "tensorboard",
    "jsonargparse",
    "numpy",
)


class RunRecord(Callback):
    """Keeps the record of a run up to date while it trains.

    Args:
        request: The command line.
        config: The resolved configuration as YAML; words such as ``{run_dir}`` stay open in it, so
            that ``lightning fit --config RUN/config.yaml`` makes a new run.
        seed: The seed of the run.
        run_dir: The run's folder; None on all ranks but zero.
    """

    def __init__(self, request: Request, config: str, seed: int, run_dir: Path | None) -> None:
        self.request, self.config, self.seed = request, config, seed
        self.run_dir = run_dir or request.root
        self.record: dict[str, Any] = {}
        self.latest: dict[str, float] = {}

    @property
    def scores(self) -> dict[str, float]:
        """The validation scores of the best checkpoint."""
        found: dict[str, float] = self.record.get("scores", {})
        return found

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write configuration and record before the first step, on rank zero."""
        if stage != "fit" or not trainer.is_global_zero:
            return
        (self.run_dir / CONFIG).write_text(self.config)
        git = _git(self.run_dir)
        self.record = {
            "state": "running",
            "experiment": self.request.experiment,
            "command": self.request.command,
            "configs": list(self.request.configs),
            "seed": self.seed,
            **git,
            "versions": versions(),
            "hardware": hardware(trainer),
            "batch_size_per_process": getattr(
                getattr(trainer, "datamodule", None), "batch_size", None
            ),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": _now(),
            "ended": None,
            "best_score": None,
            "best_ckpt": None,
            "last_ckpt": None,
        }
        self.write()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what begins."""
        report.show_start(trainer, pl_module, self.run_dir)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember the scores that a checkpoint saved right after this would have."""
        if not trainer.sanity_checking:
            self.latest = {key: float(value) for key, value in trainer.callback_metrics.items()}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note which checkpoints the last epoch has left."""
        self.update(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note which checkpoints the last epoch has left."""
        self.update(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Say in the record that the run has failed, and why."""
        last_line = (str(exception).strip().splitlines() or [""])[-1]
        self.end("failed", error=f"{type(exception).__name__}: {last_line}")

    @rank_zero_only
    def update(self, trainer: Trainer) -> None:
        """Write the newest and the best checkpoint, relative to the folder, which may be moved."""
        checkpoint = trainer.checkpoint_callback
        if not isinstance(checkpoint, ModelCheckpoint):
            return
        best = self._relative(checkpoint.best_model_path)
        if best and best != self.record.get("best_ckpt"):
            score = checkpoint.best_model_score
            scores = {key: value for key, value in self.latest.items() if key.startswith("val/")}
            self.record |= {
                "best_ckpt": best,
                "best_score": None if score is None else float(score),
                "scores": scores,
            }
        self.record["last_ckpt"] = self._relative(checkpoint.last_model_path) or best
        self.write()

    @rank_zero_only
    def end(self, state: str, **facts: object) -> None:
        """Write how the run ended."""
        if self.record:
            self.record |= {"state": state, "ended": _now(), **facts}
            self.write()

    def write(self) -> None:
        """Replace the record in one step, so that a reader never sees half of it."""
        draft = self.run_dir / f".{RECORD}.{os.getpid()}"
        draft.write_text(json.dumps(self.record, indent=2) + "\n")
        os.replace(draft, self.run_dir / RECORD)

    def _relative(self, file: str) -> str | None:
        return os.path.relpath(file, self.run_dir) if file else None


def versions() -> dict[str, str]:
    """Return the versions of Python, of this project and of what it is built on."""
    found = {"python": platform.python_version(), project.__name__: project.__version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware(trainer: Trainer) -> dict[str, Any]:
    """Return what the run trains on."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu_cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "gpus": gpus,
        "accelerator": type(trainer.accelerator).__name__,
        "processes": trainer.world_size,
        "precision": str(trainer.precision),
    }


def _git(run_dir: Path) -> dict[str, Any]:
    """Return the commit of the project and keep what is not committed beside the record."""
    commit = _run_git("rev-parse", "HEAD").strip() or None
    diff = _run_git("diff", "HEAD") if commit else ""
    if diff:
        (run_dir / DIFF).write_text(diff)
    return {"git_commit": commit, "git_dirty": bool(diff) if commit else None}


def _run_git(*args: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(HOME), *args], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
