"""Cores, threads and workers, on machines that are made up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from project import cores

SETTINGS = ("LOCAL_WORLD_SIZE", "SLURM_STEP_ID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_CPUS_ON_NODE")


@pytest.fixture
def sixteen(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine of 16 physical cores, without a quota."""
    for name in (*SETTINGS, cores.SHARED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.setattr(cores, "quota", lambda: None)
    monkeypatch.setattr(cores, "_physical", lambda found: {str(core) for core in found})
    return monkeypatch


def machine(root: Path, cgroup: str, **files: str) -> Path:
    """Make the files of a system whose process is in some control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, content in files.items():
        file = root / "sys/fs/cgroup" / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return root


def test_affinity_counts(sixteen: pytest.MonkeyPatch) -> None:
    sixteen.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7})
    assert (cores.usable(), cores.threads(), cores.workers()) == (3, 3, 3)


def test_workers_are_no_more_than_help(sixteen: pytest.MonkeyPatch) -> None:
    assert (cores.usable(), cores.workers(), cores.workers(4)) == (16, 8, 4)


def test_a_quota_counts_as_cores(sixteen: pytest.MonkeyPatch) -> None:
    sixteen.setattr(cores, "quota", lambda: 1.9)
    assert (cores.usable(), cores.threads(), cores.workers()) == (2, 2, 2)
    sixteen.setattr(cores, "quota", lambda: 0.2)
    assert (cores.usable(), cores.threads(), cores.workers()) == (1, 1, 1)


@pytest.mark.parametrize("where", ["cpu.max", "pod__cpu.max", "pod__box__cpu.max"])
def test_a_quota_of_version_2_is_found_in_every_group_above(tmp_path: Path, where: str) -> None:
    found = {"pod__box__cpu.max": "max 100000", where: "250000 100000\n"}
    assert cores.quota(machine(tmp_path, "0::/pod/box\n", **found)) == 2.5


def test_the_smallest_quota_counts(tmp_path: Path) -> None:
    both = {"pod__cpu.max": "100000 100000", "pod__box__cpu.max": "300000 100000"}
    assert cores.quota(machine(tmp_path, "0::/pod/box\n", **both)) == 1


@pytest.mark.parametrize("folder", ["cpu,cpuacct__box__", "cpu__box__", "cpu,cpuacct__", "cpu__"])
def test_a_quota_of_version_1_is_found(tmp_path: Path, folder: str) -> None:
    files = {f"{folder}cpu.cfs_quota_us": "150000", f"{folder}cpu.cfs_period_us": "100000"}
    lines = "4:cpu,cpuacct:/box\n3:cpuset:/\n0::/\n"
    assert cores.quota(machine(tmp_path, lines, **files)) == 1.5


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"cpu.max": "max 100000"},
        {"cpu.max": ""},
        {"cpu__cpu.cfs_quota_us": "-1", "cpu__cpu.cfs_period_us": "100000"},
    ],
)
def test_no_quota_is_none(tmp_path: Path, files: dict[str, str]) -> None:
    assert cores.quota(machine(tmp_path, "1:cpu:/\n0::/\n", **files)) is None


def test_a_path_of_the_host_is_not_needed(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/kubepods/pod1/box2\n", **{"cpu.max": "400000 100000"})
    assert cores.quota(root) == 4


def test_threads_are_one_for_each_physical_core(tmp_path: Path) -> None:
    for core in range(4):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{core % 2},{core % 2 + 2}\n")
    assert len(cores._physical({0, 1, 2, 3}, tmp_path)) == 2
    assert len(cores._physical({0, 2}, tmp_path)) == 1
    assert len(cores._physical({7, 8}, tmp_path)) == 2  # nothing is said of them


def test_processes_share_the_machine(sixteen: pytest.MonkeyPatch) -> None:
    assert (cores.threads(4), cores.own(4), cores.own(99)) == (4, 4, 1)
    sixteen.setenv("LOCAL_WORLD_SIZE", "8")  # torchrun's
    assert (cores.threads(), cores.own()) == (2, 2)


def test_a_slurm_that_says_nothing_of_tasks_has_one(sixteen: pytest.MonkeyPatch) -> None:
    for name in SETTINGS[1:]:
        sixteen.setenv(name, "")
    assert cores.own() == 16


@pytest.mark.parametrize("bound", [True, False])
def test_tasks_of_slurm_share_it_whether_or_not_they_are_bound(
    sixteen: pytest.MonkeyPatch, bound: bool
) -> None:
    for name, value in zip(SETTINGS[1:], ("0", "4(x2)", "16"), strict=True):
        sixteen.setenv(name, value)
    if bound:
        sixteen.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert cores.own(4) == 4


def test_few_workers_have_more_batches_ready_each() -> None:
    assert [cores.prefetch(count) for count in (1, 2, 8)] == [4, 2, 2]


def chosen(**environ: str) -> str:
    """Return what a command tells torch in a fresh process."""
    code = "import os; from project.cores import *; prepare(); print(os.environ[THREADS])"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_threads_are_chosen_before_torch_starts() -> None:
    assert chosen() == str(cores.threads())


def test_what_the_user_has_set_stays() -> None:
    assert chosen(OMP_NUM_THREADS="7") == "7"
    assert chosen(OMP_NUM_THREADS="7", LIGHTNING_SHARED_MACHINE="1") == "7"


def test_a_shared_machine_gets_one_thread() -> None:
    assert chosen(LIGHTNING_SHARED_MACHINE="1") == "1"
    assert not cores.is_shared({cores.SHARED: "0"})


def test_torch_is_left_alone_once_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    cores.prepare()
    assert "OMP_NUM_THREADS" not in os.environ


def test_processes_divide_the_threads_that_were_chosen(sixteen: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    sixteen.setenv("OMP_NUM_THREADS", "16")
    sixteen.setattr(torch, "set_num_threads", told.append)
    cores.divide(4)  # the number is the user's
    sixteen.setattr(cores, "_chosen", True)
    cores.divide(1)
    assert told == []
    cores.divide(4)
    assert (told, os.environ["OMP_NUM_THREADS"]) == ([4], "4")
    sixteen.setenv(cores.SHARED, "1")
    cores.divide(2)
    assert told == [4]
