"""`lightning profile`: what is planted is found, in its place, and nothing else is left."""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from planted import CLOCK
from torch import nn

from project.cli import main
from project.profiling import memory, parts, session, tables
from project.profiling.session import Found

PLANTED = ["--data", "planted.Data", "--model", "project.tasks.ClassificationTask"]
PLANTED += ["--model.net", "planted.Net", "--model.optimizer", "torch.optim.SGD"]
PLANTED += ["--model.optimizer.lr", "0.1", "--trainer.accelerator", "cpu"]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Found]:
    """What was measured, by the clock that only planted things move."""
    monkeypatch.setattr(parts, "time", CLOCK)
    monkeypatch.setattr(session, "time", CLOCK)
    shown: list[Found] = []
    show = tables.show
    monkeypatch.setattr(tables, "show", lambda what: (shown.append(what), show(what)))
    return shown


pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


@pytest.mark.slow
def test_every_planted_delay_is_in_its_part(found: list[Found]) -> None:
    planted = ["--data.loading", "0.05", "--data.moving", "0.03", "--model.net.forth", "0.04"]
    planted += ["--model.net.back", "0.06", "--trainer.callbacks+=planted.SlowCallback"]
    planted += ["--data.starting", "0.09", "--data.batch_size", "8"]  # an epoch is the warm-up
    slow = [word.replace("torch.optim.SGD", "planted.SlowSGD") for word in PLANTED]
    assert main(["profile", "--steps", "3", *slow, *planted]) == 0
    [what] = found
    assert (what.steps, what.samples) == (3, 8)
    delays = {"data": 0.4 + 0.09 / 3, "transfer": 0.03, "forward": 0.04, "backward": 0.06}
    delays |= {"optimizer": 0.1, "logging": 0, "callbacks": 0.2, "rest": 0}
    assert what.parts == pytest.approx(delays)
    assert what.step == pytest.approx(sum(what.parts.values()))


@pytest.mark.slow
def test_the_digits_leave_a_trace_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Found] = []
    show = tables.show
    monkeypatch.setattr(tables, "show", lambda what: (shown.append(what), show(what)))
    assert main(["profile", "--steps", "5", "--model.net.hidden_dim", "8"]) == 0
    [what] = shown
    # Both are measured, by clocks of their own.
    assert sum(what.parts.values()) == pytest.approx(what.step, rel=0.05)
    [file] = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert file.parent.parent == tmp_path / "logs" / "profile"
    names = {event.get("name") for event in json.loads(file.read_text())["traceEvents"]}
    assert {"aten::linear", "forward", "backward", "optimizer"} <= names
    said = capsys.readouterr()
    assert len(what.operators) >= 10
    assert all(name.split(" ")[0] in said.out for name, *_ in what.operators[:3])
    assert "net." in said.out
    assert "Peak" in said.out
    assert max(map(len, said.out.splitlines())) <= 100


@pytest.mark.slow
def test_a_system_that_does_not_count_memory_can_profile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert main(["profile", "--steps", "2", *PLANTED]) == 0
    assert "Peak   unknown, memory of the process" in capsys.readouterr().out


@pytest.mark.slow
def test_output_says_where_the_trace_goes(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    settings = ["--steps", "2", "--output", "here", *PLANTED]
    assert main(["profile", *settings]) == 0
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["trace.json"]
    assert (tmp_path / "here" / "trace.json").is_file()


@pytest.mark.slow
def test_what_belongs_to_a_run_does_not_stop_it() -> None:
    ending = ["--model.scheduler", "torch.optim.lr_scheduler.OneCycleLR"]
    ending += ["--model.scheduler.max_lr", "0.1", "--model.scheduler.total_steps", "12"]
    ending += ["--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint"]
    ending += ["--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping"]
    ending += ["--trainer.callbacks.monitor", "nothing", "--data.batch_size", "8"]
    assert main(["profile", "--steps", "2", *PLANTED, *ending]) == 0


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            main(["profile", *PLANTED, "--trainer.callbacks+=planted.Impatient"])
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning lets nobody interrupt its end
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--steps", "few"], "steps"),
        (["--steps", "0"], "--steps: '0' is no whole number from 1 on"),
        (["--step", "3"], "lightning profile has no setting --step. Did you mean --steps?"),
        (["--resume", "last"], "profile has no setting --resume"),
        (["--model.net.hidden_dimm", "8"], "hidden_dim"),
        (["--output", os.devnull], f"{os.devnull} cannot be written"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    args: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *args]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) <= 3
    assert not list(tmp_path.rglob("*.*"))


