"""How a process ends before its work is done: told to by a signal, or because another one died."""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
FAILED = 1
# What schedulers, terminals and people send so that a process ends.
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")
_POLL = 0.2  # seconds
_PATIENCE = 1.0  # seconds for the main thread to handle a signal
# Seconds for the main thread to notice by itself that a process is gone, as it does with gloo. With
# NCCL it may wait for ever inside a kernel.
_GRACE = 6.0

Handler = Callable[[int, FrameType | None], Any] | int | None


class Preempted(SystemExit):
    """A run was told to stop, and can go on: exit code 75.

    Args:
        message: What happened and how to go on.
        checkpoint: The file that was saved for that, if there was anything to save.
    """

    def __init__(self, message: str, checkpoint: str | None = None) -> None:
        super().__init__(TRY_AGAIN)
        self.message, self.checkpoint = message, checkpoint

    def __str__(self) -> str:
        return self.message


class _Process:
    """What this process has to do when it ends."""

    def __init__(self) -> None:
        # Brings the run's folder into order; is told why the process ends.
        self.clean: Callable[[str], None] = lambda reason: None
        self.ranks: list[subprocess.Popen[bytes]] = []  # started by this one, rank 1 first
        self.lost: str | None = None  # which of them has died, and how
        self.leaving = False
        self.handler: Handler = None  # of signals, unless somebody else handles them


_this = _Process()


@contextlib.contextmanager
def in_charge(take_signals: bool) -> Iterator[None]:
    """Look after signals and other ranks while a command runs.

    Args:
        take_signals: Whether a signal ends this process in the default way, without a traceback,
            after its folder is in order. False leaves signals to the Python program that this is.
    """
    global _this
    _this = _Process()
    old = _take_signals() if take_signals and is_main_thread() else {}
    if _rank() and os.getppid() != 1:
        start(_end_with, os.getppid())
    try:
        yield
    except Preempted:
        _end_ranks(wait=10)
        raise
    except BaseException:
        _end_ranks(wait=0)
        raise
    else:
        _end_ranks(wait=30)
    finally:
        for number, handler in old.items():
            # The interpreter takes a second to end, and the exit code must stay what it is.
            ignored = _this.leaving and number != signal.SIGINT
            signal.signal(number, signal.SIG_IGN if ignored else handler)
        if old:
            os.close(signal.set_wakeup_fd(-1))
        _this = _Process()


def on_sudden_end(clean: Callable[[str], None]) -> None:
    """Say what is to be done when this process is about to end without unwinding."""
    _this.clean = clean


def leave() -> None:
    """From now on only SIGINT ends the process at once: it is ending anyway, in good order."""
    _this.leaving = True


def numbers() -> list[signal.Signals]:
    """Return the signals that ask a process to end, without those it was started to ignore.

    ``nohup`` makes a process ignore SIGHUP. SIGINT is always among them: shells have background
    jobs ignore it, but whoever sends it to one of them means it.
    """
    known = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    return [
        number
        for number in known
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
    ]


def is_main_thread() -> bool:
    """Whether handlers can be set here."""
    return threading.current_thread() is threading.main_thread()


def _take_signals() -> dict[int, Handler]:
    pid = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == pid:  # and not a worker forked from it
            if _this.leaving and number != signal.SIGINT:
                return
            end_now(f"stopped by {signal.Signals(number).name}", number)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    _this.handler = end
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    start(_listen, heard, _this)
    return {number: signal.signal(number, end) for number in numbers()}


def _listen(heard: int, process: _Process) -> None:
    """End the process where its handlers cannot: the main thread may be in a call that waits.

    Args:
        heard: Where the numbers of the signals arrive, whatever the main thread does.
        process: Is over when the command is.
    """
    interrupts = 0
    while number := int.from_bytes(os.read(heard, 1), "big"):
        interrupts += number == signal.SIGINT
        ends = signal.getsignal(number) is process.handler and not process.leaving
        if ends or interrupts > 1:
            time.sleep(_PATIENCE)
            if process is _this:
                end_now(f"stopped by {signal.Signals(number).name}", number)


