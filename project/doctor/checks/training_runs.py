"""Short trainings that several checks look at, and the rehearsal of the schedules; each once."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from project.doctor import Skip, Subject
from project.doctor.loop import Lesson
from project.doctor.once import once

# Fewer samples than these are learned by heart by any network that learns at all.
FEW = 8


def real_loop(subject: Subject) -> Lesson:
    """Train for 30 steps of the loop as it is configured, and validate a batch."""
    rehearsed(subject)
    return once(subject, "real loop", lambda: subject.train(steps=30))


class AtRate(Callback):
    """Holds every learning rate at a multiple of its peak, whatever the schedule says.

    Args:
        subject: Whose schedules say where the peak is.
        factor: Multiple of the peak.
        warmup: Steps of a linear rise.
    """

    def __init__(self, subject: Subject, factor: float, warmup: int = 0) -> None:
        self.peaks = once(subject, "rehearsal", lambda: rehearse(subject)).peaks
        self.factor, self.warmup, self.step = factor, warmup, 0

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Set the learning rates."""
        self.step += 1
        factor = self.factor * min(1.0, self.step / max(1, self.warmup))
        groups = [group for one in trainer.optimizers for group in one.param_groups]
        for group, peak in zip(groups, self.peaks, strict=False):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(peak * factor)
            else:
                group["lr"] = peak * factor


def loss_of(
    subject: Subject, batches: Sequence[Any], task: L.LightningModule | None = None
) -> float:
    """Return the mean loss of some batches, without learning from them.

    Args:
        subject: What is looked at.
        batches: As the network gets them.
        task: By default untrained.
    """
    seen = subject.train(
        task,
        steps=len(batches),
        batches=batches,
        callbacks=[AtRate(subject, 0)],
        accumulate_grad_batches=1,
        limit_val_batches=0,
    )
    return mean(seen.losses)


