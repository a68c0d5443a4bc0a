"""From a CSV file to a table of numbers: separator, header, and what is wrong with which line."""

import csv
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn, TextIO

import numpy as np
import torch

from project.data.reading.index import EXTENSIONS, PathTable
from project.data.reading.sources import SPLITS, nearest, note
from project.data.reading.table import Columns, Table
from project.mistakes import UserError

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
# Labels that are none, in any case; "none" and "NA" may be names of classes.
_NOTHING = {"", "nan", "<na>", "#n/a"}
_ALL = "all"
_SHOWN = 300  # characters of a path, which may be half of the table after an open quote
_LOOK = 20  # lines that show which separator it is


class Place(NamedTuple):
    """Where in a line things are."""

    path: int
    label: int
    split: int | None
    width: int  # number of cells


def read_table(file: Path, image_dir: Path, columns: Columns) -> Table:
    """Read a CSV file.

    Args:
        file: The CSV file.
        image_dir: What its paths are relative to.
        columns: Their headers.

    Raises:
        UserError: If it is no such file, or if a file stands in it with two labels.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            found = _Reader(file, image_dir, columns).read(stream)
    except OSError as error:
        raise UserError(
            f"{file} cannot be read: {(error.strerror or str(error)).lower()}.{nearest(file)}\n"
            "Set --data.csv_file to a table with a path and a label on each line."
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is no UTF-8 (byte {error.start}); save it as such.") from None
    except csv.Error as error:
        raise UserError(f"{file} is no table: {error}.") from None
    return found


@dataclass
class _Reader:
    """A table in the making.

    Args:
        file: The CSV file.
        image_dir: What its paths are relative to.
        columns: Their headers.
    """

    file: Path
    image_dir: Path
    columns: Columns
    codes: "array[int]" = field(default_factory=lambda: array("i"))
    parts: "array[int]" = field(default_factory=lambda: array("i"))
    lines: "array[int]" = field(default_factory=lambda: array("i"))
    hashes: "array[int]" = field(default_factory=lambda: array("q"))
    texts: dict[str, int] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    bad: list[tuple[str, str]] = field(default_factory=list)

    def read(self, stream: TextIO) -> Table:
        """Read all lines."""
        separator = self._separator(stream)
        lines = csv.reader(stream, delimiter=separator, skipinitialspace=True)
        first = next(cells for cells in lines if any(cells))
        place, is_header = self._place([cell.strip() for cell in first])
        if not is_header:
            stream.seek(0)
            lines = csv.reader(stream, delimiter=separator, skipinitialspace=True)
        paths = PathTable.of(self._paths(lines, place))
        codes, parts, numbers = (_tensor(a) for a in (self.codes, self.parts, self.lines))
        texts, splits = list(self.texts), list(self.splits)
        table = Table(self.file, paths, codes, parts, numbers, texts, splits, self.bad)
        return self._without_repeats(table)

    def _separator(self, stream: TextIO) -> str:
        """Return what parts the cells: what gives the most lines as many cells as the first."""
        head = [line for line in (stream.readline() for _ in range(_LOOK)) if line.strip()]
        stream.seek(0)
        scores = {}
        for separator in _SEPARATORS:
            rows = list(csv.reader(head, delimiter=separator, skipinitialspace=True))
            first = [cell.strip() for cell in rows[0]] if rows else []
            named = self.columns.path in first and self.columns.label in first
            fitting = sum(len(row) == len(first) for row in rows)
            scores[separator] = (named, fitting) if len(first) > 1 else (False, 0)
        best = max(_SEPARATORS, key=lambda separator: scores[separator])
        if scores[best] == (False, 0):
            raise UserError(
                f"{self.file} has no line with a path and a label, parted by "
                f"{', '.join(_SEPARATORS.values())}."
            )
        return best

    def _place(self, first: list[str]) -> tuple[Place, bool]:
        """Find the columns; whether the first line is a header."""
        names = [cell.casefold() for cell in first]
        path, label, split = (name.casefold() for name in self.columns)
        if path in names and label in names:
            at = names.index(path), names.index(label)
            if not (self.image_dir / first[at[0]]).is_file():
                self._check_split(split in names, first)
                where = names.index(split) if split in names else None
                return Place(*at, where, len(first)), True
        is_file = first[0].lower().endswith(EXTENSIONS) or (self.image_dir / first[0]).is_file()
        if not is_file or self.columns != Columns():
            self._refuse_header(first, names)
        third = len(first) == 3 and _split_of(first[2]) is not None
        if len(first) != 2 + third:
            raise UserError(
                f"{self.file} has {len(first)} columns and no header; without one they are path, "
                "label and maybe split.\nAdd a header. Several columns of targets are another task."
            )
        return Place(0, 1, 2 if third else None, len(first)), False

    def _check_split(self, has_split: bool, first: list[str]) -> None:
        if not has_split and self.columns.split != Columns().split:
            raise UserError(
                f"{self.file} has no column {self.columns.split}; it has {', '.join(first)}."
            )

    def _refuse_header(self, first: list[str], names: list[str]) -> NoReturn:
        wanted = {"path": self.columns.path, "label": self.columns.label}
        missing = {key: name for key, name in wanted.items() if name.casefold() not in names}
        known = {name.casefold() for name in self.columns}
        rest = [cell for cell in first if cell and cell.casefold() not in known]
        answers = rest if len(rest) == len(missing) else [""] * len(missing)
        settings = zip(missing, answers, strict=True)
        raise UserError(
            f"{self.file} has no column {' and '.join(missing.values())}; it has "
            f"{', '.join(first[:12])}.\n"
            f"Set {' and '.join(f'--data.{key}_column {said}'.strip() for key, said in settings)}. "
            "One column has the label, not one for each class."
        )

    def _paths(self, lines: Iterator[list[str]], place: Place) -> Iterator[str]:
        """Yield the paths of the lines that can be used, and note all else."""
        for cells in lines:
            if not any(cells):
                continue
            number: int = lines.line_num  # type: ignore[attr-defined]
            path = cells[place.path].strip() if place.path < len(cells) else ""
            shown = " ".join(path[:_SHOWN].split())
            name = f"{self.file}, line {number}" + (f" ({shown})" if shown else "")
            reason = self._flaw(cells, place)
            if reason is not None:
                self.bad.append((name, reason))
                continue
            text = cells[place.label].strip()
            split = _ALL if place.split is None else _split_of(cells[place.split]) or ""
            path = os.path.normpath(path)
            self.codes.append(self.texts.setdefault(text, len(self.texts)))
            self.parts.append(self.splits.setdefault(split, len(self.splits)))
            self.lines.append(number)
            self.hashes.append(hash(path))
            yield path

    def _flaw(self, cells: list[str], place: Place) -> str | None:
        if len(cells) != place.width:
            return f"{len(cells)} cells, the first line has {place.width}; quote those with commas"
        if not cells[place.path].strip():
            return "the path is missing"
        label = cells[place.label].strip()
        if label.casefold() in _NOTHING:
            return f"the label is missing ({label or 'empty'})"
        if place.split is not None and _split_of(cells[place.split]) is None:
            return f"the split {cells[place.split].strip()!r} is none of train, val, test"
        return None

    def _without_repeats(self, table: Table) -> Table:
        """Leave out lines that say again what another one said.

        Raises:
            UserError: If one says another thing.
        """
        hashes = np.frombuffer(self.hashes, np.int64) if self.hashes else np.zeros(0, np.int64)
        order = np.argsort(hashes, kind="stable")
        again = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
        repeats = []
        for at in again.tolist():
            one, two = int(order[at]), int(order[at + 1])
            if table.paths[one] != table.paths[two]:
                continue
            if table.codes[one] != table.codes[two] or table.parts[one] != table.parts[two]:
                raise UserError(
                    f"{table.file}: lines {int(table.lines[one])} and {int(table.lines[two])} "
                    f"both have {table.paths[one]}, with different labels or splits.\n"
                    "Delete one of them."
                )
            repeats.append(two)
        if repeats:
            note(
                f"Not read: {len(repeats):,} lines of {table.file} that repeat another, e.g. line "
                f"{int(table.lines[min(repeats)])}"
            )
            table.parts = table.parts.clone()
            table.parts[torch.tensor(repeats)] = -1
        return table


def _tensor(numbers: "array[int]") -> torch.Tensor:
    empty = torch.zeros(0, dtype=torch.int32)  # frombuffer refuses it
    return torch.from_numpy(np.frombuffer(numbers, np.int32)) if numbers else empty


def _split_of(cell: str) -> str | None:
    word = cell.strip().casefold()
    return next((split for split, words in SPLITS.items() if word in words), None)
