"""Where files come from, which of them can be used, and what is said about those that cannot."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from project.data.reading.index import Checked, PathTable, check_files
from project.mistakes import UserError, did_you_mean

OnError = Literal["stop", "skip"]

# What the splits are called, in any case.
SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
# Files named in a message.
_NAMED = 10
# Share that may be left out.
_TOLERATED = 0.05


@dataclass
class Source:
    """Files of one folder or one table, whichever split they are for.

    Args:
        name: What it is called in messages.
        root: What the paths are relative to.
        paths: Of all files.
        labels: int32 ``(N,)``.
        bad: Name and reason of what is no file to read.
        left_out: Number of files that are no images, by extension.
        lines: Line of every file in the table, int32 ``(N,)``, or None.
        rows: Those that can be used, int64 ``(M,)``.
        contents: Hash of what is in every file, int64 ``(N,)``.
        grey: Which files have no colours, bool ``(N,)``.
        largest: The longest side of all of them, in pixels.
    """

    name: str
    root: Path
    paths: PathTable
    labels: Tensor
    bad: Sequence[tuple[str, str]] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    lines: Tensor | None = None
    rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    contents: Tensor | None = None
    grey: Tensor | None = None
    largest: int = 0

    def file(self, row: int) -> str:
        """Name a file."""
        line = "" if self.lines is None else f"line {int(self.lines[row])}: "
        return f"{line}{self.root / self.paths[row]}"

    def take(self, checked: Checked) -> None:
        """Note which files can be used."""
        self.rows = torch.from_numpy(checked.ok).nonzero()[:, 0]
        self.contents = torch.from_numpy(checked.content_hash)
        self.grey = torch.from_numpy(checked.grey)
        self.largest = max(checked.width.max(initial=0), checked.height.max(initial=0))
        named = [(self.file(row), reason) for row, reason in sorted(checked.reasons.items())]
        self.bad = [*self.bad, *named]

    def of_rows(self) -> tuple[Tensor, Tensor]:
        """Labels int64 and contents of the files that can be used."""
        assert self.contents is not None
        return self.labels[self.rows].long(), self.contents[self.rows]


def check(
    sources: Sequence[Source],
    in_channels: int,
    max_pixels: int,
    cache_dir: str | None,
    on_error: OnError,
) -> None:
    """Decode every file once, and stop, or leave out, if some cannot be.

    Raises:
        UserError: With all of them in one message.
    """
    with tempfile.TemporaryDirectory() as nowhere:
        for source in sources:
            folder = cache_dir or nowhere
            source.take(check_files(source.root, source.paths, in_channels, max_pixels, folder))
    # What is wrong with a whole table stands in each of its sources.
    bad = list(dict.fromkeys(entry for source in sources for entry in source.bad))
    total = len(bad) + sum(len(source.rows) for source in sources)
    _say_left_out(sources)
    if not bad:
        return
    share = f"{len(bad):,} of {total:,} files cannot be used"
    too_many = len(bad) > _TOLERATED * total
    limit = f"more than the {_TOLERATED:.0%} that --data.on_error skip leaves out"
    if too_many:
        raise UserError(_listed(f"{share}, {limit}", bad, "delete them"))
    if on_error == "stop":
        raise UserError(_listed(share, bad, "leave them out: --data.on_error skip"))
    note(f"Left out: {share}, e.g. {bad[0][0]}: {bad[0][1]}")


def _listed(what: str, bad: Sequence[tuple[str, str]], otherwise: str) -> str:
    lines = [f"  {name}: {reason}" for name, reason in bad[:_NAMED]]
    if len(bad) > _NAMED:
        lines.append(f"  and {len(bad) - _NAMED:,} more")
    return "\n".join([f"{what}:", *lines, f"Repair them, or {otherwise}"])


def _say_left_out(sources: Sequence[Source]) -> None:
    counts: dict[str, int] = {}
    for source in sources:
        for extension, count in source.left_out.items():
            counts[extension] = counts.get(extension, 0) + count
    if counts:
        found = ", ".join(f"{n:,} {ext}" for ext, n in sorted(counts.items(), key=lambda e: -e[1]))
        note(f"Not read: {found}")


def check_colours(sources: Sequence[Source]) -> None:
    """Refuse coloured files where those looked at first had no colours.

    Raises:
        UserError: If there is one, by name.
    """
    for source in sources:
        assert source.grey is not None
        coloured = source.rows[~source.grey[source.rows]]
        if len(coloured):
            raise UserError(
                f"{source.file(int(coloured[0]))} has colours, and so have {len(coloured) - 1:,} "
                f"more of {len(source.rows):,} in {source.name}; the first ones looked at had "
                "none.\nSet --data.in_channels 3, or 1 to make all of them grey."
            )


def check_classes(source: Source, class_names: Sequence[str], training: bool) -> None:
    """Refuse classes without an image in training; say which are missing elsewhere.

    Raises:
        UserError: If training lacks a class.
    """
    counts = torch.bincount(source.labels[source.rows].long(), minlength=len(class_names))
    absent = [name for name, n in zip(class_names, counts.tolist(), strict=True) if n == 0]
    if absent and training:
        raise UserError(
            f"{source.name} has no image of {some(absent)}.\nAdd images, or remove the class."
        )
    if absent:
        note(f"Warning: {source.name} has no image of {some(absent)}")


def say_copies(training: Source, others: Sequence[Source]) -> None:
    """Say how many images of given splits are also trained on, and which of two classes."""
    assert training.contents is not None
    labels, contents = training.of_rows()
    for other in others:
        assert other.contents is not None
        shared = torch.isin(other.contents[other.rows], contents)
        if shared.any():
            row = int(other.rows[shared][0])
            twin = int(training.rows[contents == other.contents[row]][0])
            note(
                f"Warning: images of {other.name} that are also trained on: "
                f"{int(shared.sum()):,}, e.g. {other.file(row)} = {training.file(twin)}"
            )
    order = contents.argsort(stable=True)
    same = contents[order][1:] == contents[order][:-1]
    torn = same & (labels[order][1:] != labels[order][:-1])
    if torn.any():
        at = int(torn.nonzero()[0, 0])
        one, two = (training.file(int(training.rows[order[i]])) for i in (at, at + 1))
        count = f"{int(torn.sum()):,}"
        note(f"Warning: images that stand in two classes: {count}, e.g. {one} = {two}")


def some(names: Sequence[str]) -> str:
    """Name classes, the first ten of them."""
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"{'class' if len(names) == 1 else 'classes'} {', '.join(names[:_NAMED])}{more}"


def nearest(path: Path) -> str:
    """Return `` Did you mean a or b?`` for a path that is not there, or an empty string."""
    missing = next((part for part in [*reversed(path.parents), path] if not part.exists()), None)
    if missing is None or not os.access(missing.parent, os.R_OK):
        return ""
    return did_you_mean(missing.name, os.listdir(missing.parent))


@rank_zero_only
def note(line: str) -> None:
    """Say a line, on one process; names of files may be no valid text."""
    print(line.encode("utf-8", "backslashreplace").decode())
