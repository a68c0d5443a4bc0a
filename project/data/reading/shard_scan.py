"""What an index of shards is made of: every image of an archive looked at once."""

import json
import os
import re
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from statistics import median_low
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from project.data.reading.image_file import decode
from project.data.reading.shard_reader import FORMAT, ROW, Shard, ShardIndex, Table
from project.data.reading.sources import some
from project.listing import EXTENSIONS
from project.mistakes import UserError

# A class by its number or its name.
Label = int | str
_LABELS = ("cls", "json")
# Of all images, at most this share may be left out, as from a folder.
_TOLERATED = 0.05
# What image_size is proposed at most, in pixels, as for a folder.
LARGEST = 224
_NAMED = 10
_LEVELS = np.arange(256.0)


@dataclass
class Scan:
    """The samples of one archive.

    Args:
        name: Path below the folder of the index.
        size: Of the archive, in bytes.
        rows: Offset, size and CRC-32 of every image.
        labels: Of every image.
        bad: Members that are left out, and why.
        grey: Whether no image has colours.
        sides: Shorter side of every image.
        means: Sum over them of their mean, per channel, in [0, 255].
        squares: Likewise of the mean of their squares.
    """

    name: str
    size: int = 0
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)
    grey: bool = True
    sides: list[int] = field(default_factory=list)
    means: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    squares: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))

    def look_at(self, content: bytes) -> tuple[int, int]:
        """Decode an image, count its colours, and return its size and CRC-32.

        Raises:
            BadImage: If it cannot be read.
        """
        image, grey = decode(content)
        counts = np.array(image.histogram(), np.float64).reshape(3, 256)
        shares = counts / counts.sum(axis=1, keepdims=True)
        self.grey &= grey
        self.sides.append(min(image.size))
        self.means += shares @ _LEVELS
        self.squares += shares @ _LEVELS**2
        return len(content), zlib.crc32(content)


def scan_archive(folder: Path, name: str) -> Scan:
    """Look at every image of an archive.

    Args:
        folder: Of the index.
        name: Path of the archive below it.

    Raises:
        UserError: If it is no tar archive, or is cut off.
    """
    members = _Members(Scan(name))
    try:
        with (folder / name).open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if member.isfile():
                    members.take(member, file)
            members.scan.size = file.seek(0, os.SEEK_END)
            file.seek(max(0, members.scan.size - 2 * tarfile.BLOCKSIZE))
            if any(file.read()):
                raise tarfile.ReadError("it is cut off: the end mark is missing")
    except (tarfile.TarError, OSError) as error:
        what = "is no whole, uncompressed tar archive"
        raise UserError(f"{folder / name} {what}: {error}") from error
    return members.joined()


@dataclass
class _Members:
    """What an archive has of every sample, by what their names have in common.

    Args:
        scan: Gets the samples.
        rows: Name of the image and its row.
        labels: Of every sample.
    """

    scan: Scan
    rows: dict[str, tuple[str, tuple[int, int, int]]] = field(default_factory=dict)
    labels: dict[str, Label] = field(default_factory=dict)

    def take(self, member: tarfile.TarInfo, file: BinaryIO) -> None:
        """Look at a member, if it is an image or a label."""
        path = PurePosixPath(member.name)
        place, _, kind = path.name.partition(".")
        key, kind = f"{path.parent}/{place}", kind.lower()
        if f".{kind}" not in EXTENSIONS and kind not in _LABELS:
            return
        file.seek(member.offset_data)
        content = file.read(member.size)
        try:
            if kind in _LABELS:
                self.labels.setdefault(key, _label(kind, content))
            elif key in self.rows:
                raise ValueError(f"the sample has another image, {self.rows[key][0]}")
            else:
                row = self.scan.look_at(content)
                self.rows[key] = member.name, (member.offset_data, *row)
        except ValueError as error:  # BadImage is one
            self.scan.bad.append((f"{self.scan.name}/{member.name}", str(error)))

    def joined(self) -> Scan:
        """Return the scan with the images that have labels."""
        for key, (name, row) in self.rows.items():
            if key in self.labels:
                self.scan.rows.append(row)
                self.scan.labels.append(self.labels[key])
            else:
                where = f"{self.scan.name}/{name}"
                self.scan.bad.append((where, "no label: no .cls or .json beside it"))
        return self.scan


