"""The time of steps, divided between what is going on."""

import re
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.profilers import Profiler
from torch.profiler import record_function

LOGGING, REST = "logging", "rest"
# The parts of a step by the ends of Lightning's names for what it does, and what each holds.
PARTS = {
    "data": (r"train_dataloader_next", "waiting for the next batch, starts of workers"),
    "transfer": (r"batch_transfer|batch_to_device", "to the device, augmentation, normalisation"),
    "forward": (r"\.training_step", "training_step, with the loss"),
    "backward": (r"backward", "gradients"),
    "optimizer": (r"optimizer_step|zero_grad|gradient_clipping|lr_scheduler_step", "new weights"),
    LOGGING: (r"^logging", "log(), loggers"),
    "callbacks": (r"on_train_batch_(start|end)", "callbacks and hooks of the task"),
    REST: (r"^$", "the loop itself"),
}


class Stopwatch(Profiler):
    """A profiler that counts every moment once: for the innermost thing that goes on.

    Args:
        wait: Called before time is taken, for devices that compute by themselves.
    """

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.wait = wait
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.tracing = False
        self._stack = [REST]
        self._names: list[AbstractContextManager[Any]] = []
        self._mark: float | None = None

    def resume(self) -> None:
        """Count from here on."""
        self.wait()
        self._mark = time.perf_counter()

    def pause(self) -> None:
        """Count no further."""
        self._count()
        self._mark = None

    def start(self, action_name: str) -> None:
        """Begin with something."""
        self._count()
        self._stack.append(part_of(action_name) or self._stack[-1])
        if self.tracing:
            self._names.append(record_function(self._stack[-1]))
            self._names[-1].__enter__()

    def stop(self, action_name: str) -> None:
        """Go back to what it was a part of."""
        self._count()
        if len(self._stack) > 1:
            self._stack.pop()
        if self._names:
            self._names.pop().__exit__(None, None, None)

    def _count(self) -> None:
        if self._mark is not None:
            self.wait()
            now = time.perf_counter()
            self.seconds[self._stack[-1]] += now - self._mark
            self._mark = now


@lru_cache(maxsize=1000)
def part_of(action: str) -> str:
    """Return the part that something belongs to, by Lightning's name for it; "" for none."""
    if action.startswith("[Callback]"):
        return "callbacks"
    return next((part for part, (names, _) in PARTS.items() if re.search(names, action)), "")


def watch_unnamed(trainer: Trainer, task: LightningModule, watch: Stopwatch) -> None:
    """Count what Lightning itself does not name: what is logged, loggers, starts of the loader."""
    # Of this trainer and this task alone, which are thrown away.
    places: list[tuple[Any, str, str]] = [(task, name, LOGGING) for name in ("log", "log_dict")]
    places += [(trainer._logger_connector, "update_train_step_metrics", LOGGING)]
    for logger in trainer.loggers:
        places += [(logger, name, LOGGING) for name in ("log_metrics", "save")]
    places += [(trainer.fit_loop.epoch_loop, "on_run_start", "train_dataloader_next")]
    for owner, name, action in places:
        owner.__dict__[name] = _timed(getattr(owner, name), watch, action)


def _timed(function: Callable[..., Any], watch: Stopwatch, action: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with watch.profile(action):
            return function(*args, **kwargs)

    return run
