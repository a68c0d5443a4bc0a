"""A run that is told to stop saves, says so, exits with 75 and goes on from there."""

import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from project.cli import main
from project.runs import Run

pytestmark = pytest.mark.slow

Start = Callable[..., Any]
DDP = ["--config", "configs/presets/ddp_cpu.yaml"]
EPOCHS = ["--trainer.max_epochs", "2", "--model.net.hidden_dim", "8"]
LIMIT = 10.0  # seconds


def check_preempted(ended: Any, name: str, saved: str = "autosave.ckpt") -> None:
    assert ended.code == 75, ended.err
    assert ended.seconds < LIMIT
    assert ended.left == []
    assert f"Stopped by {name} at step" in ended.err
    assert f"lightning fit --resume {ended.run}" in ended.err
    assert "Traceback" not in ended.err
    assert ended.record["state"] == "preempted"
    assert ended.record["last_ckpt"] == f"checkpoints/{saved}"
    assert Run(ended.run).newest_intact().name == saved


def check_goes_on(ended: Any, straight: Run) -> None:
    """It ends with the weights of a run that was never stopped."""
    assert main(["fit", "--resume", str(ended.run), "--trainer.callbacks", "[]"]) == 0
    assert Run(ended.run).state == "finished"
    stopped, expected = (
        torch.load(run.checkpoint("last"), weights_only=True)["state_dict"]
        for run in (Run(ended.run), straight)
    )
    assert all(torch.equal(value, stopped[key]) for key, value in expected.items())


@pytest.mark.parametrize(
    ("stage", "name"),
    [("sanity", "SIGHUP"), ("train", "SIGTERM"), ("val", "SIGUSR1"), ("test", "SIGINT")],
)
def test_one_process_stops_and_goes_on(
    start: Start,
    stage: str,
    name: str,
    digits_run: Run,
    workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = start(*EPOCHS)
    ended = run.send(name, to=run.reach(stage)).end()
    check_preempted(ended, name, "last.ckpt" if stage == "test" else "autosave.ckpt")
    monkeypatch.syspath_prepend(workdir)  # where the callback is that the run was made with
    check_goes_on(ended, digits_run)


@pytest.mark.parametrize(
    ("stage", "rank", "name"),
    [("train", 1, "SIGUSR1"), ("val", 0, "SIGHUP"), ("test", 1, "SIGTERM")],
)
def test_two_processes_stop_together_if_one_is_told(
    start: Start, stage: str, rank: int, name: str
) -> None:
    run = start(*EPOCHS, *DDP)
    ended = run.send(name, to=run.reach(stage, rank)).end()
    check_preempted(ended, name, "last.ckpt" if stage == "test" else "autosave.ckpt")


def test_signal_to_the_group_does_not_end_workers_first(start: Start) -> None:
    run = start(*EPOCHS, *DDP, "--data.num_workers", "2")
    run.reach("train")
    check_preempted(run.send("SIGTERM").end(), "SIGTERM")


def test_torchrun_agrees_on_one_run(start: Start) -> None:
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--nproc_per_node", "2"]
    run = start(*EPOCHS, *DDP, command=[*torchrun, "-m", "project", "fit"])
    run.reach("train")
    ended = run.send("SIGTERM").end()
    assert ended.code == 1  # torchrun's own, whatever its processes leave with
    assert ended.seconds < LIMIT
    assert ended.left == []
    assert ended.record["state"] == "preempted"
    assert Run(ended.run).newest_intact().name == "autosave.ckpt"


@pytest.mark.parametrize("to_group", [True, False])
def test_second_interrupt_ends_everything_at_once(start: Start, to_group: bool) -> None:
    run = start(*EPOCHS, *DDP, "--data.num_workers", "2")
    run.reach("train", 1)
    pid = run.reach("train")
    ended = run.send("SIGINT", "SIGINT", "SIGINT", to=None if to_group else pid, gap=0.2).end()
    assert ended.code in (-signal.SIGINT, 130, 75)  # 75 if it was faster than the second one
    assert ended.seconds < LIMIT
    assert ended.left == []
    assert "Traceback" not in ended.err
    assert ended.record["state"] in ("failed", "preempted")


@pytest.mark.parametrize(("after", "name"), [(0.5, "SIGTERM"), (2.0, "SIGINT"), (3.5, "SIGUSR1")])
def test_signal_before_the_run_begins_leaves_nothing(start: Start, after: float, name: str) -> None:
    # A network that takes long to build stands for slow data.
    Path("late.py").write_text(
        "import time, torch\n"
        "class Late(torch.nn.Module):\n"
        '    """Late."""\n'
        "    def __init__(self, num_classes: int):\n"
        "        time.sleep(30)\n"
    )
    run = start("--model.net", "late.Late", slow=False)
    with pytest.raises(Exception, match="timed out"):
        run.process.communicate(timeout=after)
    ended = run.send(name).end()
    assert ended.code == -getattr(signal, name)
    assert ended.seconds < 3
    assert ended.err == ""
    assert not Path("logs").exists()


def test_two_processes_that_load_leave_nothing(start: Start) -> None:
    run = start(*DDP)
    while not list(Path("logs").glob("*/*")):  # from here the second process is awaited
        assert run.process.poll() is None
    ended = run.send("SIGTERM", to=run.process.pid).end()
    assert ended.code in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert ended.seconds < LIMIT
    assert ended.left == []
    assert not Path("logs").exists()


def test_switched_off_a_signal_ends_the_run_and_its_record(start: Start) -> None:
    run = start("--preemption", "null")
    ended = run.send("SIGTERM", to=run.reach("train")).end()
    assert ended.code == -signal.SIGTERM
    assert (ended.record["state"], ended.record["error"]) == ("failed", "stopped by SIGTERM")


def test_nohup_is_respected(start: Start) -> None:
    if not shutil.which("nohup"):
        pytest.skip("there is no nohup here")
    run = start(
        "--trainer.max_steps", "8", command=["nohup", sys.executable, "-m", "project", "fit"]
    )
    assert run.send("SIGHUP", to=run.reach("train")).end().code == 0


def test_shell_of_an_allocation_trains_as_one_process(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in (("JOB_ID", "1"), ("JOB_NAME", "jupyter"), ("NTASKS", "2")):
        monkeypatch.setenv(f"SLURM_{key}", value)
    ended = start("--trainer.max_steps", "2", slow=False).end()
    assert (ended.code, ended.err) == (0, "")
    assert ended.record["hardware"]["processes"] == 1