def judge(scans: Mapping[str, Sequence[Scan]], on_error: str) -> None:
    """Stop, or say what is left out, if images cannot be used.

    Args:
        scans: Of every split.
        on_error: ``stop`` or ``skip``.

    Raises:
        UserError: With up to ten of them.
    """
    every = [scan for split in scans.values() for scan in split]
    bad = [entry for scan in every for entry in scan.bad]
    total = len(bad) + sum(len(scan.rows) for scan in every)
    if not bad:
        return
    what = f"{len(bad):,} of {total:,} images cannot be used"
    if on_error == "skip" and len(bad) <= _TOLERATED * total:
        print(f"Left out: {what}, e.g. {bad[0][0]}: {bad[0][1]}")
        return
    limit = f", more than the {_TOLERATED:.0%} that skip leaves out" if on_error == "skip" else ""
    lines = [f"  {name}: {reason}" for name, reason in bad[:_NAMED]]
    lines += [f"  and {len(bad) - _NAMED:,} more"] if len(bad) > _NAMED else []
    way = (
        "Repair them." if on_error == "skip" else "Repair them, or leave them out: --on_error skip"
    )
    raise UserError("\n".join([f"{what}{limit}:", *lines, way]))


def write_index(
    folder: Path, scans: Mapping[str, Sequence[Scan]], class_names: Sequence[str] | None
) -> None:
    """Write the index of a folder, and say what is in it.

    Args:
        folder: Of the archives.
        scans: Of every split; one of them is ``train``.
        class_names: Name of every class, or None to take them from the labels.

    Raises:
        UserError: If there is nothing to train on, or a label has no class.
    """
    every = [scan for split in scans.values() for scan in split]
    if not any(scan.rows for scan in scans.get("train", ())):
        raise UserError(f"{folder}: there is no image to train on")
    classes = list(class_names) if class_names is not None else _classes(every)
    channels = 1 if all(scan.grey for scan in every) else 3
    tables = {split: _table(part, classes) for split, part in scans.items()}
    for split, table in tables.items():
        _replace(folder / f"{split}.npy", table)
        absent = sorted(set(range(len(classes))) - set(table["label"].tolist()))
        if absent:
            names = some([classes[label] for label in absent])
            print(f"Warning: {split} has no image of {names}")
    shards = {
        split: [Shard(scan.name, scan.size, len(scan.rows)) for scan in part]
        for split, part in scans.items()
    }
    sides = [side for scan in scans["train"] for side in scan.sides]
    size = min(median_low(sides), LARGEST)
    index = ShardIndex(classes, channels, size, *_statistics(scans["train"], channels), shards)
    _replace(folder / "index.json", {"format": FORMAT, **asdict(index)})
    counts = ", ".join(
        f"{split} {sum(shard.samples for shard in part):,} images in {len(part):,} shards"
        for split, part in shards.items()
    )
    print(f"{folder / 'index.json'}: {len(classes)} classes, {counts}")


def _classes(scans: Sequence[Scan]) -> list[str]:
    """Name the classes by what the labels are."""
    labels = {label for scan in scans for label in scan.labels}
    numbers = [label for label in labels if isinstance(label, int)]
    if len(numbers) == len(labels):
        return [str(number) for number in range(max(numbers, default=-1) + 1)]
    if numbers:
        raise UserError(f"Some labels are numbers, such as {numbers[0]}, and some are names.")
    return sorted(str(label) for label in labels)


def _table(scans: Sequence[Scan], class_names: list[str]) -> Table:
    """Join what was found to the table of a split."""
    numbers: dict[Label, int] = {name: number for number, name in enumerate(class_names)}
    numbers |= {number: number for number in range(len(class_names))}
    table = np.zeros(sum(len(scan.rows) for scan in scans), ROW)
    at = 0
    for scan in scans:
        for (offset, size, crc), label in zip(scan.rows, scan.labels, strict=True):
            if label not in numbers:
                raise UserError(
                    f"{scan.name}: no class has the label {label!r}; there are {len(class_names)}, "
                    "numbered from 0."
                )
            table[at] = offset, size, numbers[label], crc
            at += 1
    return table


def _statistics(scans: Sequence[Scan], channels: int) -> tuple[list[float], list[float]]:
    """Mean and deviation per channel as fractions in [0, 1]; every image counts the same."""
    count = sum(len(scan.sides) for scan in scans)
    mean = np.sum([scan.means for scan in scans], axis=0) / count
    variance = np.sum([scan.squares for scan in scans], axis=0) / count - mean**2
    std = np.sqrt(variance.clip(min=1))  # at least one level of 255
    means, stds = ((value / 255).round(4).tolist()[:channels] for value in (mean, std))
    return means, stds


def _replace(path: Path, content: Table | dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        if isinstance(content, dict):
            file.write(json.dumps(content, indent=1).encode())
        else:
            np.save(file, content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def _label(kind: str, content: bytes) -> Label:
    """Read a label out of a ``.cls`` or ``.json`` member."""
    text = content.decode(errors="replace").strip()
    found: object = text
    if kind == "json":
        entry = json.loads(text)
        found = entry.get("label", entry.get("cls")) if isinstance(entry, dict) else None
    if isinstance(found, str) and re.fullmatch(r"[+-]?\d+", found):
        found = int(found)
    if not isinstance(found, int | str) or isinstance(found, bool) or found == "":
        raise ValueError(f"no label in it: {text[:80]!r}")
    return found
