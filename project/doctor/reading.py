"""Batches as the loader gives them and as the network gets them, read by a real Lightning loop."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lightning as L
from lightning.pytorch.utilities.model_helpers import is_overridden

from project.doctor.loop import of_the_user
from project.doctor.structures import clone

TRANSFER = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
# A reader optimizes nothing, so nothing of that is set.
SETTINGS = {
    "limit_val_batches": 0,
    "max_epochs": 1,
    "max_steps": -1,
    "gradient_clip_val": None,
    "accumulate_grad_batches": 1,
}
STAGES = {"train": "fit", "val": "validate", "test": "test", "predict": "predict"}


@dataclass
class Reading:
    """The first batches of a split.

    Args:
        raw: As the loader collates them.
        batches: As the network gets them.
        loader: Where they are from, as Lightning uses it.
        complete: Whether these are all.
    """

    raw: list[Any] = field(default_factory=list)
    batches: list[Any] = field(default_factory=list)
    loader: Any = None
    complete: bool = False


class _Reader(L.LightningModule):
    """A task that learns nothing and keeps what it gets."""

    reading: Reading
    deadline: float

    @property
    def automatic_optimization(self) -> bool:
        return False

    @automatic_optimization.setter
    def automatic_optimization(self, value: bool) -> None:
        pass

    def take(self, batch: object, batch_idx: int, dataloader_idx: int = 0) -> None:
        if dataloader_idx == 0:
            self.reading.batches.append(clone(self._to_cpu(batch)))
        if time.monotonic() > self.deadline:
            self.trainer.should_stop = True

    def _to_cpu(self, batch: Any) -> Any:  # noqa: ANN401
        return L.LightningModule.transfer_batch_to_device(self, batch, "cpu", 0)  # type: ignore[arg-type]

    def training_step(self, batch: object, batch_idx: int) -> None:
        self.take(batch, batch_idx)

    validation_step = test_step = predict_step = take

    def configure_optimizers(self) -> None:
        return None


def _reader(task: L.LightningModule) -> _Reader:
    """Return a task that only reads, but transfers batches as the user's task does."""
    if not any(is_overridden(hook, task) for hook in TRANSFER):
        return _Reader()
    own = {name: value for name, value in vars(_Reader).items() if not name.startswith("__")}
    base = vars(L.LightningModule) | {
        name: getattr(L.LightningModule, name) for name in dir(L.LightningModule)
    }
    off = {n: v for n, v in base.items() if n.startswith("on_") and n not in TRANSFER}
    off["configure_callbacks"] = L.LightningModule.configure_callbacks
    task.__class__ = type(type(task).__name__, (type(task),), off | own)
    return task  # type: ignore[return-value]


def read(
    split: str,
    count: int,
    trainer: L.Trainer,
    task: L.LightningModule,
    data: L.LightningDataModule,
    deadline: float,
) -> Reading:
    """Read the first batches of a split.

    Args:
        split: train, val, test or predict.
        count: How many.
        trainer: Limited to that many.
        task: A copy; its class is changed.
        data: A stand-in.
        deadline: When to stop anyway, as ``time.monotonic`` counts.
    """
    reader, reading = _reader(task), Reading()
    reader.reading, reader.deadline = reading, deadline
    convert: Callable[[Any], Any] = trainer.precision_plugin.convert_input

    def note(batch: Any) -> Any:  # noqa: ANN401
        if len(reading.raw) == len(reading.batches):  # else a data module calls it once more
            reading.raw.append(clone(batch))
        return convert(batch)

    trainer.precision_plugin.convert_input = note  # type: ignore[assignment,method-assign]
    with of_the_user():
        getattr(trainer, STAGES[split])(reader, datamodule=data)
    loaders = (
        trainer.train_dataloader if split == "train" else getattr(trainer, f"{split}_dataloaders")
    )
    reading.loader = loaders[0] if isinstance(loaders, list | tuple) else loaders
    reading.raw = reading.raw[: len(reading.batches)]
    reading.complete = len(reading.batches) < count
    return reading
