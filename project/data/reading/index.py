"""What is known of many image files: every one is decoded once, and that is remembered.

The tables take 26 bytes a file besides its path, in arrays that worker processes share.
"""

import hashlib
import os
import struct
import sys
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from lightning.pytorch.utilities import rank_zero_only

from project.data.reading.alone import bar, lock
from project.data.reading.image_file import BadImage, decode, read_bytes
from project.data.reading.isolated import Watch, shared, work_isolated
from project.listing import (
    EXTENSIONS,
    NO_EXTENSION,
    OUTSIDE,
    Listing,
    PathTable,
    class_folders,
    list_folder,
)

__all__ = [
    "EXTENSIONS",
    "NO_EXTENSION",
    "OUTSIDE",
    "Checked",
    "Listing",
    "PathTable",
    "check_files",
    "class_folders",
    "list_folder",
]

# One record for each file that is right. Those that are not are looked at again at every start:
# what was wrong may have been elsewhere (a permission, a disk, an old Pillow).
_RECORD = np.dtype(
    [
        *(("stamp", "<u8"), ("content_hash", "<i8")),
        *(("width", "<i4"), ("height", "<i4"), ("grey", "?")),
    ]
)
_NOTHING = np.zeros(0, _RECORD)
_MAGIC = b"images 1"  # to change with _RECORD and with what counts as right
_SPARE = 100_000  # records that are kept for files that are not asked for now
# A clock that files are stamped with stands still for up to 10 ms: what is written in the same
# tick as it is read may change once more without a new time.
_TICK_NS = 20_000_000
_FEW = 1000  # files that are stamped sooner than a process is started


@dataclass(frozen=True)
class Checked:
    """What is known of files, one entry a file in every array.

    Args:
        content_hash: Of the bytes, int64: equal for copies (64 bits of BLAKE2b).
        width: Of the upright image in pixels, int32; 0 if it is not ok.
        height: Likewise.
        grey: Whether the image has no colours, by its header.
        ok: Whether it can be read.
        reasons: Why not, by the place of the file.
    """

    content_hash: npt.NDArray[np.int64]
    width: npt.NDArray[np.int32]
    height: npt.NDArray[np.int32]
    grey: npt.NDArray[np.bool_]
    ok: npt.NDArray[np.bool_]
    reasons: dict[int, str]


def check_files(
    root: str | Path,
    paths: PathTable,
    in_channels: int,
    max_pixels: int,
    cache_dir: str | Path | None,
    progress: bool = True,
) -> Checked:
    """Decode every file once, and tell what it holds or why it cannot be used.

    That happens in processes of its own, so that a decoder that crashes only costs its file. What
    is right is remembered by path, size and time of change (in ns); only other files are read
    again. A cache that is damaged or foreign is replaced. Of several processes that check the same
    files, one works and the others wait, and then find all in the cache.

    Args:
        root: Folder of the files.
        paths: Relative to it, or absolute.
        in_channels: As for reading; see read_image.
        max_pixels: Likewise.
        cache_dir: Where to remember; it need not exist. Without, nothing is remembered.
        progress: Show a bar on a terminal if it takes more than two seconds.
    """
    base = os.path.abspath(root)
    name = hashlib.blake2b(os.fsencode(base), digest_size=8).hexdigest()
    memory = _Cache(Path(cache_dir or "", f"{name}.checked"))
    with lock(cache_dir, name) as fault:
        if fault is not None:
            _say_not_remembered(str(cache_dir), fault)
        check = _Check(os.fsencode(base), paths, in_channels, max_pixels)
        with bar("Checking images", len(paths), progress) as watch:
            check.look_up(memory.read() if cache_dir else _NOTHING)
            try:
                check.decode_others(watch)
            finally:  # also of a check that is interrupted
                if cache_dir and fault is None and check.found_new:
                    memory.write(check.records(), check.left_over)
    return check.result()