def end_now(reason: str, number: int | None = None) -> None:
    """End this process and all that it has started, by a signal or with exit code 1."""
    if is_main_thread():
        if hasattr(signal, "SIGCHLD"):  # torch's handler raises where a worker was killed
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in numbers():
            signal.signal(other, signal.SIG_IGN)
    with contextlib.suppress(Exception):  # whatever state the interpreter is in: end
        _this.clean(reason)
    _end_ranks(wait=0)
    if "multiprocessing" in sys.modules:
        for worker in sys.modules["multiprocessing"].active_children():
            worker.kill()
            worker.join(1)  # else it stays a zombie where nobody adopts it
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    if number is None or not is_main_thread():
        os._exit(128 + number if number else FAILED)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def keep_lightning_out(trainer: Any) -> None:  # noqa: ANN401
    """Look after signals and processes in place of Lightning, which does it in a private way.

    Its handler of SIGTERM waits for the other processes, which may be waiting in a collective of
    their own: a group that gets SIGTERM hangs. Its observer of the processes that it has started
    kills all of them at the first exit code that is not 0, and nothing says why; and the first one
    to leave a preempted run leaves with 75. And at every step of several processes it waits for the
    device, to tell all whether its handler was called.

    Args:
        trainer: Lightning's.
    """
    trainer._signal_connector.register_signal_handlers = lambda: None
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    launcher = import_module("lightning.pytorch.strategies.launchers.subprocess_script")
    launcher._launch_process_observer = watch_ranks  # type: ignore[attr-defined]
    atexit.unregister(_close_group)
    atexit.register(_close_group)


def _close_group() -> None:
    # Lightning does for NCCL only. A thread of gloo's that outlives the interpreter aborts it.
    distributed = import_module("torch.distributed")
    if distributed.is_initialized() and distributed.get_backend() == "gloo":
        distributed.destroy_process_group()


def watch_ranks(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End this process if one that it has started fails.

    Args:
        ranks: Rank 1 first.
    """
    _this.ranks = list(ranks)
    start(_end_with_ranks, _this)


def lost_rank(error: BaseException) -> str | None:
    """Say which process has died if that is why this one has failed.

    Args:
        error: Why this one has failed.
    """
    text = f"{type(error).__module__} {type(error).__name__} {error}".lower()
    if not any(word in text for word in ("gloo", "nccl", "distbackend", "connection")):
        return None
    end = time.monotonic() + 10 * _POLL  # it was the connection that broke first
    while _this.ranks and _this.lost is None and time.monotonic() < end:
        time.sleep(_POLL / 4)
    if _this.lost is None and "by peer" in text:
        return "lost the connection to another process, which says why if it could"
    return _this.lost


def _end_with_ranks(process: _Process) -> None:
    while process.lost is None:
        time.sleep(_POLL)
        codes = [rank.poll() for rank in process.ranks]
        if all(code in (0, TRY_AGAIN) for code in codes):
            return
        for number, code in enumerate(codes, start=1):
            if code not in (None, 0, TRY_AGAIN):
                process.lost = _death(number, process.ranks[number - 1], len(codes) + 1)
                break
    time.sleep(_GRACE)
    if process is _this and process.lost and not process.leaving:
        print(f"\nError: {process.lost}", file=sys.stderr, flush=True)
        end_now(process.lost)


def _death(number: int, rank: subprocess.Popen[bytes], world_size: int) -> str:
    code = rank.returncode
    how = f"failed (exit code {code}); its own message is above"
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
        how += " (the machine out of memory?)" if -code == signal.SIGKILL else ""
    return f"process {number} of 0 to {world_size - 1} (pid {rank.pid}) {how}"


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL)
    end_now("the process that has started this one is gone")


def _end_ranks(wait: float) -> None:
    end = time.monotonic() + wait
    for rank in _this.ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.wait(max(0.0, end - time.monotonic()))
        if rank.poll() is None:
            workers = _children(rank.pid)
            rank.kill()
            rank.wait()
            for worker in workers:
                with contextlib.suppress(OSError):
                    os.kill(worker, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    """The workers of another process; where they cannot be told, they notice in 5 s themselves."""
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def _rank() -> int:
    """This process's number as launchers tell it."""
    names = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)


def start(target: Callable[..., None], *args: object) -> None:
    """Run something beside the main thread, for as long as the process lives."""
    threading.Thread(target=target, args=args, daemon=True).start()
