"""Checks of the machine, on machines that are made up."""

import os
import shutil
from collections import namedtuple
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from zoo.parts import Pictures, Task

from project import cores
from project.doctor import Result, Subject
from project.doctor.checks import machine_cuda, machine_system, machine_versions
from project.doctor.runner import run_checks


class Crowded(Pictures):
    """Pictures with a training loader of eight workers."""

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.train), 64, shuffle=True, num_workers=8)


def found(name: str, data: Any = None, **trainer: Any) -> Result:
    subject = Subject(Task(), data or Pictures(), {"trainer": trainer})
    try:
        return run_checks(subject, ("machine",), (name,)).findings[0]
    finally:
        subject.close()


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine of four CPUs that does nothing else."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cores, "usable", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5), raising=False)
    return monkeypatch


def disk(free: int) -> Any:
    usage = namedtuple("usage", "total used free")
    return lambda place: usage(2**40, 2**40 - free, free)


@pytest.mark.parametrize("version", ["2.6.2", "2.6.3"])
def test_malicious_releases_fail(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: version)
    result = found("known-bad-releases")
    assert (result.status, version in result.evidence) == ("FAIL", True)
    assert "GHSA" in result.evidence


def test_this_release_is_not_known_to_be_bad() -> None:
    assert found("known-bad-releases").status == "PASS"


def test_a_package_outside_the_project_s_range_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda p: "2.5.0" if p == "lightning" else real(p))
    # A renamed copy is not installed under its name before the next `make`.
    monkeypatch.setattr(metadata, "requires", lambda p: ["lightning>=2.6.4,<2.7"])
    result = found("versions")
    assert result.status == "WARN"
    assert "lightning" in result.evidence
    assert "2.5.0" in result.evidence


def test_torchvision_of_another_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.requires
    wrong = ["torch==2.0.1"]
    monkeypatch.setattr(metadata, "requires", lambda p: wrong if p == "torchvision" else real(p))
    assert "torchvision needs torch==2.0.1" in found("versions").evidence


def test_versions_cannot_be_judged_without_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_versions, "required", lambda package: [])
    assert found("versions").status == "SKIP"


def test_a_cpu_build_on_a_machine_with_a_gpu_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(machine_cuda, "nvidia_devices", lambda: True)
    assert found("torch-build").status == "WARN"
    monkeypatch.setattr(machine_cuda, "nvidia_devices", lambda: False)
    assert found("torch-build").status == "PASS"


@pytest.mark.parametrize(
    ("accelerator", "status"), [("auto", "WARN"), ("gpu", "FAIL"), ("cuda", "FAIL")]
)
def test_a_driver_that_is_too_old_is_told(
    monkeypatch: pytest.MonkeyPatch, accelerator: str, status: str
) -> None:
    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(machine_cuda, "nvidia_devices", lambda: True)
    monkeypatch.setattr(machine_cuda, "driver", lambda: "470.1")
    subject = Subject(Task(), Pictures(), {})
    subject.trainer_settings = {"accelerator": accelerator}
    result = run_checks(subject, ("machine",), ("cuda-driver",)).findings[0]
    subject.close()
    assert result.status == status
    assert "470.1" in result.evidence
    assert "too old" in result.evidence


@pytest.mark.parametrize(("capability", "status"), [((9, 0), "PASS"), ((12, 0), "FAIL")])
def test_a_device_that_torch_has_no_code_for_fails(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], status: str
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "NVIDIA made up")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: capability)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90"])
    subject = Subject(Task(), Pictures(), {})
    result = machine_cuda.cuda_driver(subject)
    subject.close()
    assert result.status == status  # type: ignore[union-attr]


