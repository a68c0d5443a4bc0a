"""Real Lightning loops of a few steps, and what was seen in them."""

import contextlib
import copy
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from project.doctor.registry import Skip
from project.doctor.structures import clone
from project.doctor.tape import FOREIGN

HERE = Path(__file__).resolve().parent


class Broken(Exception):
    """What the user's code raised where a check had it run.

    Args:
        error: The exception.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(f"{_place(error)}{type(error).__name__}: {error}")


def _place(error: BaseException) -> str:
    """Return ``file, line n: `` of the user's innermost line."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if not frame.filename.startswith((*FOREIGN, "<")) and not file.is_relative_to(HERE):
            short = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
            return f"{short}, line {frame.lineno}: "
    return ""


@contextlib.contextmanager
def of_the_user() -> Iterator[None]:
    """Run the user's code: what it raises is evidence, and no mistake of the check.

    Raises:
        Broken: If it raises.
    """
    try:
        yield
    except (Skip, Broken):
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        if Path(frames[-1].filename).is_relative_to(HERE / "checks"):  # a callback of the check
            raise
        raise Broken(error) from error


@dataclass
class Lesson:
    """What was seen in a short training.

    Args:
        task: The task afterwards.
        trainer: Lightning's.
        losses: Of every batch: what ``training_step`` returns, else what it logs as a loss.
        gradients: Norm of every parameter's gradient before clipping, at every optimizer step.
        lrs: Learning rate of every parameter group of all optimizers, at every optimizer step.
        changes: How far every parameter has moved, relative to its norm at the start.
        history: Every value that was logged, by name.
        warnings: What Lightning and others said.
        seconds: Time it took.
        ended_early: Whether the time was over before the steps were done.
    """

    task: L.LightningModule
    trainer: L.Trainer
    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, float]] = field(default_factory=list)
    lrs: list[list[float]] = field(default_factory=list)
    changes: dict[str, float] = field(default_factory=dict)
    history: dict[str, list[float]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    ended_early: bool = False

    @property
    def logged(self) -> set[str]:
        """The names of all metrics that were logged, as a monitor can name them."""
        return set(self.history) | set(map(str, self.trainer.callback_metrics))

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics at the end."""
        return metrics(self.trainer)


def metrics(trainer: L.Trainer) -> dict[str, float]:
    """Return the metrics that a trainer knows at the moment."""
    found = trainer.callback_metrics.items()
    return {str(name): float(value) for name, value in found if value.numel() == 1}


class Recorder(Callback):
    """Writes down what happens in a training, and ends it after some steps.

    Args:
        lesson: Where to.
        steps: Optimizer steps.
        deadline: When to end it anyway, as ``time.monotonic`` counts.
        originals: Ids of the parameters of the task that this one is a copy of, in order.
    """

    def __init__(
        self, lesson: Lesson, steps: int, deadline: float, originals: Sequence[int] = ()
    ) -> None:
        self.lesson, self.steps, self.deadline = lesson, steps, deadline
        self.originals = originals
        self.batches = 0
        self.losses: list[Tensor] = []
        self.norms: list[tuple[list[str], list[Tensor]]] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Let the optimizers train the copy; let no schedule wait for a validation."""
        strategy, held = trainer.strategy, set[int]()
        for optimizer in strategy.optimizers:
            held |= {id(p) for group in optimizer.param_groups for p in group["params"]}
        if held & set(self.originals):  # made by a function that holds the original's
            twins: dict[int, Any] = dict(zip(self.originals, pl_module.parameters(), strict=True))
            made = copy.deepcopy((strategy.optimizers, strategy.lr_scheduler_configs), twins)
            strategy.optimizers, strategy.lr_scheduler_configs = made
        for config in strategy.lr_scheduler_configs:
            config.strict = False

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Note gradients and learning rates."""
        named = [(n, p.grad) for n, p in pl_module.named_parameters() if p.grad is not None]
        self.norms.append(([n for n, _ in named], _norms([g for _, g in named])))
        groups = [group for one in trainer.optimizers for group in one.param_groups]
        self.lesson.lrs.append([float(group["lr"]) for group in groups])

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Note the loss; end the training when it is time."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is None:
            known = trainer.callback_metrics.items()
            loss = next((v for n, v in known if "loss" in n and not n.startswith("val")), None)
        accumulate = trainer.accumulate_grad_batches
        if isinstance(loss, Tensor) and loss.numel() == 1:
            scale = accumulate if pl_module.automatic_optimization else 1
            self.losses.append(loss.detach().float() * scale)
        self.batches += 1
        self.lesson.ended_early = time.monotonic() > self.deadline
        if self.batches >= self.steps * accumulate or self.lesson.ended_early:
            trainer.should_stop = True

    def close(self) -> None:
        """Turn tensors into numbers, which would have made a GPU wait."""
        self.lesson.losses = [float(loss) for loss in self.losses]
        for names, norms in self.norms:
            self.lesson.gradients.append(dict(zip(names, map(float, norms), strict=True)))


def _norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [
        t.detach().float().norm() for t in (t.to_dense() if t.is_sparse else t for t in tensors)
    ]


class Repeated:
    """Some batches again and again, as a loader of one epoch.

    Args:
        batches: What to repeat.
        length: Batches of the epoch.
    """

    def __init__(self, batches: Sequence[Any], length: int) -> None:
        self.batches, self.length = batches, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        # Copies, for a step may change what it gets.
        return (clone(self.batches[i % len(self.batches)]) for i in range(self.length))


def watch(lesson: Lesson, recorder: Recorder, fit: Callable[[Recorder], None]) -> Lesson:
    """Fill a lesson while ``fit`` trains."""
    began = time.monotonic()
    before = {n: p.detach().clone() for n, p in lesson.task.named_parameters()}
    with warnings.catch_warnings(record=True) as heard, of_the_user():
        warnings.simplefilter("always")
        fit(recorder)
    recorder.close()
    lesson.warnings = [str(warning.message) for warning in heard]
    for logger in lesson.trainer.loggers:
        lesson.history |= getattr(logger, "history", {})
    for name, parameter in lesson.task.named_parameters():
        if name in before and before[name].shape == parameter.shape:
            start = before[name].float()
            moved = (parameter.detach().cpu().float() - start.cpu()).norm()
            lesson.changes[name] = float(moved / start.norm().clamp_min(1e-12).cpu())
    lesson.seconds = time.monotonic() - began
    return lesson
