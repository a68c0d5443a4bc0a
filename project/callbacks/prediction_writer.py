"""What a prediction leaves behind: one table, one row for every image."""

import contextlib
import csv
import heapq
import os
import secrets
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import lightning as L
import torch
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor

from project.callbacks.board import class_names
from project.mistakes import UserError

Row = list[str]

_COLUMNS = ["index", "label", "prediction", "probability"]
_OFF = "To predict without a file: --predictions null"
# How far a sum may be from 1. Above the rounding of bfloat16, whose steps are 0.004 below 1.
_TOLERANCE = 0.02


class PredictionWriter(BasePredictionWriter):
    """Write the predictions of ``lightning predict`` to one CSV file, in the order of the split.

    A row has the image's ``index`` in the split, its ``label`` (empty where the data has none), the
    predicted class, ``prediction``, its ``probability`` and, where there are not too many classes,
    ``prob_<class>`` for each. Classes have the names that the data module gives them.

    Expects probabilities ``(B, num_classes)`` from ``predict_step``. Every process streams its rows
    to a part of its own beside the file; the parts are merged in the end, so that memory does not
    grow with the data and the file is whole or as it was. With several nodes the folder has to be
    one that all of them see. A trial run (``fast_dev_run``) writes nothing.

    Args:
        path: The CSV file. It is replaced.
        max_class_columns: Up to so many classes have a column each; 0 for none.

    Raises:
        ValueError: If ``path`` is a folder or ``max_class_columns`` is negative.
    """

    def __init__(self, path: str, max_class_columns: int = 20) -> None:
        super().__init__("batch")
        if not path or Path(path).is_dir():
            raise ValueError(f"path must be a file such as predictions.csv, got {path!r}")
        if max_class_columns < 0:
            raise ValueError(f"max_class_columns must not be negative, got {max_class_columns}")
        self.path = Path(path)
        self.max_class_columns = max_class_columns
        self._token = ""  # of this prediction, in the names of its parts
        self._part: TextIO | None = None
        self._last = -1  # index of the row written last
        self._sorted = True
        self._counted = 0  # samples of data whose position nobody says

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Do what Lightning's writers do, but only in a prediction."""
        if stage == "predict":
            super().setup(trainer, pl_module, stage)
            # Lightning says so about iterable data; its rows are counted here.
            warnings.filterwarnings("ignore", "Couldn't infer the batch indices")

    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin a part, and remove those of a prediction that was killed."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if (loaders := len(trainer.num_predict_batches)) != 1:
            raise UserError(
                f"{self.path} takes the rows of one predict_dataloader, got {loaders}.\n{_OFF}"
            )
        # Lightning leaves those of the last prediction there for data that has none.
        trainer.predict_loop.current_batch_indices = []
        self._last, self._sorted, self._counted = -1, True, 0
        self._token = trainer.strategy.broadcast(secrets.token_hex(4))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if trainer.is_global_zero:
                self._remove_parts()
            trainer.strategy.barrier()
            self._part = self._part_of(trainer.global_rank).open("w", encoding="utf-8", newline="")
        except OSError as error:
            raise UserError(
                f"Cannot write to {self.path}: {error.strerror}.\n"
                "Set another file: --predictions.path FILE"
            ) from error

    def write_on_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        prediction: Any,  # noqa: ANN401
        batch_indices: Sequence[int] | None,
        batch: Any,  # noqa: ANN401
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Write the rows of a batch."""
        if self._part is None:
            return
        probs = _checked(prediction, batch)
        names = class_names(trainer, probs.shape[1])
        columns = names if len(names) <= self.max_class_columns else []
        writer = csv.writer(self._part, lineterminator="\n")
        if self._part.tell() == 0:
            writer.writerow(_COLUMNS + [f"prob_{name}" for name in columns])
        index = self._index(trainer, batch, batch_indices, len(probs))
        for sample, row in zip(index, _rows(probs, batch, names, bool(columns)), strict=True):
            if sample < 0:  # padding, so that all processes have equally many
                continue
            self._sorted &= sample > self._last
            self._last = sample
            writer.writerow([sample, *row])

    def _index(
        self, trainer: L.Trainer, batch: object, seen: Sequence[int] | None, size: int
    ) -> Sequence[int]:
        """Positions in the split; -1 for padding."""
        index = _integers(batch, 2, size)
        if seen and len(seen) == size:  # from the loader's sampler
            # What a batch of the user's has in third place may be something else.
            return [-1 if i == -1 else at for i, at in zip(index or seen, seen, strict=True)]
        if index is not None:
            return index
        if trainer.world_size > 1:
            raise UserError(
                "Which sample a prediction belongs to is known in one process only, for data that "
                "is read as a stream.\nSet --trainer.devices 1, or let a batch be (images, labels, "
                "index) with each sample's position."
            )
        self._counted += size
        return range(self._counted - size, self._counted)

    def on_predict_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Merge the parts, and say where the file is."""
        if self._part is None:
            return
        self._close()
        if not self._sorted:
            _sort(self._part_of(trainer.global_rank))
        trainer.strategy.barrier()  # every part is complete
        if trainer.is_global_zero:
            rows = self._merge(trainer.world_size)
            pl_module.print(f"Predictions  {self.path}, {rows:,} rows")

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Leave nothing half done behind; the file of an earlier prediction stays."""
        if self._part is not None:
            self._close()
            self._remove_parts(self._token)

    def _close(self) -> None:
        assert self._part is not None
        self._part.close()
        self._part = None

    def _part_of(self, rank: int | str) -> Path:
        return self.path.with_name(f"{self.path.name}.{self._token}-{rank}.part")

    def _remove_parts(self, token: str = "") -> None:
        for file in self.path.parent.iterdir():
            if file.name.startswith(f"{self.path.name}.{token}") and file.suffix == ".part":
                file.unlink(missing_ok=True)

    def _merge(self, world_size: int) -> int:
        """Put the file in its place; return the number of its rows."""
        merged = self._part_of("all")
        try:
            with contextlib.ExitStack() as stack:
                files = [self._part_of(rank) for rank in range(world_size)]
                parts = [csv.reader(stack.enter_context(_open(file))) for file in files]
                # A process without samples has no header.
                header = max((next(part, _COLUMNS) for part in parts), key=len)
                writer = csv.writer(stack.enter_context(_open(merged, "w")), lineterminator="\n")
                writer.writerow(header)
                rows = 0
                for row in _unique(heapq.merge(*parts, key=_position)):
                    writer.writerow(row)
                    rows += 1
            os.replace(merged, self.path)
        except FileNotFoundError as error:
            raise UserError(
                f"{self.path} is not written: {error.filename} is gone.\nAll processes need to see "
                "the same folder, and only one prediction at a time can write to a file."
            ) from error
        finally:
            self._remove_parts(self._token)
        return rows


def _checked(probs: object, batch: object) -> Tensor:
    """The probabilities ``(B, num_classes)`` on the CPU."""
    expected = "predict_step must return probabilities (B, num_classes)"
    if not isinstance(probs, Tensor) or probs.ndim != 2:
        shape = f" {tuple(probs.shape)} of {probs.dtype}" if isinstance(probs, Tensor) else ""
        raise UserError(f"{expected}, it returned {type(probs).__name__}{shape}.\n{_OFF}")
    images = batch[0] if isinstance(batch, tuple | list) else batch
    if isinstance(images, Tensor) and len(images) != len(probs):
        raise UserError(
            f"{expected}, it returned {len(probs)} rows for {len(images)} images.\n{_OFF}"
        )
    probs = probs.detach().cpu()
    wrong = ~((probs >= 0).all(1) & ((probs.sum(1) - 1).abs() < _TOLERANCE))  # also nan
    if wrong.any():
        row = probs[wrong][0]
        raise UserError(
            f"{expected}, 0 or more and with a sum of 1 in a row.\nIt returned values from "
            f"{float(row.min()):.4g} to {float(row.max()):.4g} with a sum of {float(row.sum()):.4g}"
            f"{'.' if row.isnan().any() else ': logits? They need a softmax.'}\n{_OFF}"
        )
    return probs


def _rows(probs: Tensor, batch: object, names: list[str], whole: bool) -> Iterator[Row]:
    """Label, prediction, probability and, if ``whole``, all probabilities of every sample."""
    # Without labels, -100 or -1 stand for them in data that has to have some.
    labels = _integers(batch, 1, len(probs)) or [-1] * len(probs)
    top, preds = probs.max(dim=1)
    # Significant digits: with decimals, all that is nearly certain would be equal.
    shown = torch.cat((top[:, None], probs), dim=1) if whole else top[:, None]
    for label, pred, values in zip(labels, preds.tolist(), shown.tolist(), strict=True):
        name = "" if label < 0 else names[label] if label < len(names) else str(label)
        yield [name, names[pred], *(f"{value:.6g}" for value in values)]


def _integers(batch: object, place: int, size: int) -> list[int] | None:
    """What a batch ``(images, labels, index)`` has in a place, if it is ``(size,)`` integers."""
    values = batch[place] if isinstance(batch, tuple | list) and len(batch) > place else None
    if not isinstance(values, Tensor) or values.shape != (size,):
        return None
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        return None
    integers: list[int] = values.tolist()
    return integers


def _sort(part: Path) -> None:
    """Put a part in order. Its loader shuffles, and this is the one thing that takes memory."""
    with _open(part) as file:
        header, *rows = csv.reader(file)
    with _open(part, "w") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *sorted(rows, key=_position)])


def _position(row: Row) -> int:
    return int(row[0])


def _unique(rows: Iterator[Row]) -> Iterator[Row]:
    """Rows in order, without the samples that torch's own DistributedSampler repeats."""
    last = ""
    for row in rows:
        if row[0] != last:
            yield row
        last = row[0]


def _open(file: Path, mode: str = "r") -> TextIO:
    return file.open(mode, encoding="utf-8", newline="")  # type: ignore[return-value]
