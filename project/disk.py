"""What a disk refuses: why, and what to do about it."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from project.mistakes import UserError

DAMAGED = errno.EBADMSG
ELSEWHERE = "or train elsewhere: --trainer.default_root_dir DIR"
COPY = "or copy the run to a folder of yours and give that: --run FOLDER"
_REASONS = {  # what happened, and what to do
    errno.ENOSPC: ("the disk is full", "Free some there"),
    errno.EDQUOT: ("the quota there is used up", "Free some there"),
    errno.EFBIG: ("files may not be that large (ulimit -f)", "Raise that"),
    errno.EROFS: ("the disk is mounted read-only", "Make it writable"),
    errno.EACCES: ("this user may not write there", "Make it writable"),
    errno.EPERM: ("this user may not write there", "Make it writable"),
    errno.ENOTDIR: ("a file is in the place of a folder", "Move it away"),
    DAMAGED: ("what was written reads back damaged", "Check disk and memory"),
}
_ALWAYS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # never raised by reading
_GONE = ("its folder is gone: deleted, moved, or its disk unmounted", "Bring it back")


def reason(error: OSError, folder: Path, instead: str = ELSEWHERE) -> tuple[str, str]:
    """Say what happened, and what to do.

    Args:
        error: What was raised.
        folder: Where something was to be written.
        instead: Ends the advice: what else can be done.
    """
    other = (error.strerror or str(error), "Look into that")
    is_gone = error.errno == errno.ENOENT and not folder.is_dir()
    why, step = _GONE if is_gone else _REASONS.get(error.errno or 0, other)
    return why, f"{step}, {instead}"


@contextlib.contextmanager
def writing(path: Path, instead: str = ELSEWHERE) -> Iterator[None]:
    """Tell in two lines why a file or folder cannot be written.

    Args:
        path: The file or folder.
        instead: What can be done but mending the disk.

    Raises:
        UserError: If the disk refuses it.
    """
    try:
        yield
    except OSError as error:
        raise UserError(_told(error, path, instead)) from error


def refusal(error: BaseException, folder: Path | None) -> str | None:
    """Say why an error is the disk's, which is nobody's bug; None if it may be another's.

    Args:
        error: What has ended a run, from whatever library.
        folder: Where the run writes, for errors that do not say it.
    """
    if not isinstance(error, OSError) or error.errno not in _ALWAYS:
        return None
    return _told(error, Path(os.fsdecode(error.filename or folder or ".")))


def _told(error: OSError, path: Path, instead: str = ELSEWHERE) -> str:
    why, advice = reason(error, path.parent, instead)
    return f"{path} cannot be written: {why}.\n{advice}"
