"""The images that names stand for: files, folders, patterns such as ``*.png``, tables."""

import csv
import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from project.listing import EXTENSIONS, PathTable, extension, is_junk, list_folder
from project.mistakes import UserError, did_you_mean


@dataclass(frozen=True)
class NamedImages:
    """Images in the order in which they were named; whether they can be read is seen later.

    Args:
        paths: Their files.
        reasons: Why a file or folder among them cannot be read, where the listing says so.
    """

    paths: PathTable
    reasons: dict[str, str] = field(default_factory=dict)


def names_among(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part a command line: names of images, and settings such as ``--data.batch_size 8``.

    What follows ``--`` are names, also those that begin with a dash.
    """
    end = args.index("--") if "--" in args else len(args)
    args, after = args[:end], args[end + 1 :]
    names: list[str] = []
    settings: list[str] = []
    for before, arg in zip(["", *args], args, strict=False):
        is_value = before.startswith("--") and "=" not in before and before != "--print_config"
        (settings if arg.startswith("-") or is_value else names).append(arg)
    return [*names, *after], settings


def find_images(names: Sequence[str]) -> NamedImages:
    """Find the images that names stand for.

    Args:
        names: Files; folders, with all images below them; patterns, where ``**`` is any folder;
            tables ``.csv`` with a column ``path``, relative to the table.

    Raises:
        UserError: If a name stands for nothing.
    """
    reasons: dict[str, str] = {}
    return NamedImages(PathTable.of(p for name in names for p in _images(name, reasons)), reasons)


def _images(name: str, reasons: dict[str, str]) -> Iterator[str]:
    if os.path.isdir(name):
        found, none = _in_folder(name, reasons), f"{name} is a folder without images."
    elif os.path.lexists(name):  # a link that leads nowhere, too: reading it says so
        found = _in_table(name, reasons) if extension(name) == ".csv" else iter([name])
        none = f"{name} is a table without a line."
    elif re.search(r"[*?[]", name):
        found, none = _matching(name), f"{name} matches no image."
    else:
        bare = name.rstrip("/")
        near = did_you_mean(os.path.basename(bare), _beside(bare))
        found, none = iter(()), f"There is no file or folder {name}.{near}"
    first = next(found, None)
    if first is None:
        raise UserError(
            f"{none}\nGive files, folders, patterns such as 'photos/**/*.png', or a CSV with a "
            "column path."
        )
    yield from chain([first], found)


def _in_folder(folder: str, reasons: dict[str, str]) -> Iterator[str]:
    listing = list_folder(folder)
    bad = {os.path.join(folder, path): reason for path, reason in listing.bad}
    reasons |= bad
    yield from (os.path.join(folder, path) for path in listing.paths)
    yield from bad


def _matching(pattern: str) -> Iterator[str]:
    for path in sorted(glob.glob(pattern, recursive=True)):
        image = extension(path) in EXTENSIONS and not is_junk(os.path.basename(path))
        if image and not os.path.isdir(path):
            yield path


def _in_table(file: str, reasons: dict[str, str]) -> Iterator[str]:
    try:
        with open(file, newline="", encoding="utf-8-sig", errors="surrogateescape") as stream:
            head = next(filter(str.strip, stream), "")
            stream.seek(0)
            cells = csv.reader(stream, delimiter=max(",;\t", key=head.count), skipinitialspace=True)
            lines = filter(any, cells)  # others are blank
            first = next(lines, ["path"])
            names = [cell.strip().lower() for cell in first]
            has_header = "path" in names
            if not has_header and extension(first[0]) not in EXTENSIONS:
                raise UserError(f"{file} has no column path, it has {', '.join(first)}.")
            at = names.index("path") if has_header else 0
            for line in lines if has_header else chain([first], lines):
                path = line[at].strip() if at < len(line) else ""
                if not path:
                    reasons[""] = "its line of the table has no path"
                yield path and os.path.join(os.path.dirname(file), path)
    except (OSError, csv.Error) as error:
        raise UserError(f"{file} cannot be read: {error}.") from None


def _beside(name: str) -> list[str]:
    try:
        return os.listdir(os.path.dirname(name) or ".")
    except OSError:
        return []
