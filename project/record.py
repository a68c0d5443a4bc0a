"""What a run writes about itself: ``config.yaml``, ``run.json``, the diff; `runs.py` reads them."""

import contextlib
import json
import os
import platform
import socket
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, Callback, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only

import project
from project import cores, report
from project.commit import commit, keep_changes
from project.disk import writing
from project.endings import Preempted, lost_rank
from project.mistakes import Meaning, RunFailed, UserError, meaning
from project.request import Request
from project.resume import stopped_early, timed_out
from project.runs import CONFIG, DIFF, RECORD, process_began

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
        config: The resolved configuration; words such as ``{run_dir}`` stay open in it, so
            that ``lightning fit --config RUN/config.yaml`` makes a new run.
        seed: The seed of the run.
        run_dir: The run's folder; None on all ranks but zero.
        checkpoint: Knows which checkpoint is the best one.
    """

    def __init__(
        self,
        request: Request,
        config: dict[str, Any],
        seed: int,
        run_dir: Path | None,
        checkpoint: ModelCheckpoint | None = None,
    ) -> None:
        self.request, self.config, self.seed = request, config, seed
        self.run_dir = run_dir or request.root
        self.checkpoint = checkpoint
        self.record: dict[str, Any] = {}
        self.latest: dict[str, float] = {}  # validation scores
        self.scores_of: dict[str, dict[str, float]] = {}  # those of the best checkpoint, by name
        self.is_behind = False  # whether a checkpoint may have come since the last writing

    @property
    def scores(self) -> dict[str, float]:
        """The validation scores of the best checkpoint."""
        found: dict[str, float] = self.record.get("scores", {})
        return found

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write configuration and record before the first step, on rank zero."""
        if stage != "fit" or not trainer.is_global_zero:
            return
        self._write_config()
        if self.request.run is not None:
            self.record = self.request.run.record | _process()
            life = {"time": _now(), "command": self.request.command, "from": _name(self.request)}
            life["git_commit"] = commit()
            self.record |= {"state": "running", "resumed": [*self.record.get("resumed", []), life]}
            return self.write()
        with writing(self.run_dir / DIFF):
            git = keep_changes(self.run_dir)
        self.record = _process() | {
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
            "started": _now(),
            "ended": None,
            "epoch": 0,
            "step": 0,
            "best_score": None,
            "best_ckpt": None,
            "last_ckpt": None,
        }
        self.write()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what begins."""
        if trainer.is_global_zero:
            self._note_batch_size(getattr(trainer, "datamodule", None))
        report.show_start(trainer, pl_module, self.run_dir)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let every epoch have a point in the curves, also where it has few steps."""
        steps = trainer.num_training_batches / trainer.accumulate_grad_batches
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        trainer.log_every_n_steps = int(min(every, max(1, steps)))  # type: ignore[attr-defined]

    def _note_batch_size(self, datamodule: object) -> None:
        """Put down the batch size that a BatchSizeFinder has found, so that none is sought again.

        It has run by now: Lightning calls it first.
        """
        settings = self.config["data"].get("init_args", {})  # a class without arguments has none
        size = getattr(datamodule, "batch_size", None)
        if size is None or settings.get("batch_size", size) == size:
            return
        settings["batch_size"] = self.record["batch_size_per_process"] = size
        trainer = self.config["trainer"]
        finder = BatchSizeFinder.__name__
        own = [c for c in trainer["callbacks"] or [] if not c["class_path"].endswith(finder)]
        trainer["callbacks"] = own or None
        self._write_config()
        self.write()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember the scores that a checkpoint saved right after this would have."""
        if not trainer.sanity_checking:
            found = trainer.callback_metrics.items()
            self.latest = {key: float(value) for key, value in found if key.startswith("val/")}
            self.is_behind = True

    def on_train_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Note which checkpoints the validation within the epoch has left."""
        if self.is_behind:
            self.update(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return the scores of the best checkpoint, which may stay the best after a resume."""
        return {"scores_of": self.scores_of, "latest": self.latest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Know again what the checkpoint at hand knew."""
        self.scores_of, self.latest = state_dict["scores_of"], state_dict["latest"]

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note which checkpoints the last epoch has left."""
        self.update(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note how far it came, and which checkpoints the last epoch has left."""
        seconds = timed_out(trainer)
        stopped = stopped_early(trainer) and seconds is None
        self.record |= {"stopped_early": stopped, "timed_out": seconds}
        self.update(trainer)
        done = trainer.fit_loop.epoch_loop.batch_progress.current.completed
        if trainer.is_global_zero and 0 < done < trainer.num_training_batches:
            self.record["epoch"] -= 1  # it ended within one, which Lightning counts

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Say in the record how the run has ended, and why."""
        if isinstance(exception, Preempted):
            saved = exception.checkpoint
            last = {"last_ckpt": self._relative(saved)} if saved else {}
            with contextlib.suppress(UserError):  # a full disk, which would hide the checkpoint
                self.update(trainer)
                self.end("preempted", **last)
            return
        if reason := lost_rank(exception):
            exception.add_note(Meaning(reason))
        self.failed(exception)

    def failed(self, reason: BaseException | str) -> None:
        """Say in the record that the run has failed, unless it says already how it ended."""
        if self.record.get("state") != "running":
            return
        if isinstance(reason, BaseException):
            kind, said = type(reason).__name__, str(reason).strip().splitlines() or [""]
            # Messages of ours begin with what happened; those of libraries end with it.
            line = said[0] if isinstance(reason, UserError | RunFailed) else said[-1]
            reason = (meaning(reason) or f"{kind}: {line}").splitlines()[0]
        with contextlib.suppress(UserError):  # a full disk may be why it failed
            self.end("failed", error=reason.removesuffix(": "))

    @rank_zero_only
    def update(self, trainer: Trainer) -> None:
        """Write the newest and the best checkpoint, relative to the folder, which may be moved."""
        self.is_behind = False
        self.record |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
        checkpoint = self.checkpoint
        if checkpoint is None:
            return self.write()
        best = self._relative(checkpoint.best_model_path)
        if best:
            # New scores belong to a checkpoint that is new.
            self.scores_of = {best: self.scores_of.get(best, self.latest)}
            score = checkpoint.best_model_score
            self.record |= {
                "best_ckpt": best,
                "best_score": None if score is None else float(score),
                "scores": self.scores_of[best],
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
        self._replace(RECORD, json.dumps(self.record, indent=2) + "\n")

    def _write_config(self) -> None:
        self._replace(CONFIG, yaml.safe_dump(self.config, sort_keys=False))

    def _replace(self, name: str, text: str) -> None:
        file, draft = self.run_dir / name, self.run_dir / f".{name}.{os.getpid()}"
        with writing(file):
            try:
                draft.write_text(text)
                os.replace(draft, file)
            except OSError:
                draft.unlink(missing_ok=True)
                raise

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
        "cpu_cores": cores.usable(),
        "gpus": gpus,
        "accelerator": type(trainer.accelerator).__name__,
        "processes": trainer.world_size,
        "precision": str(trainer.precision),
    }


def _process() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "pid_began": process_began(pid)}


def _name(request: Request) -> str | None:
    return request.ckpt_path.name if request.ckpt_path else None


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
