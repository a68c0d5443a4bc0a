"""How fast a run is, how long it waits for data, and what would make it faster."""

import math
import time
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from project import cores
from project.batches import samples_of

SELDOM = 5  # times log_every_n_steps: writing two scalars takes as long as watching 40 steps
WARM_UP = 10  # batches: workers start, caches fill, kernels are chosen or compiled
# Shares of the time from which on something is worth a word.
WAITING, ELSEWHERE = 0.15, 0.35
# Seconds that a worker takes to hand over a batch: waits below that are not shortened by workers.
HANDING_OVER = 0.003


class Clock:
    """Where the time of some batches went, in seconds."""

    def __init__(self) -> None:
        self.total = self.waiting = self.model = 0.0
        self.samples = self.batches = 0

    def add(self, total: float, waiting: float, model: float, samples: int) -> None:
        """Count one batch."""
        self.total += total
        self.waiting += waiting
        self.model += model
        self.samples += samples
        self.batches += 1


class Throughput(Callback):
    """Log ``train/samples_per_second`` and ``train/data_wait``; say at the end what would help.

    ``data_wait`` is the share of the time, in [0, 1], that training waited for a batch. Both cover
    the steps since they were last logged, 5 times ``log_every_n_steps``, without validations and
    what lies between epochs. Samples are those of all processes, times those of the first. Nothing
    is synchronised: on CUDA a wait counts unless the device was still busy when the batch came.
    """

    def __init__(self) -> None:
        self.closing_line = ""
        self._whole, self._window = Clock(), Clock()
        self._since: float | None = None  # up to when time has been counted; None in between
        self._asked: float | None = None  # when the batch was asked for that is to come
        self._began: float | None = None  # when the model began with a batch
        self._waited = 0.0
        self._warm_up = WARM_UP
        self._is_idle: Callable[[], bool] | None = None  # whether the device has nothing to do
        self._event: torch.cuda.Event | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin anew, and have the loop say when it asks for a batch and when it has it."""
        self._whole, self._window = Clock(), Clock()
        self._since, self._warm_up, self.closing_line = None, WARM_UP, ""
        # Lightning hands these two to what fetches batches when an epoch begins.
        loop: Any = trainer.fit_loop.epoch_loop
        loop._on_before_fetch = _both(self._ask, loop._on_before_fetch)
        loop._on_after_fetch = _both(loop._on_after_fetch, self._have)
        if pl_module.device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._is_idle = self._event.query

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Wait from here on: what comes next is the start of the loader and its workers."""
        self._since = self._asked = time.perf_counter()

    def _ask(self) -> None:
        now = time.perf_counter()
        self._since = now if self._since is None else self._since
        self._asked = now if self._asked is None else self._asked

    def _have(self) -> None:
        if self._is_idle is not None and not self._is_idle():
            self._waited, self._began = 0.0, self._since  # it has computed all the time
        else:
            self._waited, self._began = time.perf_counter() - (self._asked or 0.0), None
        self._asked = None

    def on_train_batch_start(self, *_: object) -> None:
        """Note when the model begins."""
        if self._began is None:
            self._began = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Count the batch; log when it is time."""
        now = time.perf_counter()
        if self._since is not None and self._began is not None:
            took = now - self._since, self._waited, now - self._began, samples_of(batch)
            self._window.add(*took)
            self._warm_up -= 1
            if self._warm_up < 0:
                self._whole.add(*took)
        self._since, self._began = now, None
        if self._event is not None:
            self._event.record()
        loop = trainer.fit_loop.epoch_loop
        every = SELDOM * getattr(trainer, "log_every_n_steps")  # noqa: B009
        step = loop._batches_that_stepped
        if every and (step + 1) % every == 0 and not loop._should_accumulate():
            self._log(trainer, step)

    def _log(self, trainer: L.Trainer, step: int) -> None:
        found, self._window = self._window, Clock()
        if found.total > 0:
            figures = {
                "train/samples_per_second": found.samples * trainer.world_size / found.total,
                "train/data_wait": found.waiting / found.total,
            }
            for logger in trainer.loggers:
                logger.log_metrics(figures, step)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop counting until the next batch is asked for."""
        self._since = None

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop counting until the next epoch."""
        self._since = self._asked = None

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put it into one line, unless the run was too short for it."""
        clock = self._whole
        if clock.batches < WARM_UP or not clock.total:
            return
        wait, model = clock.waiting / clock.total, clock.model / clock.total
        many = f" of {trainer.world_size} processes" if trainer.world_size > 1 else ""
        self.closing_line = (
            f"Speed  {clock.samples * trainer.world_size / clock.total:,.0f} samples per second"
            f"{many}, in the model {100 * model:.0f} %, waiting for data {100 * wait:.0f} %"
        )
        if what := _advice(trainer, wait, model, clock.waiting / clock.batches):
            self.closing_line += f": {what}"

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Leave the loop as it was."""
        for name in ("_on_before_fetch", "_on_after_fetch"):
            trainer.fit_loop.epoch_loop.__dict__.pop(name, None)


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        first()
        second()

    return run


def _advice(trainer: L.Trainer, wait: float, model: float, seconds: float) -> str:
    """Say what would make a run faster, if something would.

    Args:
        trainer: Of the run.
        wait: Share of the time it waited for data.
        model: Share of the time in the model.
        seconds: Waited for each batch.
    """
    if wait >= WAITING and seconds > HANDING_OVER:
        return _advice_on_data(getattr(trainer, "datamodule", None), wait, trainer.num_devices)
    if 1 - wait - model >= ELSEWHERE:
        return "lightning profile says where the rest goes"
    if torch.get_num_threads() > 1 and cores.crowded():
        return f"other programs compute on these cores, so try {cores.SHARED}=1 lightning fit"
    return ""


def _advice_on_data(data: object, wait: float, processes: int) -> str:
    workers = getattr(data, "num_workers", None)
    if not isinstance(workers, int):
        return "load it in workers, DataLoader(num_workers=...)"
    # What loads now takes this many times as long as the rest; in workers it is done beside it.
    wanted = math.ceil(workers / (1 - wait) if workers else wait / (1 - wait))
    wanted = min(wanted, cores.workers(processes))
    if wanted > workers:
        return f"try --data.num_workers {wanted}"
    return "every core loads, so store the images smaller"
