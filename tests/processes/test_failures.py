"""A run that fails ends soon, with a reason in one place and no process left."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from project.cli import main
from project.mistakes import UserError
from project.runs import find_run

Start = Callable[..., Any]
DDP = ["--config", "configs/presets/ddp_cpu.yaml"]

# Fails in the third batch, on one process or on all.
BAD = '''
import os, sys, torch

class Bad(torch.nn.Linear):
    """A network that fails."""

    def __init__(self, num_classes: int, how: str = "gpu", rank: int = 0) -> None:
        super().__init__(64, num_classes)
        self.how, self.rank, self.batches = how, rank, 0

    def forward(self, images):
        self.batches += self.training
        if self.batches > 2 and self.rank in (-1, int(os.environ.get("LOCAL_RANK", 0))):
            if self.how == "gpu":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            if self.how == "ram":
                torch.empty(10**15)
            if self.how == "exit":
                sys.exit(0)
            raise ZeroDivisionError("a bug")
        return super().forward(images.flatten(1))
'''


@pytest.fixture
def bad(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workdir / "bad.py").write_text(BAD)
    monkeypatch.syspath_prepend(workdir)
    monkeypatch.delitem(sys.modules, "bad", raising=False)


def fails(capsys: pytest.CaptureFixture[str], how: str, *args: str) -> str:
    assert main(["fit", "--model.net", "bad.Bad", "--model.net.how", how, *args]) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    [path] = Path("logs/digits").iterdir()
    record = find_run(path).record
    assert record["state"] == "failed"
    assert record["error"] in said
    return said


@pytest.mark.slow
@pytest.mark.usefixtures("bad")
def test_a_full_device_is_answered_with_numbers_to_type_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = fails(capsys, "gpu", "--data.batch_size", "48")
    assert "in training, step 2 (epoch 0), batch (48, 1, 8, 8) float32, (48,) int64" in said
    order = (
        "--data.batch_size 24 --trainer.accumulate_grad_batches 2",
        "--trainer.precision bf16-mixed",
        "--model.checkpoint_activations true",
    )
    assert sorted(said.index(way) for way in order) == [said.index(way) for way in order]


@pytest.mark.slow
@pytest.mark.usefixtures("bad")
def test_what_is_on_already_is_not_advised(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--data.batch_size", "9", "--trainer.accumulate_grad_batches", "2"]
    said = fails(capsys, "gpu", *args, "--trainer.precision", "bf16-mixed")
    assert "--data.batch_size 3 --trainer.accumulate_grad_batches 6" in said  # 18 either way
    assert "precision" not in said


@pytest.mark.usefixtures("bad")
def test_a_full_machine_is_answered_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Out of main memory in training, step 2" in fails(capsys, "ram")


@pytest.mark.usefixtures("bad")
def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        main(["fit", "--model.net", "bad.Bad", "--model.net.how", "bug"])
    record = find_run(next(Path("logs/digits").iterdir())).record
    assert (record["state"], record["error"]) == ("failed", "ZeroDivisionError: a bug")


@pytest.mark.usefixtures("bad")
def test_a_run_that_is_left_by_sys_exit_has_failed() -> None:
    assert main(["fit", "--model.net", "bad.Bad", "--model.net.how", "exit"]) == 1
    assert find_run(next(Path("logs/digits").iterdir())).record["state"] == "failed"


@pytest.mark.slow
def test_an_error_in_the_test_at_the_end_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from project.tasks import ClassificationTask

    def broken(*_: object) -> None:
        raise ZeroDivisionError("in the test")

    monkeypatch.setattr(ClassificationTask, "test_step", broken)
    with pytest.raises(ZeroDivisionError):
        main(["fit", "--trainer.max_epochs", "1"])
    record = find_run("last").record
    assert (record["state"], record["error"]) == ("failed", "ZeroDivisionError: in the test")


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    """Let the disk refuse to hold what is written to files whose names begin so."""
    write = Path.write_text

    def refused(self: Path, *args: Any, **kwargs: Any) -> int:
        if self.name.startswith(name):
            self.touch()
            raise OSError(code, os.strerror(code), str(self))
        return write(self, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", refused)


@pytest.mark.parametrize("name", ["config.yaml", "run.json"])
def test_a_disk_too_full_for_the_record_is_told(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], workdir: Path
) -> None:
    refuse(monkeypatch, f".{name}", errno.ENOSPC)
    assert main(["fit"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("Error: logs/digits/")
    assert first.endswith(f"{name} cannot be written: the disk is full.")
    assert second == "Free some there, or train elsewhere: --trainer.default_root_dir DIR"
    assert not list(workdir.iterdir())


def test_a_record_that_no_longer_fits_leaves_the_one_before_and_the_first_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from project.tasks import ClassificationTask

    def full(*_: object) -> None:
        refuse(monkeypatch, ".run.json", errno.ENOSPC)
        raise UserError("the first reason")

    monkeypatch.setattr(ClassificationTask, "on_train_epoch_end", full)
    assert main(["fit", "--trainer.limit_train_batches", "1"]) == 2
    assert capsys.readouterr().err == "Error: the first reason\n"
    [path] = Path("logs/digits").iterdir()
    assert find_run(path).record["state"] == "running"
    assert not list(path.glob(".run.json*"))


@pytest.mark.parametrize("root", ["logs", os.devnull])
def test_a_file_where_runs_should_be_is_told(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    if root == "logs":
        Path(root).touch()
    assert main(["fit", "--trainer.default_root_dir", root]) == 2
    assert capsys.readouterr().err == (
        f"Error: {root} cannot be written: a file is in the place of a folder.\n"
        "Move it away, or train elsewhere: --trainer.default_root_dir DIR\n"
    )


def test_a_disk_that_refuses_a_librarys_files_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), b"logs/events")  # as TensorBoard does

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", refused)
    assert main(["fit"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("Error: logs/events cannot be written: the disk is mounted read-only.\n")


@pytest.mark.parametrize(("verb", "name"), [("tune", "out.yaml"), ("doctor", "out.json")])
def test_a_disk_too_full_for_the_output_is_told(
    verb: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from project.doctor.report import Report
    from project.tuning.session import Tuned

    def session(*_: object) -> SimpleNamespace:
        return SimpleNamespace(tuned=Tuned(settings={"data": {}}), report=Report())

    monkeypatch.setattr("project.tuning.session.Session", session)
    monkeypatch.setattr("project.doctor.examination.Examination", session)
    refuse(monkeypatch, name, errno.ENOSPC)
    assert main([verb, "--output", name]) == 2
    assert capsys.readouterr().err == (
        f"Error: {name} cannot be written: the disk is full.\n"
        "Free some there, or write it elsewhere: --output FILE\n"
    )


def test_an_interrupt_from_python_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from project.tasks import ClassificationTask

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ClassificationTask, "training_step", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    assert main(["fit"]) == 130
    signal.signal(signal.SIGINT, handler)  # Lightning leaves it ignored
    record = find_run(next(Path("logs/digits").iterdir())).record
    assert (record["state"], record["error"]) == ("failed", "KeyboardInterrupt")


@pytest.mark.slow
@pytest.mark.parametrize(("images", "batch_size"), [(64, 512), (20, 64)])
def test_less_data_than_a_batch_is_trained_on(
    images: int, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from project.data import DigitsDataModule

    whole = DigitsDataModule.load

    def part(self: DigitsDataModule, train: bool) -> Any:
        pictures, labels = whole(self, train)
        rows = labels.sort(stable=True).indices[:: len(labels) // images][:images]
        return pictures[rows], labels[rows]

    monkeypatch.setattr(DigitsDataModule, "load", part)
    args = ["--data.batch_size", str(batch_size), "--trainer.max_epochs", "2"]
    assert main(["fit", *args, "--trainer.log_every_n_steps", "1"]) == 0
    assert find_run("last").record["step"] == 2


def test_one_image_a_class_is_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from project.data import DigitsDataModule

    whole = DigitsDataModule.load

    def one(self: DigitsDataModule, train: bool) -> Any:
        pictures, labels = whole(self, train)
        rows = [int((labels == label).nonzero()[0]) for label in range(10)]
        return pictures[rows], labels[rows]

    monkeypatch.setattr(DigitsDataModule, "load", one)
    assert main(["fit"]) == 2
    assert "10 training images, 10 classes" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_rank_ends_the_others(start: Start) -> None:
    run = start(*DDP)
    run.reach("train")
    pid = run.reach("train", 1)
    ended = run.send("SIGKILL", to=pid).end()
    assert ended.code == 1
    assert ended.seconds < 15
    assert ended.left == []
    assert ended.record["state"] == "failed"
    assert f"(pid {pid}) was killed by SIGKILL" in ended.record["error"]
    assert ended.record["error"] in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.slow
def test_ranks_end_with_a_killed_rank_zero(start: Start) -> None:
    run = start(*DDP)
    run.reach("train", 1)
    ended = run.send("SIGKILL", to=run.reach("train")).end()
    assert ended.code == -signal.SIGKILL
    assert ended.seconds < 15
    assert ended.left == []
    assert find_run(ended.run).state == "failed"


@pytest.mark.slow
@pytest.mark.usefixtures("bad")
def test_memory_that_runs_out_on_one_rank_ends_all(start: Start) -> None:
    args = [*DDP, "--model.net", "bad.Bad", "--model.net.rank", "1"]
    ended = start(*args, slow=False).end()
    assert ended.code == 1
    assert ended.left == []
    assert ended.record["state"] == "failed"
    assert "process 1 of 0 to 1" in ended.record["error"]
    assert "[rank 1] Error: Out of" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.slow
def test_a_killed_worker_is_named(start: Start) -> None:
    run = start("--data.num_workers", "2")
    pid = run.reach("train")
    worker = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
    ended = run.send("SIGKILL", to=int(worker)).end()
    assert ended.code == 1
    assert ended.seconds < 15
    assert ended.left == []
    assert "A worker of the data loader was killed (Killed) in training" in ended.err
    assert "--data.num_workers (2 now)" in ended.err
    assert "Traceback" not in ended.err
    assert ended.record["state"] == "failed"


@pytest.mark.slow
def test_small_shared_memory_is_named(start: Start) -> None:
    """The case of containers, https://github.com/pytorch/pytorch/issues/5040."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("needs root and unshare, to mount a small /dev/shm")
    mount = "mount -t tmpfs -o size=2m tmpfs /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    command = ["unshare", "-m", "sh", "-c", f'{mount}; exec "$@"', "sh"]
    args = ["--data.num_workers", "2", "--data.image_size", "512", "--data.batch_size", "16"]
    args += ["--model.net.hidden_dim", "4"]
    ended = start(
        *args, command=[*command, sys.executable, "-m", "project", "fit"], slow=False
    ).end()
    assert ended.code == 1
    assert ended.left == []
    for word in ("shared memory", "--data.num_workers 0", "--shm-size"):
        assert word in ended.err
    assert "Traceback" not in ended.err
