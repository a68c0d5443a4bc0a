"""CPUs, memory, disks and limits of this machine; what a system does not tell is left out."""

import os
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from project import cores
from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.memory_left import available_memory

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows
    resource = None

GIGABYTE = 2**30
SHARED = Path("/dev/shm")
# Files that Python, torch and a logger have open anyway.
OPEN = 200


def free_disk(folder: str | Path) -> int | None:
    """Return the free bytes where a folder is or will be, None if it cannot be told."""
    place = Path(folder).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


def size(count: float) -> str:
    """Write bytes for people."""
    return f"{count / GIGABYTE:.1f} GiB" if count >= GIGABYTE else f"{count / 2**20:.0f} MiB"


def _tensors(batch: object) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, dict):
        batch = list(batch.values())
    return [x for item in batch for x in _tensors(item)] if isinstance(batch, list | tuple) else []


def _queued(subject: Subject) -> tuple[int, int, int]:
    """Return workers, batches they hold in advance, and tensors and bytes of a batch.

    Raises:
        Skip: If no loader has workers.
    """
    most = (0, 0, 0)
    for split in subject.splits():
        loader: Any = subject.loader(split)
        workers = getattr(loader, "num_workers", 0)
        if workers:
            tensors = _tensors(subject.raw(split, 1))
            ahead = workers * (getattr(loader, "prefetch_factor", None) or 2)
            room = ahead * sum(t.nbytes for t in tensors)
            most = max(most, (room, ahead * len(tensors), workers))
    if not most[2]:
        raise Skip("no loader has workers")
    return most


@check("machine")
def shared_memory(subject: Subject) -> Finding:
    """Shared memory has room for the batches that workers prepare."""
    if not SHARED.is_dir():
        raise Skip(f"this system has no {SHARED}")
    need, _, workers = _queued(subject)
    free = free_disk(SHARED)
    if free is None:
        raise Skip(f"{SHARED} does not say its size")
    told = (
        f"{workers} workers hold {size(need)} of batches in {SHARED}, which has {size(free)} free"
    )
    advice = (
        "Give the container more (docker run --shm-size=8g), or take num_workers 0, a smaller "
        "batch_size or prefetch_factor; a worker dies of a bus error otherwise."
    )
    if need > free:
        return fail(told, advice)
    return warn(told, advice) if need > 0.7 * free else passed(told)


@check("machine")
def open_files(subject: Subject) -> Finding:
    """A process may open as many files as its workers need."""
    if resource is None:
        raise Skip("this system has no such limit")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    _, tensors, workers = _queued(subject)
    need = OPEN + 10 * workers + 2 * tensors
    told = f"{workers} workers need about {need} open files, the limit is {limit}"
    if limit not in (-1, resource.RLIM_INFINITY) and need > limit:
        return warn(told, "Raise it (ulimit -n 65535), or take fewer workers.")
    return passed(told)


@check("machine")
def temporary_folder(subject: Subject) -> Finding:
    """The folder for temporary files can be written and has room."""
    wanted = os.environ.get("TMPDIR")
    advice = "Set TMPDIR to a folder that exists, can be written and has room."
    if wanted and not (os.path.isdir(wanted) and os.access(wanted, os.W_OK | os.X_OK)):
        return warn(f"TMPDIR is {wanted}, which does not exist or cannot be written", advice)
    folder = wanted or tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        return fail(f"{folder} cannot be written: {error.strerror or error}", advice)
    free = free_disk(folder)
    if free is not None and free < GIGABYTE // 4:
        return warn(f"{folder} has {size(free)} free", advice)
    return passed("" if free is None else f"{folder}: {size(free)} free")


@check("machine")
def free_space(subject: Subject) -> Finding:
    """The disk that runs are written to has room."""
    folder = subject.trainer_settings.get("default_root_dir") or os.getcwd()
    free = free_disk(str(folder))
    if free is None:
        raise Skip("the disk does not say how much is free")
    told = f"{size(free)} free on the disk of {folder}"
    advice = "Delete old runs or caches, or write to another disk."
    if free < GIGABYTE // 10:
        return fail(told, advice)
    if free < GIGABYTE:
        return warn(told, advice)
    left = getattr(os.statvfs(os.getcwd()), "f_favail", 0) if hasattr(os, "statvfs") else 0
    return warn(f"only {left} more files fit on it", advice) if 0 < left < 1000 else passed(told)


@check("machine")
def free_memory(subject: Subject) -> Finding:
    """There is memory left to train in."""
    free = available_memory()
    if free is None:
        raise Skip("the system does not say how much memory is free")
    told = f"{size(free)} of memory available"
    if free < GIGABYTE // 2:
        return warn(told, "End other programs, or raise the container's limit: it would be killed.")
    return passed(told)


@check("machine")
def threads(subject: Subject) -> Finding:
    """Threads of all processes fit the CPUs, and those are not busy with something else."""
    cpus, devices = cores.usable(), subject.trainer_settings.get("devices")
    on_cpu = subject.trainer_settings.get("accelerator") == "cpu"
    processes = devices if on_cpu and isinstance(devices, int) and devices > 0 else 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    # Without OMP_NUM_THREADS, Lightning divides the threads between the processes that it starts.
    each = int(wanted) if wanted.isdigit() else max(1, torch.get_num_threads() // processes)
    told = f"{processes} process(es) of {each} threads on {cpus} CPUs"
    if each * processes > cpus and not (each == 1 and processes <= cpus):
        return warn(
            told,
            f"Set OMP_NUM_THREADS={max(1, cpus // processes)}: threads that wait for a CPU make "
            "training many times slower.",
        )
    try:
        load = os.getloadavg()[0]
    except (OSError, AttributeError):
        return passed(told)
    if each > 1 and load > 2 * max(os.cpu_count() or 1, cpus):
        return warn(
            f"{told}, and other programs too: the load is {load:.0f}",
            "Set OMP_NUM_THREADS=1 while they run: threads that share a CPU wait for one another.",
        )
    return passed(f"{told}, load {load:.1f}")


@check("machine")
def folder_is_writable(subject: Subject) -> Finding:
    """The folder that runs are written to can be written."""
    folder = Path(str(subject.trainer_settings.get("default_root_dir") or os.getcwd())).absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        return fail(f"{folder} cannot be written", "Start from a folder that can be.")
    return passed()