def test_a_shell_of_a_slurm_job_starts_no_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_JOB_NAME", "work")
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    assert main(["profile", "--resume", "last"]) == 2  # refused, but only then
    assert os.environ["SLURM_JOB_NAME"] == "interactive"  # else Lightning refuses to begin


def weigh(net: nn.Module, inputs: torch.Tensor) -> dict[str, memory.Held]:
    found = memory.nothing_held()
    optimizer = torch.optim.Adam(net.parameters())
    with memory.activations(net, found):
        loss = net(inputs).sum()
    loss.backward()
    optimizer.step()
    memory.weights(net, [optimizer], found)
    return found


def test_memory_is_counted_where_it_is_held() -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 4))
    found = weigh(net, torch.zeros(32, 8))
    first, sigmoid = found["0"], found["1"]
    assert (first.parameters, first.gradients) == (4 * 144, 4 * 144)
    assert first.optimizer == pytest.approx(2 * 4 * 144, abs=16)  # Adam's two, and its steps
    assert first.activations == 4 * 32 * 8  # its input
    assert (sigmoid.parameters, sigmoid.activations) == (0, 4 * 32 * 16)  # its output
    assert found["2"].activations == 0  # the same tensor


def test_shared_parameters_count_once() -> None:
    layer = nn.Linear(8, 8)
    found = weigh(nn.Sequential(layer, layer), torch.zeros(2, 8))
    assert sum(held.parameters for held in found.values()) == 4 * 72


def test_frozen_parameters_have_neither_gradients_nor_states() -> None:
    net = nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8))
    found = weigh(net, torch.zeros(2, 8))
    assert (found["0"].gradients, found["0"].optimizer) == (0, 0)
    assert found["1"].gradients == 4 * 72


@pytest.mark.parametrize(
    ("action", "part"),
    [
        ("[_TrainingEpochLoop].train_dataloader_next", "data"),
        ("[Strategy]SingleDeviceStrategy.batch_to_device", "transfer"),
        ("[LightningDataModule]Data.on_after_batch_transfer", "transfer"),
        ("[Strategy]SingleDeviceStrategy.training_step", "forward"),
        ("[LightningModule]Task.on_after_backward", "backward"),
        ("[LightningModule]Task.optimizer_zero_grad", "optimizer"),
        ("[LightningModule]Task.configure_gradient_clipping", "optimizer"),
        ("[Callback]Guard.on_before_optimizer_step", "callbacks"),
        ("run_training_batch", ""),
    ],
)
def test_every_action_of_lightning_has_its_part(action: str, part: str) -> None:
    assert parts.part_of(action) == part


def test_the_innermost_thing_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "time", CLOCK)
    watch = parts.Stopwatch()
    watch.resume()
    with watch.profile("[LightningModule]Task.optimizer_step"):
        CLOCK.sleep(1)
        with watch.profile("[Strategy]S.training_step"):
            CLOCK.sleep(2)
            with watch.profile("something unknown"):
                CLOCK.sleep(4)
        CLOCK.sleep(8)
    watch.pause()
    CLOCK.sleep(16)
    with watch.profile("[Strategy]S.training_step"):
        CLOCK.sleep(32)
    assert watch.seconds == pytest.approx({"optimizer": 9, "forward": 6, "rest": 0})


def test_tables_have_what_a_device_does(capsys: pytest.CaptureFixture[str]) -> None:
    what: dict[str, Any] = {"steps": 3, "step": 0.2, "free": 0.1, "samples": 5, "busy": 0.08}
    tables.show(Found(parts=dict.fromkeys(parts.PARTS, 0.025), peak=3 * 10**9, **what))
    said = capsys.readouterr().out
    assert "A step of 5 samples takes 100.00 ms: 50 samples per second" in said
    assert "device idle      20.00  20" in said
    assert "3 GB, device's memory" in said