@pytest.mark.parametrize(("accelerator", "status"), [("cpu", "WARN"), ("auto", "PASS")])
def test_a_gpu_that_is_not_used_warns(
    monkeypatch: pytest.MonkeyPatch, accelerator: str, status: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    subject = Subject(Task(), Pictures(), {"trainer": {"accelerator": accelerator}})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert machine_cuda.cuda_used(subject).status == status  # type: ignore[union-attr]
    subject.close()


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_warn(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(machine_cuda, "nvidia_devices", lambda: True)
    result = found("cuda-used")
    assert result.status == "WARN"
    assert "CUDA_VISIBLE_DEVICES" in result.evidence


@pytest.mark.parametrize(
    ("free", "status"), [(2**18, "FAIL"), (2**19 + 2**16, "WARN"), (2**33, "PASS")]
)
def test_shared_memory_must_hold_what_workers_prepare(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, status: str
) -> None:
    # 8 workers x 2 batches x 64 images of 8 x 8 floats and int64 labels: 264 KiB.
    monkeypatch.setattr(machine_system, "SHARED", tmp_path)
    monkeypatch.setattr(machine_system, "free_disk", lambda folder: free // 2)
    result = found("shared-memory", Crowded())
    assert result.status == status, result
    if status == "FAIL":
        assert "--shm-size" in result.advice


def test_shared_memory_does_not_matter_without_workers() -> None:
    assert found("shared-memory").status == "SKIP"


def test_a_system_without_shared_memory_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_system, "SHARED", tmp_path / "none")
    assert found("shared-memory", Crowded()).status == "SKIP"


@pytest.mark.parametrize(("limit", "status"), [(256, "WARN"), (65535, "PASS"), (-1, "PASS")])
def test_the_limit_of_open_files_must_fit_the_workers(
    monkeypatch: pytest.MonkeyPatch, limit: int, status: str
) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert found("open-files", Crowded()).status == status


def test_a_system_without_limits_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_system, "resource", None)
    assert found("open-files", Crowded()).status == "SKIP"


def test_a_tmpdir_that_does_not_exist_warns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    result = found("temporary-folder")
    assert result.status == "WARN"
    assert "gone" in result.evidence


def test_a_full_temporary_folder_warns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert found("temporary-folder").status == "PASS"
    monkeypatch.setattr(shutil, "disk_usage", disk(2**20))
    assert found("temporary-folder").status == "WARN"


def test_a_temporary_folder_that_refuses_to_write_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(**kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(machine_system.tempfile, "TemporaryFile", refuse)
    result = found("temporary-folder")
    assert result.status == "FAIL"
    assert "No space left" in result.evidence


@pytest.mark.parametrize(("free", "status"), [(2**20, "FAIL"), (2**29, "WARN"), (2**35, "PASS")])
def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", disk(free))
    assert found("free-space").status == status


@pytest.mark.parametrize(("free", "status"), [(2**20, "WARN"), (2**35, "PASS"), (None, "SKIP")])
def test_little_memory_warns(
    monkeypatch: pytest.MonkeyPatch, free: int | None, status: str
) -> None:
    monkeypatch.setattr(machine_system, "available_memory", lambda: free)
    assert found("free-memory").status == status


def test_threads_that_fit_pass(idle: pytest.MonkeyPatch) -> None:
    assert found("threads").status == "PASS"


def test_a_container_with_fewer_cpus_than_threads_warns(idle: pytest.MonkeyPatch) -> None:
    idle.setattr(torch, "get_num_threads", lambda: 64)
    result = found("threads")
    assert result.status == "WARN"
    assert "OMP_NUM_THREADS=4" in result.advice


def test_threads_count_once_for_every_process(idle: pytest.MonkeyPatch) -> None:
    idle.setenv("OMP_NUM_THREADS", "4")
    assert found("threads", accelerator="cpu", devices=2).status == "WARN"
    idle.delenv("OMP_NUM_THREADS")  # then Lightning divides
    assert found("threads", accelerator="cpu", devices=2).status == "PASS"


def test_threads_on_a_busy_machine_warn(idle: pytest.MonkeyPatch) -> None:
    idle.setattr(os, "cpu_count", lambda: 4)
    idle.setattr(os, "getloadavg", lambda: (40.0, 40.0, 40.0), raising=False)
    assert found("threads").status == "WARN"
    idle.setenv("OMP_NUM_THREADS", "1")
    assert found("threads").status == "PASS"


def test_a_system_without_proc_and_affinity_is_no_reason_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: Path, *args: Any, **kwargs: Any) -> str:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert machine_system.available_memory() is None
    assert cores.usable() >= 1
    assert machine_cuda.driver() == ""


def test_a_folder_that_cannot_be_written_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    assert found("folder-is-writable", default_root_dir=str(tmp_path / "runs")).status == "FAIL"
