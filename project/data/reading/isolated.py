"""Work on many rows in processes of its own: what kills one of them is told, and stops nothing."""

import faulthandler
import mmap
import os
import selectors
import signal
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from project import cores

# Makes nothing (or writes into a shared array), or returns why it could not.
Work = Callable[[int], str | None]
# Told how many rows are done, several times a second.
Watch = Callable[[int], None]

_ROWS_PER_WORKER = 200  # fewer take less time than it takes to start one more process
_MAX_CHUNKS = 8192  # their numbers have to fit a pipe, 64 KB
_TICK = 0.2  # seconds
_MAX_UNEXPLAINED = 20  # deaths at no row, e.g. killed for want of memory
_PATIENCE = 180.0  # seconds for one row; a slow disk may need many
# Meant for the run; Ctrl-C and a scheduler send them to all processes.
_SIGNALS = {
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGTSTP")
    if hasattr(signal, name)
}


def shared(length: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Make an array of zeros that forked processes write into and this one reads."""
    room = mmap.mmap(-1, max(1, length * np.dtype(kind).itemsize))
    return np.frombuffer(room, kind, length)


def work_isolated(work: Work, rows: npt.NDArray[np.int64], watch: Watch) -> dict[int, str]:
    """Call ``work`` for every row, in forked processes, as many as there are cores.

    A row at which a process dies is tried again in a new one, for the kernel may have killed it for
    the memory of others; then it is given up, and the work goes on behind it. Forked, because that
    takes milliseconds: a fresh interpreter would import all of torch first, for seconds. Locks that
    other threads hold at that moment stay locked in the child, hence ``work`` must keep to Python,
    NumPy and Pillow; should it hang all the same, it is stopped, too.

    Args:
        work: Gets a row; see Work. An exception from it is a bug, and raised here.
        rows: int64 ``(N,)``.
        watch: See Watch.

    Returns:
        Why rows failed, by row.
    """
    if not hasattr(os, "fork"):  # Windows: nothing is isolated
        said = {int(row): work(int(row)) for row in rows}
        return {row: reason for row, reason in said.items() if reason is not None}
    done = shared(len(rows), np.uint8)
    reasons: dict[int, str] = {}
    while len(left := np.flatnonzero(done == 0)):
        # Again if a process was killed between taking a chunk and saying so.
        with _Pool(work, rows, left, done, reasons) as pool:
            pool.run(watch)
    return reasons


@dataclass
class _Worker:
    """A process at work.

    Args:
        pid: Of the process.
        slot: Its place in ``_Pool.slots``.
        pipe: Where it says why a row failed: position and length (`<qI`), then the text.
    """

    pid: int
    slot: int
    pipe: int
    heard: bytes = b""
    seen: int = -1
    waited: float = 0.0  # seconds at the position ``seen``


@dataclass
class _Pool:
    """One round over the positions ``left``; ``done[position]`` becomes 1.

    Args:
        work: As in work_isolated.
        rows: Likewise.
        left: Positions in ``rows`` to work on, int64.
        done: Shared, uint8, one for every position.
        reasons: Filled.
    """

    work: Work
    rows: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]
    done: npt.NDArray[np.uint8]
    reasons: dict[int, str]
    workers: dict[int, _Worker] = field(default_factory=dict)  # by pid
    suspects: dict[int, str] = field(default_factory=dict)  # by place in ``left``
    unexplained: int = 0  # deaths of workers that were at no row

    def __enter__(self) -> "_Pool":
        count = min(cores.own(), -(-len(self.left) // _ROWS_PER_WORKER))
        # Of each worker the place in ``left`` it is at, and where its chunk ends.
        self.slots = shared(2 * count, np.int64).reshape(count, 2)
        self.chunk = -(-len(self.left) // _MAX_CHUNKS)
        self.chunk = max(self.chunk, min(32, -(-len(self.left) // (4 * count))))
        self.selector = selectors.DefaultSelector()
        # Whoever is free takes the next number out of this pipe: no lock to die with.
        self.tokens, write = os.pipe()
        numbers = np.arange(0, len(self.left), self.chunk, dtype=np.int32)
        os.write(write, numbers.tobytes())
        os.close(write)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self.workers.values()):
            os.kill(worker.pid, signal.SIGKILL)
            self._bury(worker)
        self.selector.close()
        os.close(self.tokens)

    def run(self, watch: Watch) -> None:
        """Start the workers, and go on until the last one is through."""
        for slot in range(len(self.slots)):
            self._start(slot, 0, 0)
        before = time.monotonic()
        while self.workers:
            ready = self.selector.select(_TICK)
            for key, _ in ready:
                self._listen(key.data)
            # A process that was stopped (Ctrl-Z) has not waited all the time.
            step, before = min(time.monotonic() - before, 2 * _TICK), time.monotonic()
            self._stop_hanging(step)
            watch(int(np.count_nonzero(self.done)))

    def _start(self, slot: int, start: int, end: int) -> None:
        """Fork a worker, which first goes on from ``start`` to ``end`` in ``left``."""
        self.slots[slot] = start, end
        read, write = os.pipe()
        parent = os.getpid()
        with _signals_blocked(), warnings.catch_warnings(action="ignore"):
            # Python 3.12 warns of a fork beside threads; see work_isolated.
            pid = os.fork()
            if pid == 0:
                _Child(self, slot, write, parent).live(start, end)  # never returns
            self.workers[pid] = worker = _Worker(pid, slot, read)
            self.selector.register(read, selectors.EVENT_READ, worker)
            os.close(write)

    def _listen(self, worker: _Worker) -> None:
        """Hear why rows failed, or that the worker is gone."""
        heard = os.read(worker.pipe, 1 << 16)
        worker.heard += heard
        while len(worker.heard) >= 12:
            position, length = struct.unpack_from("<qI", worker.heard)
            if len(worker.heard) < 12 + length:
                break
            text = worker.heard[12 : 12 + length].decode(errors="replace")
            worker.heard = worker.heard[12 + length :]
            if position < 0:
                raise RuntimeError(f"the check of the files failed:\n{text}")
            self.reasons[int(self.rows[position])] = text
        if not heard:
            self._replace(worker, self._bury(worker))

    def _bury(self, worker: _Worker) -> int:
        """Wait for the end of a worker, so that no zombie stays; return its exit code."""
        del self.workers[worker.pid]
        self.selector.unregister(worker.pipe)
        os.close(worker.pipe)
        return os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])

    def _replace(self, worker: _Worker, code: int) -> None:
        """Go on in a new process where a worker died, if it did."""
        if code == 0:
            return
        place, end = (int(value) for value in self.slots[worker.slot])
        if place < end and not self.done[self.left[place]]:
            if place not in self.suspects:
                self.suspects[place] = f"it takes the decoder down ({_death(code)})"
            else:
                self.reasons[int(self.rows[self.left[place]])] = self.suspects[place]
                self.done[self.left[place]] = 1
        else:
            self.unexplained += 1
            if self.unexplained > _MAX_UNEXPLAINED:
                raise RuntimeError(f"processes that read files die at once ({_death(code)})")
        self._start(worker.slot, place, end)

    def _stop_hanging(self, step: float) -> None:
        """Kill a worker that has been at one row for too long."""
        for worker in self.workers.values():
            place = int(self.slots[worker.slot][0])
            worker.waited = worker.waited + step if place == worker.seen else 0.0
            worker.seen = place
            if worker.waited > _PATIENCE:
                self.suspects[place] = f"reading it takes more than {_PATIENCE:.0f} seconds"
                os.kill(worker.pid, signal.SIGKILL)


@dataclass
class _Child:
    """The life of a worker.

    Args:
        pool: As it was when the process was forked.
        slot: Its place in ``pool.slots``.
        pipe: Where it says why a row failed.
        parent: Without it, there is nobody to work for.
    """

    pool: _Pool
    slot: int
    pipe: int
    parent: int

    def live(self, start: int, end: int) -> None:
        """Work until there is no chunk left, and end the process without any clean-up."""
        code = 1
        try:
            _be_quiet()
            self._rows(start, end)
            while token := os.read(self.pool.tokens, 4):
                start = int.from_bytes(token, sys.byteorder)
                self._rows(start, min(start + self.pool.chunk, len(self.pool.left)))
            code = 0
        except BaseException:
            self._say(-1, traceback.format_exc())
        finally:
            os._exit(code)

    def _rows(self, start: int, end: int) -> None:
        pool, slot = self.pool, self.pool.slots[self.slot]
        for place in range(start, end):
            slot[:] = place, end
            position = int(pool.left[place])
            if pool.done[position]:
                continue
            if os.getppid() != self.parent:
                os._exit(1)
            reason = pool.work(int(pool.rows[position]))
            if reason is not None:
                self._say(position, reason)
            pool.done[position] = 1

    def _say(self, position: int, text: str) -> None:
        words = text.encode(errors="replace")
        message = struct.pack("<qI", position, len(words)) + words
        while message:
            message = message[os.write(self.pipe, message) :]


def _be_quiet() -> None:
    """Die without a word: no traceback of faulthandler's, no line of a C library's, no core."""
    import resource

    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Hold signals back: a worker keeps them blocked for life, the parent must know it first."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _death(code: int) -> str:
    if code == -signal.SIGKILL:
        return "killed, perhaps for want of memory"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"
