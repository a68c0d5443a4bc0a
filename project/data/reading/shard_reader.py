"""Samples in tar archives (shards), read in any order, from a folder or over the network.

An index beside the shards says where in which archive each image lies, so a sample is one read of
its bytes: nothing is unpacked, downloaded as a whole, or read only to be skipped.

This is why no library for streams of shards stands here. With one, order and batches depend on the
numbers of workers and processes, and every process goes its own way through the shards. Of 93
samples WebDataset 1.0.2 gave two processes 53 and 40, and its deterministic shuffle the same order
in every epoch, where workers end with the epoch; it has no state to resume from. LitData 0.2.76 has
one, but reads a format of its own, not tar, and brings 64 MB of other packages. With an index the
samplers of this house apply as they are: one order for any number of workers and processes, every
sample of an evaluation once, and a resume in the middle of an epoch that costs nothing. fsspec,
which Lightning needs anyway, reads the bytes; the archives keep to WebDataset's convention.

index.json::

    {"format": 1, "class_names": ["cat", ...], "in_channels": 3, "image_size": 224,
     "mean": [...], "std": [...],
     "shards": {"train": [{"name": "train-000000.tar", "size": 10240, "samples": 9}, ...], ...}}

Beside it each split has a table, such as ``train.npy``: a row of ``ROW`` for every sample.
"""

import io
import json
import tarfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import fsspec  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from project.mistakes import UserError

FORMAT = 1
# Where the image's bytes begin in its shard, how many they are, its label and the bytes' CRC-32.
ROW = np.dtype([("offset", "<i8"), ("size", "<u4"), ("label", "<i4"), ("crc", "<u4")])
# Seconds to wait before a read over the network is tried again.
_PAUSES = (0.5, 2.0, 8.0)

T = TypeVar("T")
Table = npt.NDArray[np.void]
_AGAIN = "\nIndex the shards again: python -m project.data.write_shards {}"


@dataclass(frozen=True)
class Shard:
    """A tar archive.

    Args:
        name: Path below the folder of the index.
        size: In bytes.
        samples: Number of samples in it.
    """

    name: str
    size: int
    samples: int


@dataclass(frozen=True)
class ShardIndex:
    """What ``index.json`` says.

    Args:
        class_names: Name of every class, in the order of the labels.
        in_channels: 1 if all images are grey, else 3.
        image_size: Shorter side of the median training image, at most 224 pixels.
        mean: Per channel, of the training images as fractions in [0, 1].
        std: Likewise.
        shards: The shards of every split.
    """

    class_names: list[str]
    in_channels: int
    image_size: int
    mean: list[float]
    std: list[float]
    shards: dict[str, list[Shard]]


def read_index(root: str) -> ShardIndex:
    """Read ``index.json`` of a folder or URL.

    Raises:
        UserError: If there is none, or it cannot be read.
    """

    def parse() -> ShardIndex:
        entry: dict[str, Any] = json.loads(_files(root)[0].cat_file(_path(root, "index.json")))
        if entry.pop("format") != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        splits = entry.pop("shards").items()
        return ShardIndex(
            **entry, shards={name: [Shard(**shard) for shard in split] for name, split in splits}
        )

    return _reading(root, "index.json", parse)


def read_table(root: str, split: str) -> Table:
    """Read the table of a split, ``(samples,)`` of ``ROW``; in a folder it stays on the disk.

    Raises:
        UserError: If there is none, or it cannot be read.
    """
    name = f"{split}.npy"

    def parse() -> Table:
        files, path = _files(root)[0], _path(root, name)
        local = isinstance(files, LocalFileSystem)
        content = path if local else io.BytesIO(files.cat_file(path))
        table: Table = np.load(content, mmap_mode="r" if local else None, allow_pickle=False)
        if table.dtype != ROW:
            raise ValueError("its columns are others")
        return table

    return _reading(root, name, parse)


