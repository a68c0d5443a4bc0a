"""Short trainings on copies of a task: how fast they are and what they need."""

import contextlib
import copy
import io
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from project.batches import samples_of
from project.mistakes import RunFailed
from project.short_training import quiet_trainer


@dataclass(frozen=True)
class Speed:
    """How fast a training was.

    Args:
        rate: Samples per second.
        step: Seconds of a step.
        memory: Bytes that it needed more than there was before, at most.
    """

    rate: float
    step: float
    memory: int


class Bench:
    """Trains copies of a task for some steps; the task and the data module stay as they are.

    Args:
        task: Stays as it is.
        data: Stays as it is.
        settings: The trainer's, as configured.
        seed: What every training begins with.
        folder: Where trainings may write.
    """

    def __init__(
        self,
        task: L.LightningModule,
        data: L.LightningDataModule,
        settings: dict[str, Any],
        seed: int,
        folder: Path,
    ) -> None:
        self.task, self.settings, self.seed, self.folder = task, settings, seed, folder
        self.data = copy.copy(data)
        self.data.trainer = self._trainer(())
        with silence():
            self.data.prepare_data()
            self.data.setup("fit")

    @property
    def on_cuda(self) -> bool:
        """Whether trainings compute on a GPU."""
        assert self.data.trainer is not None
        return bool(self.data.trainer.strategy.root_device.type == "cuda")

    def loader(self, **changes: Any) -> Any:  # noqa: ANN401
        """Return the training loader that the data makes with other attributes."""
        loaders = self._changed(changes).train_dataloader()
        return loaders[0] if isinstance(loaders, list | tuple) else loaders

    def train(self, *callbacks: Callback, **changes: Any) -> None:
        """Train a copy until a callback stops it.

        Args:
            callbacks: What watches and ends it.
            changes: Attributes of the data module that are to be otherwise.
        """
        with torch.no_grad():
            task = copy.deepcopy(self.task)
        L.seed_everything(self.seed, workers=True, verbose=False)
        with silence():
            self._trainer(callbacks).fit(task, datamodule=self._changed(changes))

    def speed(self, warm_up: int, steps: int, seconds: float, **changes: Any) -> Speed:
        """Measure a training.

        Args:
            warm_up: Steps before.
            steps: Steps at most.
            seconds: After which it ends, too.
            changes: As for ``train``.

        Raises:
            RunFailed: If there is nothing to train on.
        """
        timer = _Timer(warm_up, steps, seconds)
        with _peak_memory(self.on_cuda) as peak:
            self.train(timer, **changes)
        if not timer.took:
            raise RunFailed(
                "Training ended before it was measured: does the loader of the training set make a "
                "batch?\nOne with drop_last makes none if the batch_size is larger than the set."
            )
        return Speed(timer.samples / timer.took, timer.took / timer.done, peak[0])

    def _trainer(self, callbacks: tuple[Callback, ...]) -> L.Trainer:
        endless = {"max_epochs": -1, "max_steps": 1_000_000, "limit_val_batches": 0}
        return quiet_trainer(self.settings, self.folder, callbacks, **endless)

    def _changed(self, changes: dict[str, Any]) -> L.LightningDataModule:
        made = copy.copy(self.data)
        vars(made).update(changes)
        done = {"prepare_data": lambda self: None, "setup": lambda self, stage: None}
        made.__class__ = type(type(made).__name__, (type(made),), done)
        return made


class _Timer(Callback):
    """Counts samples and seconds after a warm-up, then ends the training."""

    def __init__(self, warm_up: int, steps: int, seconds: float) -> None:
        self.warm_up, self.steps, self.seconds = warm_up, steps, seconds
        self.samples, self.done, self.took = 0, -warm_up, 0.0
        self.mark = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin."""
        self.on_cuda = pl_module.device.type == "cuda"
        stop_schedules(trainer)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Count the batch."""
        self.done += 1
        if self.done == 0:
            self.mark = self._now()
        if self.done <= 0:
            return
        self.samples += samples_of(batch)
        late = time.perf_counter() - self.mark > self.seconds
        if self.done >= self.steps or late:
            self.took = self._now() - self.mark
            trainer.should_stop = True

    def _now(self) -> float:
        if self.on_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def stop_schedules(trainer: L.Trainer) -> None:
    """Let no schedule take a step: it may be over sooner, or wait for a validation."""
    for config in trainer.strategy.lr_scheduler_configs:
        config.frequency = sys.maxsize


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Let nobody print or warn: all of it is about trainings that nobody wants to see."""
    with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
        yield


@contextlib.contextmanager
def _peak_memory(on_cuda: bool) -> Iterator[list[int]]:
    """Yield a list of what was needed at most, in bytes; it is right when the context ends."""
    found = [0]
    if on_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        try:
            yield found
        finally:
            found[0] = torch.cuda.max_memory_allocated() - before
        return
    before, over = resident(), threading.Event()

    def look() -> None:
        while not over.wait(0.002):
            found[0] = max(found[0], resident() - before)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield found
    finally:
        over.set()
        looking.join()


def resident() -> int:
    """Return the memory of this process, in bytes; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
