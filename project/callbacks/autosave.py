"""Checkpoints by steps or by the clock, so that a run that dies loses minutes, not an epoch."""

import time
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.utilities.types import STEP_OUTPUT

from project.callbacks.resumable import save_resumable

_FILE = "autosave.ckpt"


class Autosave(Checkpoint):
    """Keep one rolling checkpoint to resume from, apart from the best ones and the last.

    Saves after an optimizer step; where a validation follows, after that. The file is removed when
    the run is finished and its end is in another checkpoint.

    Args:
        dirpath: Folder of ``autosave.ckpt``.
        every_n_steps: Optimizer steps between two saves; null for none by steps.
        every_n_minutes: Minutes between two saves; null for none by the clock.

    Raises:
        ValueError: If an interval is not positive.
    """

    def __init__(
        self,
        dirpath: str,
        every_n_steps: int | None = None,
        every_n_minutes: float | None = 10,
    ) -> None:
        super().__init__()
        for name, value in (("steps", every_n_steps), ("minutes", every_n_minutes)):
            if value is not None and value <= 0:
                raise ValueError(f"every_n_{name} must be positive or null, got {value}")
        self.file = Path(dirpath) / _FILE
        self.every_n_steps = every_n_steps
        self.every_n_minutes = every_n_minutes
        self._saved_at = 0.0  # by time.monotonic
        self._began = 0  # step of the last save
        self._ask_at = 0  # step at which processes next agree on the time
        self._step = 0
        self._due = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._saved_at, self._due = time.monotonic(), False
        self._step = self._began = self._ask_at = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: STEP_OUTPUT,
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Save if it is time to."""
        if trainer.global_step == self._step:  # gradients are still being accumulated
            return
        done, self._step = self._step, trainer.global_step
        self._due = self._due or self._is_time(trainer, done)
        if self._due and not _validation_follows(trainer):
            self._save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save what had to wait for the validation."""
        if self._due and not trainer.sanity_checking:
            self._save(trainer)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Remove the file if another one has the end of the run."""
        others = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
        if any(c._last_global_step_saved == trainer.global_step for c in others):
            trainer.strategy.remove_checkpoint(self.file)

    def _save(self, trainer: L.Trainer) -> None:
        save_resumable(trainer, self.file)
        self._saved_at, self._due = time.monotonic(), False
        self._began = self._ask_at = self._step

    def _is_time(self, trainer: L.Trainer, done: int) -> bool:
        step = self._step
        if 0 <= trainer.max_steps <= step:  # no validation need follow, and it would be lost
            return True
        if self.every_n_steps and step // self.every_n_steps > done // self.every_n_steps:
            return True
        return self.every_n_minutes is not None and self._minutes_are_over(trainer)

    def _minutes_are_over(self, trainer: L.Trainer) -> bool:
        """Rank zero's clock counts; it is asked seldom, because asking makes the device wait."""
        assert self.every_n_minutes is not None
        seconds, step = time.monotonic() - self._saved_at, self._step
        wanted = 60 * self.every_n_minutes
        if trainer.world_size == 1:
            return seconds >= wanted
        if step < self._ask_at:
            return False
        # Half the steps that fit into the time that is left, at the speed so far.
        left = int((wanted - seconds) / max(seconds, 1e-3) * max(step - self._began, 1) / 2)
        over, left = trainer.strategy.broadcast((seconds >= wanted, left))
        self._ask_at = step + max(1, left)
        return bool(over)


def _validation_follows(trainer: L.Trainer) -> bool:
    fetcher = trainer.fit_loop._data_fetcher
    return fetcher is not None and bool(trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher))
