"""How many CPU cores this process may use, and what torch is told of them before it starts."""

import os
import re
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path

# Set it to 1 where other programs compute on the same cores: one thread, which waits for no other.
# Milliseconds of a step of MLP 784-512-256-10, batch 64, on 2 cores, torch 2.14.1: alone 2.1 with
# one thread, 1.5 with two, 2.5 with two that sleep while they wait (OMP_WAIT_POLICY=PASSIVE); among
# three other programs 2.3, 108 and 3.8. Hence PASSIVE is not the default either.
SHARED = "LIGHTNING_SHARED_MACHINE"
THREADS = "OMP_NUM_THREADS"
MAX_WORKERS = 8  # more seldom help, and each holds a copy of what it imports
AHEAD = 4  # batches that workers have ready together, for times when one takes longer

_chosen = False  # whether the number of threads is ours, and not the user's


def prepare(environ: MutableMapping[str, str] = os.environ) -> None:
    """Choose the number of threads, unless the user has, before torch is imported.

    OpenMP, MKL and OpenBLAS all read ``OMP_NUM_THREADS`` when they are loaded, and so do the
    processes that are started from here. By themselves they count the cores of the machine, whether
    or not a container's quota lets them run.
    """
    global _chosen
    if "torch" in sys.modules:  # called from Python: too late, and that program's matter
        return
    if THREADS not in environ:
        _chosen = True
        environ[THREADS] = "1" if is_shared(environ) else str(threads())


def divide(processes: int) -> None:
    """Divide the threads chosen here between the processes that train on this machine.

    Args:
        processes: Number of them; known only when there is a Trainer.
    """
    if not _chosen or processes < 2 or is_shared():
        return
    import torch

    own = threads(processes)
    os.environ[THREADS] = str(own)  # for those that are still to be started
    torch.set_num_threads(own)


def is_shared(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Whether the user has said that other programs compute on these cores."""
    return environ.get(SHARED, "").lower() not in ("", "0", "false", "no")


def crowded() -> bool:
    """Whether other programs seem to keep half of this machine's cores busy, or more."""
    count = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return load - min(threads(), count) > count / 2


def usable() -> int:
    """Return how many cores the processes of this run may use together, at least 1."""
    return max(1, _limited(len(_affinity())))


def own(processes: int = 1) -> int:
    """Return how many cores there are for this process, at least 1.

    Args:
        processes: How many share this machine, if what started them has not said so.
    """
    return max(1, _shared_out(usable(), processes))


def threads(processes: int = 1) -> int:
    """Return how many threads compute fastest: one for each physical core of ``own``.

    Two threads on one core hinder each other in matrix products, which torch itself knows, too.
    """
    return max(1, _shared_out(_limited(len(_physical(_affinity()))), processes))


def workers(processes: int = 1) -> int:
    """Return how many processes should prepare batches; each computes with one thread."""
    return min(MAX_WORKERS, own(processes))


def prefetch(workers: int) -> int:
    """Return how many batches each of so many workers should have ready, at least 2."""
    return max(2, AHEAD // max(1, workers))


def quota(root: Path = Path("/")) -> float | None:
    """Return how many cores a control group allows on average, None without a limit.

    Args:
        root: Of the file system.
    """
    found = [limit for folder in _groups(root) if (limit := _limit(folder)) is not None]
    return min(found, default=None)


def _limited(count: int) -> int:
    limit = quota()
    return count if limit is None else min(count, round(limit))


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _physical(cores: set[int], root: Path = Path("/")) -> set[str]:
    """Return the physical cores of these logical ones, each by its list of siblings."""
    found = set()
    for core in cores:
        file = root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        try:
            found.add(file.read_text().strip())
        except OSError:
            found.add(str(core))
    return found


def _shared_out(count: int, processes: int) -> int:
    """Return one process's part of a number of cores."""
    if "SLURM_STEP_ID" in os.environ:  # srun has started us, and may have bound us to our part
        tasks = re.search(r"\d+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
        on_node = int(os.environ.get("SLURM_CPUS_ON_NODE") or count)
        return min(count, on_node // max(1, int(tasks[0] if tasks else 1)))
    return count // max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or processes))


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups, and those above, which limit it too."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    base = root / "sys/fs/cgroup"
    mounts = {base: "/", base / "cpu": "/", base / "cpu,cpuacct": "/"}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts[base] = path
        elif "cpu" in controllers.split(","):
            mounts |= {base / "cpu": path, base / controllers: path}
    for mount, path in mounts.items():
        folder = mount / path.lstrip("/")
        # Inside a container the path may be the host's, of which only the mount is to be seen.
        yield from (f for f in (folder, *folder.parents) if f.is_relative_to(mount) and f.is_dir())


def _limit(group: Path) -> float | None:
    """Return the cores that one control group allows, of either version."""
    try:
        if (group / "cpu.max").is_file():
            part, whole = (group / "cpu.max").read_text().split()
        else:
            part, whole = ((group / f"cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
        return int(part) / int(whole) if int(part) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # "max": no limit
        return None
