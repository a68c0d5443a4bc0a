"""A short training with a stopwatch: warm-up, steps that are timed, one weighed, some traced."""

import io
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, EarlyStopping
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.utilities.exceptions import _TunerExitException
from torch.optim.lr_scheduler import OneCycleLR
from torch.profiler import ProfilerActivity, profile

from project import lean, watchers
from project.batches import samples_of
from project.mistakes import RunFailed
from project.profiling import memory
from project.profiling.parts import PARTS, Stopwatch, watch_unnamed
from project.request import Request
from project.trial import Trial

WARM_UP, TRACED = 10, 5  # steps
# Seconds after which a phase ends that has had two steps.
PATIENCE = 20.0


@dataclass
class Found:
    """What was measured.

    Args:
        steps: How many were timed; every other figure of time is a mean over them.
        step: Seconds of a step, from the end of one batch to the end of the next.
        samples: In a batch.
        free: The same on a device that nobody waits for; ``step`` where there is none.
        parts: Seconds of a step's parts.
        operators: Name, calls and seconds in a step, dearest first.
        busy: Seconds in a step that a device computes; None where there is none.
        held: Bytes by module.
        peak: Bytes at most, of the device or of the process; 0 if unknown.
        trace: The file.
    """

    steps: int = 0
    step: float = 0.0
    samples: int = 0
    free: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    operators: list[tuple[str, float, float]] = field(default_factory=list)
    busy: float | None = None
    held: dict[str, memory.Held] = field(default_factory=memory.nothing_held)
    peak: int = 0
    trace: Path | None = None


