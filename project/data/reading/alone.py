"""Long work that one process does while others wait for what comes of it, and its bar."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from project.data.reading.isolated import Watch

_BAR_AFTER = 2.0  # seconds


@contextmanager
def lock(cache_dir: str | Path | None, name: str) -> Iterator[str | None]:
    """Be the only process that works on ``name``; yields why nothing can be written there."""
    if cache_dir is None:
        yield None
        return
    fault = None
    with ExitStack() as stack:
        try:
            os.makedirs(cache_dir, exist_ok=True)
            file = stack.enter_context(open(Path(cache_dir, f"{name}.lock"), "wb"))
            with suppress(ImportError):  # Windows
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            fault = error.strerror or str(error)
        yield fault


@contextmanager
def bar(what: str, total: int, wanted: bool = True) -> Iterator[Watch]:
    """Show a bar, on a terminal and after a while."""
    console = Console(stderr=True)
    # Drawn by whoever calls: a thread that draws would be a thread beside the forks.
    drawn = Progress(
        *(what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
        console=console,
        auto_refresh=False,
        transient=True,
    )
    task, due = drawn.add_task("", total=total), time.monotonic() + _BAR_AFTER

    def watch(done: int) -> None:
        if wanted and sys.stderr.isatty() and time.monotonic() > due:
            drawn.start()
            drawn.update(task, completed=done, refresh=True)

    try:
        yield watch
    finally:
        if drawn.live.is_started:
            drawn.stop()