class ShardReader:
    """The samples of a split, by number.

    Args:
        root: Folder or URL of the index.
        shards: The split's shards.
        table: One row of ``ROW`` per sample, shard after shard.

    Raises:
        UserError: If the shards are not those of the index.
    """

    def __init__(self, root: str, shards: Sequence[Shard], table: Table) -> None:
        self.root, self.shards, self.table = root, shards, table
        self._ends = np.cumsum([shard.samples for shard in shards])
        if len(shards) == 0 or self._ends[-1] != len(table):
            raise UserError(f"{root}: the index does not fit its tables.{_AGAIN.format(root)}")
        files = _files(root)[0]
        if isinstance(files, LocalFileSystem):  # over the network it would take a request each
            for shard in shards:
                self._check(shard, files)

    def _check(self, shard: Shard, files: LocalFileSystem) -> None:
        path = _path(self.root, shard.name)
        size = files.size(path) if files.exists(path) else None
        if size != shard.size:
            what = "is not there" if size is None else f"has {size} bytes, not {shard.size}"
            raise UserError(f"{path} {what}; the index is of another.{_AGAIN.format(self.root)}")

    def __len__(self) -> int:
        return len(self.table)

    def read(self, rows: Sequence[int]) -> list[bytes]:
        """Return the images' bytes, as they are in the files.

        Raises:
            UserError: If a shard cannot be read, or has changed since it was indexed.
        """
        entries = self.table[list(rows)]
        paths = [_path(self.root, self.shard_of(row).name) for row in rows]
        starts = entries["offset"].tolist()
        ends = (entries["offset"] + entries["size"]).tolist()
        contents = _fetch(self.root, paths, starts, ends)
        for row, content, crc in zip(rows, contents, entries["crc"].tolist(), strict=True):
            if zlib.crc32(content) != crc:
                raise UserError(
                    f"{self.name(row)}: the bytes are not those that were indexed: the shard has "
                    f"changed or is damaged, or its server knows no ranges."
                    f"{_AGAIN.format(self.root)}"
                )
        return contents

    def shard_of(self, row: int) -> Shard:
        """Return the shard that holds a sample."""
        return self.shards[int(np.searchsorted(self._ends, row, side="right"))]

    def name(self, row: int) -> str:
        """Return ``shard/member`` of a sample; looks through the shard, so it takes its time."""
        shard, offset = self.shard_of(row), int(self.table["offset"][row])
        try:
            with (
                _files(self.root)[0].open(_path(self.root, shard.name)) as file,
                tarfile.open(fileobj=file) as archive,
            ):
                found = (entry.name for entry in archive if entry.offset_data == offset)
                return f"{shard.name}/{next(found)}"
        except Exception:  # what is to be named is broken, perhaps with all around it
            return f"{shard.name}, at byte {offset}"


class Names:
    """Where samples come from, looked up when somebody asks.

    Args:
        reader: Of the samples.
    """

    def __init__(self, reader: ShardReader) -> None:
        self.reader = reader

    def __getitem__(self, row: int) -> str:
        return self.reader.name(row)


def _files(root: str) -> tuple[Any, str]:
    """Return the file system and the path in it; of this process, for connections do not fork."""
    found: tuple[Any, str] = fsspec.core.url_to_fs(root)
    return found


def _path(root: str, name: str) -> str:
    return f"{_files(root)[1].rstrip('/')}/{name}"


def _reading(root: str, name: str, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except FileNotFoundError as error:
        raise UserError(
            f"{root} has no {name}. Write shards from a folder of images with\n"
            f"python -m project.data.write_shards PHOTOS {root}\n"
            "or index tar files that are there: the same without PHOTOS."
        ) from error
    except Exception as error:  # every file system has errors of its own
        raise UserError(f"{root}: {name} cannot be read: {error or type(error)}") from error


def _fetch(root: str, paths: list[str], starts: list[int], ends: list[int]) -> list[bytes]:
    """Read ranges of bytes, over a network all at the same time, and again where it fails."""
    files = _files(root)[0]
    contents: list[bytes | Exception] = files.cat_ranges(paths, starts, ends, on_error="return")
    for pause in _PAUSES:
        failed = [k for k, content in enumerate(contents) if isinstance(content, Exception)]
        if not failed or isinstance(contents[failed[0]], FileNotFoundError):
            break
        time.sleep(pause)
        which = [[part[k] for k in failed] for part in (paths, starts, ends)]
        for k, content in zip(failed, files.cat_ranges(*which, on_error="return"), strict=True):
            contents[k] = content
    read = []
    for path, content in zip(paths, contents, strict=True):
        if isinstance(content, Exception):
            reason = f"{type(content).__name__}: {content}"[:200]
            raise UserError(f"{path} cannot be read ({reason}).") from content
        read.append(content)
    return read
