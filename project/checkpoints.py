"""Which checkpoint files are whole: their checksums tell, without torch and without unpickling."""

import contextlib
import operator
import pickletools
import struct
import zipfile
from pathlib import Path

_USUAL_FLAGS = 0x808  # of a record that torch writes: the name is UTF-8, sizes follow the data


def is_intact(path: Path | str) -> bool:
    """Whether a file is a whole checkpoint of torch's: its directory, and the CRC of every record.

    Reads the file once in small pieces and runs nothing that is in it. Also False for a folder, for
    a file that cannot be read, and for torch's format from before 1.6, which has no checksums.

    Args:
        path: What ``torch.save`` wrote, or a link to it.
    """
    if not Path(path).is_file():  # a pipe would be waited for
        return False
    try:
        with zipfile.ZipFile(path) as records:
            return _as_torch_writes(records) and records.testzip() is None
    # What zipfile raises on damage depends on the byte: BadZipFile, EOFError, NotImplementedError
    # (a compression nobody knows), RuntimeError (encrypted), ValueError, zlib.error and more.
    except Exception:
        return False


def _as_torch_writes(records: zipfile.ZipFile) -> bool:
    """Whether the archive's directory is what torch reads, which is stricter than ``zipfile``."""
    entries = records.infolist()
    for entry in entries:
        stored = entry.compress_type == zipfile.ZIP_STORED
        odd = entry.volume or entry.external_attr or entry.flag_bits & ~_USUAL_FLAGS
        if odd or not stored or entry.compress_size != entry.file_size:
            return False
    assert records.fp is not None
    records.fp.seek(records.start_dir)
    directory = records.fp.read()
    length = 0
    for _ in entries:  # a fixed part, then name, extra field and comment
        length += 46 + sum(struct.unpack_from("<3H", directory, length + 28))
    has_state = any(entry.filename.endswith("/data.pkl") for entry in entries)
    return has_state and _is_end(directory[length:], len(entries), length, records.start_dir)


def _is_end(end: bytes, count: int, length: int, start: int) -> bool:
    """Whether these last bytes of an archive name the place of its directory.

    Their layout is in sections 4.3.14 to 4.3.16 of PKWARE's APPNOTE 6.3.9.

    Args:
        end: What follows the directory.
        count: Number of records.
        length: Of the directory, in bytes.
        start: Where the directory begins, in bytes.
    """
    where = (count, count, length, start)
    limits = (0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    short = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, *map(min, where, limits), 0)
    if len(end) == len(short):
        return end == short and all(map(operator.lt, where, limits))
    long = struct.pack("<4sQ4x2L4Q", b"PK\6\6", 44, 0, 0, *where)
    pointer = struct.pack("<4sLQL", b"PK\6\7", 0, start + length, 1)
    return end[:12] + bytes(4) + end[16:] == long + pointer + short  # but the writer's version


def saved_at(path: Path | str) -> tuple[int, int]:
    """Return what sorts checkpoints by age: optimizer steps done, then the time of the file.

    The time alone would not do: copying a run makes all its files equally old.

    Args:
        path: What ``torch.save`` wrote; without steps in it, it counts as -1.
    """
    file, step = Path(path), -1
    try:
        with zipfile.ZipFile(file) as records:
            name = next(n for n in records.namelist() if n.endswith("/data.pkl"))
            with records.open(name) as pickled:
                step = _steps(pickled.read(1 << 16))
        return step, file.stat().st_mtime_ns
    except Exception:  # see `is_intact`
        return step, file.stat().st_mtime_ns if file.exists() else 0


def _steps(pickled: bytes) -> int:
    """Find Lightning's ``global_step`` near the beginning of a pickle without running it."""
    words: list[object] = []
    with contextlib.suppress(ValueError):  # the rest is cut off
        for operation, argument, _ in pickletools.genops(pickled):
            if isinstance(argument, int | str) and "PUT" not in operation.name:
                words.append(argument)
            if words[-2:-1] == ["global_step"] and isinstance(words[-1], int):
                return words[-1]
    return -1
