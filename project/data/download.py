"""Downloads that give up quickly and say what to do instead."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from project.mistakes import UserError

# Seconds without an answer or without a byte; torchvision itself waits for ever.
_PATIENCE = 10.0


def missing(name: str, reason: str, files: str) -> UserError:
    """Make the error that says which files belong where.

    Args:
        name: The data set.
        reason: Why it is not there, in a few words.
        files: The files and their folder.
    """
    return UserError(
        f"{name} is missing: {reason}.\n"
        f"Put {files}, or give another --data.data_dir.\n"
        "Plain `lightning fit` needs no files: it trains on the digits that come with the project."
    )


def download(name: str, files: str, fetch: Callable[[], object]) -> None:
    """Run ``fetch`` with a time limit.

    Args:
        name: The data set, for the message.
        files: The files and their folder, for the message.
        fetch: Downloads and unpacks, raising OSError or RuntimeError.

    Raises:
        UserError: If that fails, e.g. without a network or on a full or read-only disk.
    """
    try:
        with _time_limit():
            fetch()
    except (OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise missing(name, f"the download failed ({reason})", files) from error


@contextmanager
def _time_limit() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
