"""Tables of predictions on the disk: parts that grow row by row, and the file they end up in."""

import contextlib
import csv
import heapq
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from project.mistakes import UserError

Row = list[str]
Write = Callable[[Path, Row, Iterator[Row]], None]

# Rows of a Parquet file that are packed together: what reading or writing it keeps in memory.
_GROUP = 10_000
_TOLD = 2  # errors that are shown


def check_format(path: Path) -> None:
    """Refuse a file whose kind is not known, before anything is predicted.

    Raises:
        UserError: If its name does not end as one of ``FORMATS``, or a package is missing.
    """
    if path.suffix not in FORMATS:
        raise UserError(
            f"Predictions go to a file that ends in {', '.join(FORMATS)}, not to {path}.\n"
            f"E.g. --output {path.with_suffix('.csv')}"
        )
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UserError("A Parquet file needs pyarrow: pip install -e '.[parquet]'")


def open_text(file: Path, mode: str = "r") -> TextIO:
    """Open a part; names that are no UTF-8 come out as they went in."""
    return file.open(mode, encoding="utf-8", errors="surrogateescape", newline="")  # type: ignore[return-value]


class RowWriter:
    """Write rows of CSV whose lines end in a newline alone.

    Python before 3.13 quotes a carriage return, which a file's name may have, only where it is the
    end of a line too. So it is, and is left out here.

    Args:
        file: As ``open_text`` opens it.
    """

    def __init__(self, file: TextIO) -> None:
        self.file, self._lines = file, csv.writer(self)
        self.row, self.rows = self._lines.writerow, self._lines.writerows

    def write(self, line: str) -> int:
        """Write a line of the csv module's."""
        return self.file.write(line.removesuffix("\r\n") + "\n")


def sort(part: Path) -> None:
    """Put a part in order. Its loader shuffles, and this is the one thing that takes memory."""
    with open_text(part) as file:
        header, *rows = csv.reader(file)
    with open_text(part, "w") as file:
        RowWriter(file).rows([header, *sorted(rows, key=_position)])


@dataclass
class Counts:
    """What is in a file of predictions.

    Args:
        rows: One for every image.
        errors: Rows with an error instead of a prediction.
        first: What some of these say, beginning with the file's name if it is known.
    """

    rows: int = 0
    errors: int = 0
    first: list[str] = field(default_factory=list)


def merge(parts: Sequence[Path], to: Path, suffix: str, default: Row) -> Counts:
    """Write the rows of parts that are in order into one file.

    Args:
        parts: With a header each, or empty.
        to: The file.
        suffix: Its kind, one of ``FORMATS``.
        default: The header if there is no row at all.
    """
    with contextlib.ExitStack() as stack:
        files = [csv.reader(stack.enter_context(open_text(part))) for part in parts]
        header = max((next(file, default) for file in files), key=len)
        error = header.index("error") if "error" in header else None
        counts = Counts()

        def whole() -> Iterator[Row]:
            for row in _unique(heapq.merge(*files, key=_position)):
                counts.rows += 1
                if error is not None and row[error]:
                    counts.errors += 1
                    if counts.errors <= _TOLD:
                        counts.first.append(": ".join(cell for cell in row[1 : error + 1] if cell))
                yield row + [""] * (len(header) - len(row))  # one with an error ends there

        FORMATS[suffix](to, header, whole())
    return counts


def _position(row: Row) -> int:
    return int(row[0])


def _unique(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows in order, without the samples that torch's own DistributedSampler repeats."""
    last = ""
    for row in rows:
        if row[0] != last:
            yield row
        last = row[0]


def _csv(path: Path, header: Row, rows: Iterator[Row]) -> None:
    with open_text(path, "w") as file:
        RowWriter(file).rows(chain([header], rows))


def _jsonl(path: Path, header: Row, rows: Iterator[Row]) -> None:
    kinds = [_kind(name) for name in header]
    with open_text(path, "w") as file:
        for row in rows:
            values = [kind(cell) if cell else None for kind, cell in zip(kinds, row, strict=True)]
            file.write(json.dumps(dict(zip(header, values, strict=True)), ensure_ascii=False))
            file.write("\n")


def _parquet(path: Path, header: Row, rows: Iterator[Row]) -> None:
    import pyarrow as pa  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from pyarrow import parquet  # type: ignore[import-not-found, import-untyped, unused-ignore]

    kinds = [_kind(name) for name in header]
    types: dict[Any, Any] = {int: pa.int64(), float: pa.float64()}
    schema = pa.schema([(n, types.get(k, pa.string())) for n, k in zip(header, kinds, strict=True)])
    with parquet.ParquetWriter(path, schema) as writer:
        while group := list(islice(rows, _GROUP)):
            columns = zip(*group, strict=True)
            arrays = [
                pa.array([kind(cell) if cell else None for cell in column], field.type)
                for kind, column, field in zip(kinds, columns, schema, strict=True)
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _kind(column: str) -> Callable[[str], Any]:
    """What the cells of a column are."""
    if column == "index":
        return int
    return float if column.startswith("prob") else _text


def _text(cell: str) -> str:
    """Return a text that is UTF-8, whatever a file is called."""
    return cell.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


FORMATS: dict[str, Write] = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
