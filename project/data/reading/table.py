"""What a CSV file of paths, labels and splits says, as tables of numbers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from project.data.reading.index import PathTable
from project.mistakes import UserError

_WHOLE = re.compile(r"[+-]?\d{1,18}(\.0*)?")  # what fits 64 bits
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


class Columns(NamedTuple):
    """Headers of the columns."""

    path: str = "path"
    label: str = "label"
    split: str = "split"


@dataclass
class Table:
    """What a CSV file says, without a Python object for any line.

    Args:
        file: The CSV file.
        paths: Of the images.
        codes: Which of ``texts`` each label is, int32 ``(N,)``.
        parts: Which of ``splits`` each line is for, int32 ``(N,)``.
        lines: Numbers of the lines, int32 ``(N,)``.
        texts: Labels as they are written.
        splits: Names of the splits, in the order of their appearance; ``all`` if nothing is said.
        bad: Line and reason of what cannot be used.
    """

    file: Path
    paths: PathTable
    codes: Tensor
    parts: Tensor
    lines: Tensor
    texts: list[str]
    splits: list[str]
    bad: list[tuple[str, str]] = field(default_factory=list)

    def rows(self, split: str) -> Tensor:
        """Return the rows of a split."""
        part = self.splits.index(split) if split in self.splits else -1
        return (self.parts == part).nonzero()[:, 0]

    def class_names(self, split: str) -> list[str]:
        """Return the labels of a split, sorted; whole numbers by value, from 0 on.

        Raises:
            UserError: If they are numbers, but not those of classes.
        """
        texts = [self.texts[code] for code in torch.unique(self.codes[self.rows(split)]).tolist()]
        if len(texts) < 2:
            what = f"only the label {texts[0]}" if texts else "no label"
            raise UserError(f"{self.file} has {what} to train on; two classes are the least.")
        if not all(map(_NUMBER.fullmatch, texts)):
            return sorted(texts)
        for text in texts:
            if not _WHOLE.fullmatch(text):
                raise UserError(
                    f"{self.file}, line {self._line(text)}: the label {text[:40]} is no class.\n"
                    "A class is a name or a whole number from 0 on; regression is another task."
                )
        numbers = sorted(set(map(_number, texts)))
        if numbers != list(range(len(numbers))):
            self._refuse(numbers, texts)
        return [str(number) for number in numbers]

    def labels(self, rows: Tensor, class_names: Sequence[str]) -> Tensor:
        """Return the label of every row, int32; -1 for what is none of the classes."""
        known = {name: label for label, name in enumerate(class_names)}
        named = not any(map(_WHOLE.fullmatch, class_names))  # then numbers stand for their places
        for label in range(len(class_names) if named else 0):
            known[str(label)] = label
        found = [known.get(text, known.get(_plain(text), -1)) for text in self.texts]
        return torch.tensor(found, dtype=torch.int32)[self.codes[rows]]

    def _line(self, text: str) -> int:
        code = self.texts.index(text)
        return int(self.lines[self.codes == code][0])

    def _refuse(self, numbers: list[int], texts: list[str]) -> NoReturn:
        worst = numbers[0] if numbers[0] < 0 else numbers[-1]
        text = next(text for text in texts if _number(text) == worst)
        there = set(numbers)
        missing = list(islice((n for n in range(numbers[-1]) if n not in there), 5))
        gaps = f" without {', '.join(map(str, missing))}" if missing else ""
        raise UserError(
            f"{self.file}: the labels go from {numbers[0]} to {numbers[-1]}{gaps} (line "
            f"{self._line(text)} has {text}).\nThey have to be all numbers from 0 on. If they are "
            "names: --data.class_names '[...]' lists them in order."
        )


def _plain(text: str) -> str:
    return str(_number(text)) if _WHOLE.fullmatch(text) else text


def _number(text: str) -> int:
    return int(text.partition(".")[0])  # not by way of a float, which rounds
