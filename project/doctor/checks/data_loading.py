"""Loading: fast enough, with workers that fit the machine, from a dataset that they can take."""

import multiprocessing
import pickle
import statistics
import sys
import time
from typing import Any

from lightning.pytorch import Callback
from torch.utils.data import DataLoader

from project import cores
from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.copies import without_workers
from project.doctor.loop import of_the_user
from project.memory_left import available_memory

GIGABYTE = 2**30
# Seconds; faster loading is never worth a warning.
QUICK = 0.03


@check("data", seconds=6)
def loader_speed(subject: Subject) -> Finding:
    """Loading a training batch takes no longer than learning from it."""
    loader = subject.loader("train")
    workers = getattr(loader, "num_workers", 0)
    loading = _loading(loader, time.monotonic() + min(2.0, subject.seconds_left / 2))
    told = f"a batch takes {loading * 1000:.3g} ms to load"
    if loading < QUICK:
        return passed(told)
    step = _step(subject)
    each = loading / max(1, workers)
    told += f" in one process and {step * 1000:.3g} ms to learn from, num_workers is {workers}"
    if each < 4 * step or each < QUICK:
        return passed(told)
    return warn(
        told,
        f"Raise num_workers (there are {cores.usable()} CPUs), decode smaller or stored images, or "
        "keep the data in memory.",
    )


def _loading(loader: Any, end: float) -> float:  # noqa: ANN401
    """Return the usual time for a batch in this process, in seconds."""
    taken: list[float] = []
    with of_the_user():
        batches = iter(without_workers(loader))  # type: ignore[call-overload]
        while len(taken) < 5 and (time.monotonic() < end or not taken):
            began = time.monotonic()
            if next(batches, None) is None:
                break
            taken.append(time.monotonic() - began)
    if not taken:
        raise Skip("the training loader has no batch")
    return min(statistics.median(taken), statistics.median(taken[1:] or taken))


class _Clock(Callback):
    """Takes the time of training steps."""

    def __init__(self) -> None:
        self.began = 0.0
        self.taken: list[float] = []

    def on_train_batch_start(self, *args: Any) -> None:
        self.began = time.monotonic()

    def on_train_batch_end(self, *args: Any) -> None:
        self.taken.append(time.monotonic() - self.began)


def _step(subject: Subject) -> float:
    """Return the usual time of a training step, in seconds."""
    clock = _Clock()
    subject.train(steps=5, batches=subject.batches("train"), callbacks=[clock], limit_val_batches=0)
    if not clock.taken:
        raise Skip("no time for a training step")
    return statistics.median(clock.taken)


@check("data")
def loader_workers(subject: Subject) -> Finding:
    """Loaders have no more workers than there are CPUs."""
    cpus = cores.usable()
    for split in subject.splits():
        workers = getattr(subject.loader(split), "num_workers", 0)
        if workers > cpus:
            return warn(
                f"num_workers is {workers} in {split}, this process may use {cpus} CPUs",
                f"Take at most {cpus}: more get in one another's way and need memory each.",
            )
    return passed(f"{cpus} CPUs")


class _Counter:
    """A file that only counts, up to a limit."""

    def __init__(self, limit: int) -> None:
        self.size, self.limit = 0, limit

    def write(self, data: Any) -> int:  # noqa: ANN401
        written = memoryview(data).nbytes
        self.size += written
        if self.size > self.limit:
            raise EOFError
        return written


@check("data")
def dataset_for_workers(subject: Subject) -> Finding:
    """Worker processes can take the dataset, and need little memory for it."""
    for split in subject.splits():
        loader = subject.loader(split)
        workers = getattr(loader, "num_workers", 0)
        if not isinstance(loader, DataLoader) or not workers:
            continue
        found = _sent(loader) if _start(loader) != "fork" else _shared(loader)
        if found is not None:
            return Finding(found.status, f"{split}: {found.evidence}", found.advice)
    return passed()


def _start(loader: Any) -> str:  # noqa: ANN401
    """Return how workers are started."""
    context = getattr(loader, "multiprocessing_context", None)
    if context is not None:
        return str(context.get_start_method())
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def _sent(loader: Any) -> Finding | None:  # noqa: ANN401
    """Judge what is pickled for every worker."""
    memory = available_memory() or 64 * GIGABYTE
    counter = _Counter(max(GIGABYTE, memory // (2 * loader.num_workers)))
    try:
        what = (loader.dataset, loader.collate_fn, loader.worker_init_fn)
        pickle.Pickler(counter, protocol=5).dump(what)
    except EOFError:
        return warn(
            f"every one of {loader.num_workers} workers gets a copy of the dataset of more than "
            f"{counter.limit / GIGABYTE:.1f} GiB",
            "Hold paths or a memory map instead of the data, or take fewer workers.",
        )
    except Exception as error:
        return fail(
            f"the dataset cannot be sent to workers started by {_start(loader)}: {error}",
            "Use functions of a module instead of lambdas and local ones, and open files in the "
            "worker; or take num_workers 0.",
        )
    return None


def _shared(loader: Any) -> Finding | None:  # noqa: ANN401
    """Judge what forked workers share until they touch it."""
    for name, value in getattr(loader.dataset, "__dict__", {}).items():
        if isinstance(value, list) and len(value) > 3_000_000:
            objects = len(value) * (sys.getsizeof(value[0]) + 8) / GIGABYTE
            return warn(
                f"{name} is a list of {len(value)} objects, {objects:.1f} GiB that each of "
                f"{loader.num_workers} workers copies by counting references",
                "Hold them in an array: numpy strings, or one buffer and offsets.",
            )
    return None
