"""`lightning tune` picks precision and memory order by what is fast here."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from slopes import Data, Parabola
from torch import nn

from project.cli import main
from project.models import MLP, ConvNet
from project.tasks import ClassificationTask
from project.tuning import precision
from project.tuning.bench import Bench, Speed
from project.tuning.precision import Kind

FLOAT, LAST = Kind("32-true", False), Kind("32-true", True)
HALF, HALF_LAST = Kind("bf16-mixed", False), Kind("bf16-mixed", True)


def bench(task: Any, tmp_path: Path, **settings: Any) -> Bench:
    return Bench(task, Data(), {"accelerator": "cpu", **settings}, 0, tmp_path)


def convolving(**settings: Any) -> ClassificationTask:
    return ClassificationTask(ConvNet(1, 10, hidden_dim=4), 10, **settings)


def test_what_is_configured_comes_first_and_only_what_can_help_is_tried(tmp_path: Path) -> None:
    def tried(task: Any, **settings: Any) -> list[Kind]:
        return precision.kinds(bench(task, tmp_path, **settings))

    assert tried(convolving()) == [FLOAT, LAST, HALF, HALF_LAST]
    assert tried(convolving(), precision="bf16-mixed") == [HALF, HALF_LAST, FLOAT, LAST]
    assert tried(convolving(channels_last=True)) == [LAST, HALF_LAST]
    assert tried(ClassificationTask(MLP(1, 8, 10), 10)) == [FLOAT, HALF]  # no convolution
    assert tried(Parabola()) == [FLOAT, HALF]  # no channels_last
    assert tried(convolving(), precision="64-true") == [Kind("64-true", False)]


def test_the_least_change_that_is_about_as_fast_as_any_is_taken() -> None:
    assert precision.best({FLOAT: 95, LAST: 96, HALF: 100}) == FLOAT
    assert precision.best({FLOAT: 50, LAST: 91, HALF: 80, HALF_LAST: 100}) == LAST
    assert precision.best({FLOAT: 50, LAST: 60, HALF: 80, HALF_LAST: 200}) == HALF_LAST


def test_another_way_to_compute_leaves_the_task_as_it_is(tmp_path: Path) -> None:
    given = bench(convolving(), tmp_path)
    made = precision.otherwise(given, HALF_LAST)
    convolutions = [n for n, part in given.task.net.named_modules() if isinstance(part, nn.Conv2d)]
    second = convolutions[1]  # the order of a single channel is both
    weights = [task.net.get_submodule(second).weight for task in (given.task, made.task)]
    orders = [w.is_contiguous(memory_format=torch.channels_last) for w in weights]
    assert orders == [given.task.channels_last, made.task.channels_last] == [False, True]
    assert torch.equal(*weights)
    assert (made.settings["precision"], "precision" in given.settings) == ("bf16-mixed", False)


def test_what_does_not_work_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "bf16-mixed"

    def speed(self: Bench, *_: object) -> Speed:
        if self.settings["precision"] == broken:
            raise RuntimeError("not implemented for 'BFloat16'")
        return Speed(10.0, 0.1, 0)

    monkeypatch.setattr(Bench, "speed", speed)
    assert precision.measure(bench(convolving(), tmp_path)) == {FLOAT: 10, LAST: 10}
    broken = "32-true"
    with pytest.raises(RuntimeError, match="not implemented"):
        precision.measure(bench(convolving(), tmp_path))


@pytest.mark.slow
def test_what_is_taken_is_in_the_file_and_in_what_is_measured_next(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Kind] = []

    def speed(self: Bench, *_: object, **changes: Any) -> Speed:
        kind = Kind(str(self.settings["precision"]), self.task.channels_last)
        seen.append(kind)
        return Speed(2.0 if kind == HALF_LAST else 1.0, 0.1, 0)

    monkeypatch.setattr(Bench, "speed", speed)
    assert main(["tune", "--only", "precision,batch_size"]) == 0
    said = capsys.readouterr()
    assert "precision   bf16-mixed channels_last" in said.out
    assert "Automatic Mixed Precision" not in said.err
    assert set(seen[8:]) == {HALF_LAST}
    content = yaml.safe_load(Path("tuned.yaml").read_text())
    assert content["trainer"] == {"precision": "bf16-mixed"}
    assert content["model"]["init_args"]["channels_last"] is True
    assert main(["fit", "--config", "tuned.yaml", "--trainer.fast_dev_run", "true"]) == 0
