"""Whether a network that is being built has to look for its pretrained weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_wanted = ContextVar("wanted", default=True)


@contextmanager
def left_out() -> Iterator[None]:
    """Build networks without their pretrained weights, because a checkpoint brings its own.

    So a trained run loads without a network connection, and without the file it began with.
    """
    token = _wanted.set(False)
    try:
        yield
    finally:
        _wanted.reset(token)


def wanted() -> bool:
    """Whether a constructor should load the pretrained weights that it was given."""
    return _wanted.get()
