"""Checkpoints that load, whatever happens while they are saved."""

import contextlib
import errno
import io
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.serialization import get_crc32_options, set_crc32_options

from project.checkpoints import is_intact
from project.disk import DAMAGED, ELSEWHERE, reason
from project.mistakes import UserError

# A draft is the file that a checkpoint is written to before it gets its name.
_DRAFT = re.compile(r"\.saving-[0-9a-f]{8}-(?P<pid>\d{1,9})-(?P<host>.+)\.part")
_OLD = 24 * 3600  # seconds; for drafts of which nobody can say here whether their process lives
_open_drafts: set[str] = set()

_FEWER = f"keep fewer (--checkpoint.save_top_k 1), {ELSEWHERE}"
_SPACE = (errno.ENOSPC, errno.EDQUOT)


class DurableCheckpoints(TorchCheckpointIO):
    """Save so that a checkpoint file is always whole, and the one before it stays until then.

    Lightning's own way goes through memory and ``$TMPDIR``. From there to another file system it is
    a copy, and a kill or a full disk leaves half a file in place of the last good one. Here a
    checkpoint is streamed into a hidden file in its own folder, brought to the disk, checked and
    renamed. What killed processes leave of that is removed at the next save.

    Folders that a strategy writes (sharded checkpoints) and remote paths (``s3://…``) are
    Lightning's matter, as before. Nothing is unpickled that is more than weights and plain values,
    unless ``weights_only=False`` is asked for.
    """

    def __init__(self) -> None:
        self._folders: set[Path] = set()

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | Path,
        storage_options: Any | None = None,  # noqa: ANN401
    ) -> None:
        """Write a checkpoint to the disk, whole or not at all.

        Args:
            checkpoint: State of the run.
            path: The file. A link there is replaced, and what it leads to stays as it is.
            storage_options: Not for files; Lightning refuses it.

        Raises:
            UserError: If it cannot be written, e.g. on a full disk. What was there before is kept.
        """
        if storage_options is not None or _is_remote(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        file = Path(path).absolute()
        try:
            self._make_folder(file.parent)
            _sweep(file.parent)
            with _draft(file.parent) as draft:
                _write(checkpoint, draft)
                _check(draft)
                os.replace(draft, file)
        except OSError as error:
            raise UserError(_explain(error, checkpoint, file)) from error
        _sync_folder(file.parent)

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Callable[..., Any] | None = lambda storage, _: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Load a checkpoint; weights and plain values only, unless more is asked for.

        Args:
            path: File or address.
            map_location: Where tensors go; by default to the CPU.
            weights_only: None means True, also for ``http(s)://``, where Lightning takes False.
        """
        weights_only = weights_only is not False
        return super().load_checkpoint(path, map_location=map_location, weights_only=weights_only)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint in one step: a process killed meanwhile leaves all of it or nothing.

        Args:
            path: File, link (what it leads to stays), folder or address.
        """
        file = Path(path)
        if _is_remote(path) or (file.is_dir() and not file.is_symlink()):
            super().remove_checkpoint(path)
            return
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            why, advice = reason(error, file.parent)
            raise UserError(f"Checkpoint {file} cannot be removed: {why}.\n{advice}") from error

    def _make_folder(self, folder: Path) -> None:
        """Make the folder, once: in place of a disk that is no longer mounted it would be wrong."""
        if folder not in self._folders and not folder.is_dir():
            missing = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            for path in missing:
                _sync_folder(path.parent)
        self._folders.add(folder)


def _is_remote(path: str | Path) -> bool:
    return "://" in str(path)


def _host() -> str:
    """This machine; in a container, where process ids mean nothing to others, this container."""
    try:
        space = f"{os.stat('/proc/self/ns/pid').st_ino:x}"
    except OSError:
        space = "0"
    return f"{space}-{socket.gethostname().replace(os.sep, '_')}"


@contextlib.contextmanager
def _draft(folder: Path) -> Iterator[Path]:
    """A new name in the folder that tells whose it is; nothing is left of it afterwards."""
    # Without the name of the checkpoint, which may already be as long as a name can be.
    draft = folder / f".saving-{secrets.token_hex(4)}-{os.getpid()}-{_host()}.part"
    _open_drafts.add(draft.name)
    try:
        yield draft
    finally:
        with contextlib.suppress(OSError):  # it would hide the error that led here
            draft.unlink(missing_ok=True)
        _open_drafts.discard(draft.name)


def _sweep(folder: Path) -> None:
    """Remove what killed processes have left in the folder."""
    with contextlib.suppress(OSError):  # no reason to fail a save
        for file in folder.iterdir():
            if (match := _DRAFT.fullmatch(file.name)) and _is_abandoned(file, **match.groupdict()):
                file.unlink(missing_ok=True)


def _is_abandoned(draft: Path, pid: str, host: str) -> bool:
    """Whether nobody writes to it any more.

    A process that writes changes the file all the time, so an old one is abandoned, also if its
    process ran elsewhere or another one has got its id since.
    """
    if draft.name in _open_drafts:
        return False
    if time.time() - draft.stat().st_mtime > _OLD:
        return True
    if host != _host():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's
        return False
    return int(pid) == os.getpid()  # one that had this process's id, before a restart


def _write(checkpoint: dict[str, Any], draft: Path) -> None:
    """Stream it to the disk; tensors go there as they lie in memory."""
    asked = get_crc32_options()
    set_crc32_options(True)  # without checksums nobody could tell whether it is whole
    try:
        with draft.open("xb") as file:
            torch.save(checkpoint, file)
            file.flush()
            _sync(file.fileno())
    except RuntimeError as error:
        # torch closes its archive after a failed write, which fails as well and hides the reason.
        raise error.__context__ or error from None
    finally:
        set_crc32_options(asked)


def _sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can do that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # on Windows always
        return
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has no such thing
            raise


def _check(draft: Path) -> None:
    """Read it back before it takes the place of the last good one."""
    if not is_intact(draft):
        draft.stat()  # raises if it is gone
        raise OSError(DAMAGED, os.strerror(DAMAGED), str(draft))


def _explain(error: OSError, checkpoint: dict[str, Any], file: Path) -> str:
    """Say what is not saved, why, what is still there, and what to do."""
    space = error.errno in _SPACE
    why, advice = reason(error, file.parent, _FEWER if space else ELSEWHERE)
    if space or error.errno == errno.EFBIG:
        why += f"; {_size(_length(checkpoint))} needed"
    if space:
        why += f", {_size(shutil.disk_usage(file.parent).free)} free on the disk"
    kept = f"\nThe {file.name} that was there before is untouched." if file.is_file() else ""
    return f"Checkpoint {file} is not saved: {why}.{kept}\n{advice}"


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} KB"


def _length(checkpoint: dict[str, Any]) -> int:
    """How many bytes its file takes."""
    counter = _Counter()
    torch.save(checkpoint, counter)
    return counter.count


class _Counter(io.BytesIO):
    """A file that only counts the bytes written to it."""

    count = 0

    def write(self, data: Any) -> int:  # noqa: ANN401
        self.count += (length := memoryview(data).nbytes)
        return length