class _Check:
    """The check of some files.

    Args:
        base: Absolute folder of the files.
        paths: The files.
        in_channels: As for check_files.
        max_pixels: Likewise.
    """

    def __init__(self, base: bytes, paths: PathTable, in_channels: int, max_pixels: int) -> None:
        self.base, self.paths = base, paths
        self.in_channels, self.max_pixels = in_channels, max_pixels
        self.table = shared(len(paths), _RECORD)
        self.ok = shared(len(paths), np.bool_)
        self.salt = struct.pack("<qq", in_channels, max_pixels)
        self.reasons: dict[int, str] = {}
        self.found_new = False
        self.left_over = _NOTHING

    def look_up(self, known: npt.NDArray[np.void]) -> None:
        """Stamp all files, and take over what is known of those that have not changed."""
        rows = np.arange(len(self.paths))
        if len(rows) < _FEW:
            for row in rows.tolist():
                self.stamp(row)
        else:
            work_isolated(self.stamp, rows, lambda _: None)
        order = np.argsort(known["stamp"], kind="stable")
        stamps = self.table["stamp"]
        places = np.searchsorted(known["stamp"], stamps, sorter=order)
        places = order[np.minimum(places, len(order) - 1)] if len(order) else places
        hits = np.flatnonzero(known["stamp"][places] == stamps) if len(order) else order
        self.table[hits] = known[places[hits]]
        self.ok[hits] = True
        rest = np.ones(len(known), bool)
        rest[places[hits]] = False
        self.left_over = known[rest]

    def decode_others(self, watch: Watch) -> None:
        """Decode the files of which nothing is known yet."""
        rows = np.flatnonzero(~self.ok)
        before = len(self.paths) - len(rows)
        try:
            self.reasons = work_isolated(self.look, rows, lambda done: watch(before + done))
        finally:
            self.found_new = bool(self.ok[rows].any())

    def stamp(self, row: int) -> None:
        """Hash path, size and time of change of a file; 0 if there is no telling them."""
        path, now = self.paths.raw(row), time.time_ns()
        try:
            status = os.stat(os.path.join(self.base, path))
        except (OSError, ValueError):
            return
        if abs(now - status.st_mtime_ns) > _TICK_NS:
            numbers = struct.pack("<qQ", status.st_size, status.st_mtime_ns % 2**64)
            self.table["stamp"][row] = _hash(self.salt + numbers + path)

    def look(self, row: int) -> str | None:
        """Decode a file and note what it holds, or say why that cannot be done."""
        try:
            data = read_bytes(os.fsdecode(os.path.join(self.base, self.paths.raw(row))))
            image, grey = decode(data, self.in_channels, self.max_pixels)
        except BadImage as error:
            return str(error)
        content = content_hash(data)
        self.table[row] = (self.table["stamp"][row], content, *image.size, grey)
        self.ok[row] = True
        return None

    def records(self) -> npt.NDArray[np.void]:
        """Return what is worth remembering."""
        known: npt.NDArray[np.void] = self.table[self.ok & (self.table["stamp"] != 0)]
        return known

    def result(self) -> Checked:
        """Return what was found, in an array for each kind."""
        self.table[~self.ok] = 0
        names = ("content_hash", "width", "height", "grey")
        columns = {name: self.table[name].copy() for name in names}
        return Checked(**columns, ok=self.ok.copy(), reasons=dict(sorted(self.reasons.items())))


def content_hash(data: bytes) -> int:
    """Hash what is in a file, as in :class:`Checked`."""
    return _hash(data) - 2**63


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


class _Cache:
    """Records in a file, with a checksum.

    Args:
        path: Of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> npt.NDArray[np.void]:
        """Return the records; none if there is no file or it is not as it was written."""
        try:
            data = self.path.read_bytes()
        except OSError:
            data = b""
        body, start = memoryview(data)[12:], data[:12]
        if start != _MAGIC + struct.pack("<I", zlib.crc32(body)) or len(body) % _RECORD.itemsize:
            body = memoryview(b"")
        return np.frombuffer(body, _RECORD)

    def write(self, records: npt.NDArray[np.void], left_over: npt.NDArray[np.void]) -> None:
        """Write the records at once, after the newest of those that were not asked for."""
        body = np.concatenate([left_over[-_SPARE - len(records) :], records]).tobytes()
        draft = self.path.with_suffix(".draft")  # nobody else writes it: there is the lock
        try:
            draft.write_bytes(_MAGIC + struct.pack("<I", zlib.crc32(body)) + body)
            os.replace(draft, self.path)
        except OSError as error:
            _say_not_remembered(str(self.path.parent), error.strerror or str(error))
            with suppress(OSError):
                draft.unlink()


@cache  # once, not for every split
@rank_zero_only
def _say_not_remembered(folder: str, reason: str) -> None:
    line = f"Which images are good is not remembered: {folder} cannot be written ({reason})."
    print(line, file=sys.stderr)