class Reseed(Callback):
    """Begins the random numbers of every step anew, so that two trainings draw the same."""

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Seed by the step."""
        L.seed_everything(trainer.global_step, workers=True, verbose=False)


class Schedule:
    """A schedule, moved through the whole run.

    Args:
        config: Lightning's: scheduler, interval, frequency, monitor.
    """

    def __init__(self, config: Any) -> None:  # noqa: ANN401
        self.config = config
        self.name = type(config.scheduler).__name__
        self.end = planned_end(config.scheduler)
        self.watches = bool(config.reduce_on_plateau)
        self.moves = 0
        self.error = ""
        self.lrs: list[list[float]] = []  # of the groups of its optimizer, at every optimizer step

    def due(self, interval: str, count: int) -> bool:
        """Whether it moves at the ``count``-th step or epoch."""
        same = str(self.config.interval) == interval and not self.watches and not self.error
        return same and count % int(self.config.frequency) == 0

    def curve(self) -> list[float]:
        """The learning rate of the group with the highest one."""
        return max(map(list, zip(*self.lrs, strict=True)), key=max) if self.lrs else []


def planned_end(scheduler: Any) -> int | None:  # noqa: ANN401
    """Return the number of moves that a schedule is made for; None if it says none."""
    parts, milestones = (
        getattr(scheduler, "_schedulers", None),
        getattr(scheduler, "_milestones", None),
    )
    if parts:
        last = planned_end(parts[-1])
        if milestones:
            return None if last is None else int(milestones[-1]) + last
        return max((end for end in map(planned_end, parts) if end), default=None)
    poly = isinstance(scheduler, torch.optim.lr_scheduler.PolynomialLR)
    names = ("T_max", "total_steps", "total_iters") if poly else ("T_max", "total_steps")
    ends = [getattr(scheduler, name, None) for name in names]
    return next((int(end) for end in ends if isinstance(end, int | float) and end > 0), None)


class Rehearsal(Callback):
    """Moves all schedules through the whole run before its first step; nothing is trained.

    Args:
        deadline: When to give up, as ``time.monotonic`` counts.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.schedules: list[Schedule] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.peaks: list[float] = []  # of every parameter group
        self.steps = self.epochs = self.per_epoch = 0
        self.complete = self.manual = False
        self.module: L.LightningModule

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Rehearse, once: later than this a task changes no schedule any more."""
        if self.per_epoch:
            return
        batches, accumulate = trainer.num_training_batches, trainer.accumulate_grad_batches
        self.per_epoch = 1000 if batches == float("inf") else -(-int(batches) // accumulate)
        total = trainer.estimated_stepping_batches
        self.steps = int(total) if 0 < total < float("inf") else 10 * self.per_epoch
        self.epochs = -(-self.steps // self.per_epoch)
        self.module = pl_module
        self.manual = not pl_module.automatic_optimization
        self.optimizers = list(trainer.optimizers)
        self.schedules = [Schedule(config) for config in trainer.lr_scheduler_configs]
        groups = [group for one in trainer.optimizers for group in one.param_groups]
        self.peaks = [float(group["lr"]) for group in groups]
        if self.manual:  # when the task moves its schedules only the task knows
            known = [(g.get("max_lr") or g.get("initial_lr") or g["lr"]) for g in groups]
            self.peaks = [float(lr) for lr in known]
            return
        self._walk(trainer, pl_module, groups)
        trainer.strategy.lr_scheduler_configs = []  # they are at their ends

    def _walk(self, trainer: L.Trainer, module: L.LightningModule, groups: list[Any]) -> None:
        progress: Any = trainer.fit_loop.epoch_progress.current
        done = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step
        for step in range(1, self.steps + 1):
            for schedule in self.schedules:
                own = schedule.config.scheduler.optimizer.param_groups
                schedule.lrs.append([float(group["lr"]) for group in own])
            self._move(module, "step", step)
            done.total.completed = step
            if step % self.per_epoch == 0:
                self._move(module, "epoch", step // self.per_epoch)
                progress.processed = step // self.per_epoch
            for i, group in enumerate(groups):
                self.peaks[i] = max(self.peaks[i], float(group["lr"]))
            if time.monotonic() > self.deadline:
                break
        else:
            self.complete = True
        done.total.completed = progress.processed = 0

    def _move(self, module: L.LightningModule, interval: str, count: int) -> None:
        for schedule in self.schedules:
            if schedule.due(interval, count):
                try:
                    module.lr_scheduler_step(schedule.config.scheduler, None)
                except Exception as error:
                    schedule.error = f"{type(error).__name__}: {error}"
                schedule.moves += not schedule.error


def rehearse(subject: Subject) -> Rehearsal:
    """Move all schedules through the run."""
    rehearsal = Rehearsal(time.monotonic() + 2)
    subject.train(steps=1, callbacks=[rehearsal], limit_val_batches=0)
    if not rehearsal.per_epoch:
        raise Skip("training takes no step")
    return rehearsal


def rehearsed(subject: Subject) -> Rehearsal:
    """The rehearsal of the run."""
    return once(subject, "rehearsal", lambda: rehearse(subject))


def batch_size(batch: object) -> int:
    """Samples of a batch: the first dimension of its first tensor.

    Raises:
        Skip: If there is no tensor in it.
    """
    for tensor in tensors(batch):
        if tensor.dim():
            return len(tensor)
    raise Skip("the batch has no tensors")


def tensors(value: object) -> list[Tensor]:
    """The tensors of a batch of any make."""
    if isinstance(value, Tensor):
        return [value]
    inside: Sequence[object] = ()
    if isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, list | tuple):
        inside = value
    return [tensor for item in inside for tensor in tensors(item)]


def each(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:  # noqa: ANN401
    """Change all tensors of a batch that have a row for each sample."""
    size = batch_size(batch)

    def walk(value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, Tensor):
            return change(value) if value.dim() and len(value) == size else value
        if isinstance(value, dict):
            return type(value)({key: walk(item) for key, item in value.items()})
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(walk, value))
        return type(value)(map(walk, value)) if isinstance(value, list | tuple) else value

    return walk(batch)


def mean(values: Sequence[float]) -> float:
    """The mean."""
    return sum(values) / max(1, len(values))
