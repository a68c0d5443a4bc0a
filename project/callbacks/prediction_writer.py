"""What a prediction leaves behind: one table, one row for every image."""

import contextlib
import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import lightning as L
import torch
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor

from project.callbacks.board import class_names
from project.callbacks.prediction_files import (
    Counts,
    Row,
    RowWriter,
    check_format,
    merge,
    open_text,
    sort,
)
from project.mistakes import RunFailed, UserError
from project.probs import check_probs

_PREDICTED = "prediction", "probability"
_OFF = "To predict without a file: --predictions null"


class PredictionWriter(BasePredictionWriter):
    """Write the predictions of ``lightning predict`` to one file, in the order of the images.

    A row has the image's ``index``, its ``path`` if the data module has ``predict_path(index)``,
    its ``label`` (empty where the data has none), the predicted class, ``prediction``, its
    ``probability``, the next ones of ``top_k``, ``prediction_2``, ``probability_2`` and so on, and,
    where there are not too many classes, ``prob_<class>`` for each. Classes have the names that the
    data module gives them. A data module whose images may be unreadable has ``errors``, the reason
    by the index for those of the current batch: then there is a column ``error`` and none of
    labels.

    Expects probabilities ``(B, num_classes)`` from ``predict_step``. Every process streams its rows
    to a part of its own beside the file; the parts are merged in the end, so that memory does not
    grow with the data and the file is whole or as it was. With several nodes the folder has to be
    one that all of them see. A trial run (``fast_dev_run``) writes nothing.

    Args:
        path: The file: ``.csv``, ``.jsonl`` (JSON Lines) or ``.parquet``. It is replaced.
        max_class_columns: Up to so many classes have a column each; 0 for none.
        top_k: How many classes a row names, the most probable first.

    Raises:
        ValueError: If ``path`` is a folder, ``max_class_columns`` negative or ``top_k`` below 1.
        UserError: If ``path`` is of another kind.
    """

    def __init__(self, path: str, max_class_columns: int = 20, top_k: int = 1) -> None:
        super().__init__("batch")
        if not path or Path(path).is_dir():
            raise ValueError(f"path must be a file such as predictions.csv, got {path!r}")
        if max_class_columns < 0:
            raise ValueError(f"max_class_columns must not be negative, got {max_class_columns}")
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        self.path = Path(path)
        check_format(self.path)
        self.max_class_columns, self.top_k = max_class_columns, top_k
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
        with self._writing():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if trainer.is_global_zero:
                self._remove_parts()
            trainer.strategy.barrier()
            self._part = open_text(self._part_of(trainer.global_rank), "w")

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
        probs = check_probs(prediction, batch, _OFF)
        names = class_names(trainer, probs.shape[1])
        if self.top_k > len(names):
            raise UserError(f"--top_k is {self.top_k}, but there are {len(names)} classes.")
        data = getattr(trainer, "datamodule", None)
        path = getattr(data, "predict_path", None)
        errors: dict[int, str] | None = getattr(data, "errors", None)
        whole = len(names) <= self.max_class_columns
        index = self._index(trainer, batch, batch_indices, len(probs))
        labels = [""] * len(probs) if errors is not None else _labels(batch, names, len(probs))
        found = zip(index, labels, _predicted(probs, names, self.top_k, whole), strict=True)
        rows = [(sample, [label, *cells]) for sample, label, cells in found]
        # Where there may be errors, they stand in the place of labels that nobody knows.
        rows += [(sample, [reason]) for sample, reason in (errors or {}).items()]
        with self._writing():
            if self._part.tell() == 0:
                header = self._header(path, errors is not None, names if whole else [])
                RowWriter(self._part).row(header)
            self._write(sorted(rows, key=_first), path)

    def _write(self, rows: list[tuple[int, Row]], path: Callable[[int], str] | None) -> None:
        assert self._part is not None
        writer = RowWriter(self._part)
        for sample, cells in rows:
            if sample < 0:  # padding, so that all processes have equally many
                continue
            self._sorted &= sample > self._last
            self._last = sample
            writer.row([sample, *([path(sample)] if path else []), *cells])

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Say why the file cannot be written, e.g. because the disk is full."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"Cannot write to {self.path}: {error.strerror}.\nName another file: --output FILE"
            ) from error

    def _header(self, path: object, errors: bool, classes: Sequence[str]) -> Row:
        top = [f"{name}_{k}" for k in range(2, self.top_k + 1) for name in _PREDICTED]
        first = ["index", *(["path"] if path else []), "error" if errors else "label"]
        return [*first, *_PREDICTED, *top, *(f"prob_{name}" for name in classes)]

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
        with self._writing():
            self._close()
            if not self._sorted:
                sort(self._part_of(trainer.global_rank))
        trainer.strategy.barrier()  # every part is complete
        if trainer.is_global_zero:
            with self._writing():
                counts = self._merge(trainer.world_size)
            rows, errors = counts.rows, counts.errors
            bad = f", {errors:,} of them with an error instead of a prediction" if errors else ""
            where = ": see the column error" if errors else ""
            many = "row" if rows == 1 else "rows"
            pl_module.print(f"Predictions  {self.path}, {rows:,} {many}{bad}{where}")

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Leave nothing half done behind; the file of an earlier prediction stays."""
        if self._token:
            with contextlib.suppress(OSError):  # what is still to be written may find a full disk
                self._close()
            with contextlib.suppress(OSError):
                self._remove_parts(self._token)

    def _close(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.close()

    def _part_of(self, rank: int | str) -> Path:
        return self.path.with_name(f"{self.path.name}.{self._token}-{rank}.part")

    def _remove_parts(self, token: str = "") -> None:
        for file in self.path.parent.iterdir():
            if file.name.startswith(f"{self.path.name}.{token}") and file.suffix == ".part":
                file.unlink(missing_ok=True)

    def _merge(self, world_size: int) -> Counts:
        """Put the file in its place, unless it holds nothing but errors; return what is in it."""
        merged, parts = self._part_of("all"), [self._part_of(rank) for rank in range(world_size)]
        try:
            counts = merge(parts, merged, self.path.suffix, self._header(None, False, []))
            if counts.rows and counts.errors == counts.rows:
                raise RunFailed(_nothing_read(counts, self.path))
            os.replace(merged, self.path)
        except FileNotFoundError as error:
            raise UserError(
                f"{self.path} is not written: {error.filename} is gone.\nAll processes need to see "
                "the same folder, and only one prediction at a time can write to a file."
            ) from error
        finally:
            self._remove_parts(self._token)
        return counts


def _nothing_read(counts: Counts, path: Path) -> str:
    what = "The image" if counts.rows == 1 else f"None of the {counts.rows:,} images"
    cannot = "cannot be read" if counts.rows == 1 else "can be read"
    return "\n".join([f"{what} {cannot}, so nothing is written to {path}:", *counts.first])


def _labels(batch: object, names: list[str], size: int) -> list[str]:
    """Name the label of every sample; -100 or -1 stand for none in data that has to have some."""
    labels = _integers(batch, 1, size) or [-1] * size
    return [
        "" if label < 0 else names[label] if label < len(names) else str(label) for label in labels
    ]


def _predicted(probs: Tensor, names: list[str], top_k: int, whole: bool) -> Iterator[Row]:
    """Prediction and probability ``top_k`` times and, if ``whole``, all probabilities."""
    # A stable sort has the first of equal classes first, as `max` has.
    values, preds = probs.sort(dim=1, descending=True, stable=True)
    for labels, top, every in zip(preds.tolist(), values.tolist(), probs.tolist(), strict=True):
        row: Row = []
        for label, value in zip(labels[:top_k], top[:top_k], strict=True):
            row += [names[label], _figure(value)]
        yield row + [_figure(value) for value in every if whole]


def _figure(value: float) -> str:
    """Significant digits: with decimals, all that is nearly certain would be equal."""
    return f"{value:.6g}"


def _first(pair: tuple[int, Row]) -> int:
    return pair[0]


def _integers(batch: object, place: int, size: int) -> list[int] | None:
    """What a batch ``(images, labels, index)`` has in a place, if it is ``(size,)`` integers."""
    values = batch[place] if isinstance(batch, tuple | list) and len(batch) > place else None
    if not isinstance(values, Tensor) or values.shape != (size,):
        return None
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        return None
    integers: list[int] = values.tolist()
    return integers
