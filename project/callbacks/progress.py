"""One line on the screen that moves, and one line that stays for every epoch."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from lightning.pytorch.utilities.types import STEP_OUTPUT

# Without a terminal a line is written every so often, for epochs that take hours.
_QUIET_SECONDS = 60.0


class ProgressBar(TQDMProgressBar):
    """Show how far the run is; leave one line for every epoch with its metrics and its duration.

    Redraws by the clock, so that a step costs a microsecond however short it is. Where the output
    is no terminal (a log file, a notebook) there is no bar: just the line of every epoch, and in
    long epochs one line a minute. Epochs count from 0, as in TensorBoard and in the names of
    checkpoints.

    Args:
        metrics: Scalars to show; those not logged are left out. ``val/...`` is left out of the line
            of an epoch without validation.
        refresh_seconds: Shortest time between two redraws.

    Raises:
        ValueError: If ``refresh_seconds`` is negative.
    """

    def __init__(
        self,
        metrics: Sequence[str] = ("train/loss", "val/loss", "val/acc"),
        refresh_seconds: float = 0.2,
    ) -> None:
        if refresh_seconds < 0:
            raise ValueError(f"refresh_seconds must not be negative, got {refresh_seconds}")
        super().__init__()
        self.metrics = tuple(metrics)
        self.refresh_seconds = refresh_seconds
        self._live = False
        self._drawn = 0.0  # when, by time.monotonic
        self._epoch_started = 0.0
        self._epoch_seconds: float | None = None  # of the epoch whose line is still to come
        self._epoch = 0
        self._validated = False
        self._batches = 0  # of the run when it began or was resumed

    @property
    def is_enabled(self) -> bool:
        """Whether there is a bar at all."""
        return self._live and super().is_enabled

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """See where the output goes."""
        super().setup(trainer, pl_module, stage)
        self._live = sys.stdout.isatty()
        self._drawn = self._epoch_started = time.monotonic()  # a resumed epoch does not start

    def _should_update(self, current: int, total: int) -> bool:
        now = time.monotonic()
        if now - self._drawn < (self.refresh_seconds if self._live else _QUIET_SECONDS):
            return False
        self._drawn = now
        if self._live or not self._enabled:
            return self.is_enabled
        stage = getattr(self.trainer.state.stage, "value", "run")
        print(f"{stage} epoch {self.trainer.current_epoch}  batch {current}/{total}", flush=True)
        return False

    def get_metrics(
        self, trainer: L.Trainer, pl_module: L.LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """The metrics beside the bar, in short."""
        return {name: _short(value) for name, value in self._logged(trainer).items()}

    def _logged(self, trainer: L.Trainer) -> dict[str, float]:
        logged = trainer.callback_metrics
        return {name: float(logged[name]) for name in self.metrics if name in logged}

    def init_train_tqdm(self) -> Tqdm:
        """The training bar; the lines of the epochs are what stays."""
        return _passing(super().init_train_tqdm())

    def init_validation_tqdm(self) -> Tqdm:
        """No second bar while training: the training bar says that it validates."""
        if self.trainer.state.fn == "fit":
            return Tqdm(disable=True)
        return _passing(super().init_validation_tqdm())

    def init_test_tqdm(self) -> Tqdm:
        """The test bar; the table of results is what stays."""
        return _passing(super().init_test_tqdm())

    def init_predict_tqdm(self) -> Tqdm:
        """The prediction bar; the file of predictions is what stays."""
        return _passing(super().init_predict_tqdm())

    def on_train_epoch_start(self, trainer: L.Trainer, *_: object) -> None:
        """Write the line of the epoch before and start the clock."""
        self._write_epoch_line(trainer)
        self._epoch_started = time.monotonic()
        self._validated = False
        super().on_train_epoch_start(trainer, *_)

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: STEP_OUTPUT,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Say on the training bar how far the validation is."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            super().on_validation_batch_end(
                trainer, pl_module, outputs, batch, batch_idx, dataloader_idx
            )
            return
        total = int(self.total_val_batches_current_dataloader)
        if self._should_update(batch_idx + 1, total):
            self.train_progress_bar.set_description(
                f"Epoch {trainer.current_epoch}, validation {batch_idx + 1}/{total}"
            )

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Go back to the training bar."""
        self._validated = not trainer.sanity_checking
        super().on_validation_end(trainer, pl_module)
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.train_progress_bar.set_description(f"Epoch {trainer.current_epoch}")

    def on_train_start(self, trainer: L.Trainer, *_: object) -> None:
        """See how many batches were trained on before."""
        super().on_train_start(trainer, *_)
        self._batches = trainer.fit_loop.epoch_loop.total_batch_idx

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the clock."""
        if self._batches == trainer.fit_loop.epoch_loop.total_batch_idx and not self._validated:
            return  # a resume ends the last epoch once more, whose line the run has shown
        # The line has to wait: the module logs its epoch's metrics after this hook.
        self._epoch, self._epoch_seconds = (
            trainer.current_epoch,
            time.monotonic() - self._epoch_started,
        )

    def on_train_end(self, trainer: L.Trainer, *_: object) -> None:
        """Write the last epoch's line and take the bar away."""
        self._write_epoch_line(trainer)
        super().on_train_end(trainer, *_)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Take the bars away, so that what follows starts on a line of its own."""
        self._write_epoch_line(trainer)
        for bar in self._open_bars():
            bar.close()

    def print(self, *args: object, sep: str = " ", **kwargs: Any) -> None:
        """Print above the bar, or just print where there is none."""
        bars = self._open_bars()
        if bars:
            bars[0].write(sep.join(map(str, args)), **kwargs)
        elif self._enabled:
            print(*args, sep=sep, **kwargs)

    def _open_bars(self) -> list[Tqdm]:
        bars = (
            self._train_progress_bar,
            self._val_progress_bar,
            self._test_progress_bar,
            self._predict_progress_bar,
        )
        return [bar for bar in bars if bar is not None and not bar.disable]

    def _write_epoch_line(self, trainer: L.Trainer) -> None:
        seconds, self._epoch_seconds = self._epoch_seconds, None
        if seconds is None or not self._enabled:
            return
        shown = [
            f"{name} {_short(value)}"
            for name, value in self._logged(trainer).items()
            if self._validated or not name.startswith("val/")
        ]
        line = "  ".join([f"epoch {self._epoch:>3}", *shown, _duration(seconds)])
        self.print(line)
        sys.stdout.flush()


def _passing(bar: Tqdm) -> Tqdm:
    bar.leave = False
    return bar


def _short(value: float) -> str:
    """Four decimals, or an exponent for what would show as zero."""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.2e}"


def _duration(seconds: float) -> str:
    """Seconds, or hours, minutes and seconds."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