class Phases(Callback):
    """Leads a training through its phases, each between the ends of two batches.

    Args:
        watch: Divides the time.
        steps: How many are timed.
        trace: Where the trace goes.
        progress: Is told of each phase.
    """

    def __init__(
        self, watch: Stopwatch, steps: int, trace: Path, progress: Callable[[str], None]
    ) -> None:
        self.watch, self.found, self.progress = watch, Found(trace=trace), progress
        self.phases = ["warm", "timed", "weighed", "traced", "over"]
        self.lengths = {"warm": WARM_UP, "timed": steps, "weighed": 1, "traced": TRACED}
        self.done = 0  # batches of the phase
        self.counted = 0.0  # seconds of it, without what lies between epochs
        self.mark: float | None = None
        self.stack = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to warm up."""
        self.cuda = pl_module.device.type == "cuda"
        if self.cuda:
            self.phases.insert(1, "free")
            self.lengths["free"] = self.lengths["timed"]
            torch.cuda.reset_peak_memory_stats()
        for config in trainer.strategy.lr_scheduler_configs:
            config.strict = False  # no schedule waits for a validation
            if isinstance(config.scheduler, OneCycleLR):  # refuses steps after its last
                config.frequency = sys.maxsize
        watch_unnamed(trainer, pl_module, self.watch)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on."""
        self._resume()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop: no step goes on here."""
        self._pause()

    def on_train_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Weigh this batch, if it is its turn."""
        if self.phases[0] == "weighed":
            self.stack.enter_context(memory.activations(pl_module, self.found.held))

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Count the batch, and go on to the next phase when it is time."""
        self.done += 1
        self._pause()
        phase = self.phases[0]
        if self.done >= self.lengths[phase] or (self.counted > PATIENCE and self.done > 1):
            self._end(phase, trainer, pl_module)
            self.found.samples = samples_of(batch)
            self.done, self.counted = 0, 0.0
            self.phases.pop(0)
            self._begin(self.phases[0], trainer)
        self._resume()

    def _begin(self, phase: str, trainer: Trainer) -> None:
        self.progress("" if phase == "over" else f"{self.lengths[phase]} steps {phase}")
        if phase == "timed":
            self.watch.wait = torch.cuda.synchronize if self.cuda else lambda: None
            self.watch.seconds.clear()
        if phase == "traced":
            kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self.cuda
            self.tracer = profile(activities=kinds, acc_events=True)
            self.stack.enter_context(self.tracer)
            self.watch.tracing = True
        if phase == "over":
            raise _TunerExitException  # spares all others an end that they would judge or keep

    def _end(self, phase: str, trainer: Trainer, task: LightningModule) -> None:
        found = self.found
        if phase == "free":
            torch.cuda.synchronize()
            found.free = self.counted / self.done
        elif phase == "timed":
            found.steps, found.step = self.done, self.counted / self.done
            found.free = found.free or found.step
            found.parts = {part: self.watch.seconds[part] / self.done for part in PARTS}
            self.watch.wait = lambda: None
        elif phase == "weighed":
            self.stack.close()
            memory.weights(task, trainer.optimizers, found.held)
            found.peak = torch.cuda.max_memory_allocated() if self.cuda else _resident()
        elif phase == "traced":
            self.watch.tracing = False
            self.stack.close()
            self._read(self.tracer)

    def _read(self, tracer: profile) -> None:
        events = [e for e in tracer.key_averages() if e.key not in PARTS]
        kind = "self_device_time_total" if self.cuda else "self_cpu_time_total"
        took = {e.key: (e.count / self.done, getattr(e, kind) / 1e6 / self.done) for e in events}
        if self.cuda:
            self.found.busy = sum(seconds for _, seconds in took.values())
        order = sorted(took, key=lambda name: -took[name][1])
        self.found.operators = [(name, *took[name]) for name in order if took[name][1] > 0]
        assert self.found.trace is not None
        self.found.trace.parent.mkdir(parents=True, exist_ok=True)
        tracer.export_chrome_trace(str(self.found.trace))

    def _pause(self) -> None:
        self.watch.pause()
        if self.mark is not None:
            self.counted += time.perf_counter() - self.mark
        self.mark = None

    def _resume(self) -> None:
        self.watch.resume()
        self.mark = time.perf_counter()


class Session(Trial):
    """The verb `fit` with a stopwatch instead of a run.

    Args:
        request: A new run's.
        steps: How many are timed.
        trace: Where the trace goes.
        progress: Is told what goes on.
    """

    found: Found

    def __init__(
        self, request: Request, steps: int, trace: Path, progress: Callable[[str], None]
    ) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's tracer talks of missing GPUs
        self.watch = Stopwatch()
        self.phases = Phases(self.watch, steps, trace, progress)
        super().__init__(request)

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        """Build the trainer of the run, but for validation, checkpoints and its end."""
        config |= {"limit_val_batches": 0, "num_sanity_val_steps": 0, "enable_checkpointing": False}
        config |= {"max_epochs": -1, "max_steps": 1_000_000, "max_time": None, "min_steps": None}
        config |= {"fast_dev_run": False, "devices": 1, "num_nodes": 1, "strategy": "auto"}
        config |= {"profiler": self.watch, "min_epochs": None}
        own = config["callbacks"] or []
        config["callbacks"] = _of_a_step(own if isinstance(own, list) else [own])
        kept = _of_a_step(watchers.kept(config, callbacks, "fit"))
        dump = self._dumped()
        for callback in kept:
            if hasattr(callback, "run_config"):
                callback.run_config = dump
        trainer = LightningCLI._instantiate_trainer(self, config, [*kept, self.phases])
        lean.trim(trainer, self.model)  # as for `fit`
        return trainer

    def fit(self, model: LightningModule, datamodule: LightningDataModule) -> None:
        """Measure.

        Raises:
            RunFailed: If training ended before there was anything to say.
        """
        with redirect_stdout(io.StringIO()):  # the lines of epochs
            self.trainer.fit(model, datamodule=datamodule)
        self.found = self.phases.found
        if not self.trainer.num_training_batches:
            raise RunFailed("There is no batch to train on: see the loader of the training set.")
        if self.phases.phases[0] != "over":
            raise RunFailed("Training ended before the steps were measured: try --steps 10")


def _of_a_step(callbacks: Iterable[Callback]) -> list[Callback]:
    """Leave out those that need a validation or a run's folder."""
    return [one for one in callbacks if not isinstance(one, Checkpoint | EarlyStopping)]


def _resident() -> int:
    """Return the most memory that this process has had, in bytes; 0 if it is not known."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
