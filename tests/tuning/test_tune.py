"""`lightning tune`: finds what is known to be best, changes nothing, and its file stacks."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from slopes import Data, Deaf, Endless, Fixed, Numbers, Parabola
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from project import cores
from project.cli import main
from project.mistakes import RunFailed
from project.runs import find_run
from project.tuning import batch_size, rate, workers
from project.tuning.batch_size import Sizes
from project.tuning.bench import Bench, Speed
from project.tuning.picture import draw
from project.tuning.rate import Range
from project.tuning.session import rate_setting


def bench(task: Any, data: Any, tmp_path: Path) -> Bench:
    return Bench(task, data, {"accelerator": "cpu"}, 0, tmp_path)


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("room", [4, 9, 37, 100])
def test_the_largest_batch_that_fits_is_found(tmp_path: Path, room: int) -> None:
    found = batch_size.measure(bench(Parabola(room=room), Data(), tmp_path), lambda what: None)
    assert found is not None
    assert room / batch_size.FINE <= found.largest <= room
    assert found.best == 4  # 200 samples would make less than 50 steps of more


@pytest.mark.slow
def test_a_batch_is_no_larger_than_the_training_set(tmp_path: Path) -> None:
    found = batch_size.measure(bench(Parabola(), Data(count=50), tmp_path), lambda what: None)
    assert found is not None
    assert (found.largest, found.samples) == (50, 50)


@pytest.mark.slow
def test_memory_that_is_not_there_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_size, "available_memory", lambda: 1000)
    tried = []

    def speed(size: int) -> Speed:
        tried.append(size)
        return Speed(rate=1.0, step=0.1, memory=100 * size)

    it = bench(Parabola(), Data(), tmp_path)
    monkeypatch.setattr(it, "speed", lambda batch_size, **_: speed(batch_size))
    found = batch_size.measure(it, lambda what: None)
    assert found is not None
    assert max(tried) == found.largest == 8  # 80 % of it


def test_steps_that_take_too_long_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = bench(Parabola(), Data(), tmp_path)
    monkeypatch.setattr(it, "speed", lambda batch_size, **_: Speed(1.0, batch_size, 0))
    found = batch_size.measure(it, lambda what: None)
    assert found is not None
    assert (found.largest, found.end) == (16, "a step takes 16 s")


def test_data_without_a_length_have_no_largest_batch(tmp_path: Path) -> None:
    assert batch_size.measure(bench(Parabola(), Endless(), tmp_path), lambda what: None) is None


def test_a_batch_larger_than_the_training_set_is_as_large_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = bench(Parabola(), Data(count=8, batch_size=64), tmp_path)
    monkeypatch.setattr(it, "speed", lambda **_: Speed(1.0, 0.1, 0))
    found = batch_size.measure(it, lambda what: None)
    assert found is not None
    assert found.now == found.best == found.largest == 8  # no other learning rate is implied


def test_a_task_for_which_nothing_fits_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = bench(Parabola(), Data(), tmp_path)

    def fail(**_: Any) -> Speed:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(it, "speed", fail)
    with pytest.raises(RunFailed, match="one sample"):
        batch_size.measure(it, lambda what: None)


def test_data_without_a_batch_are_told(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="drop_last"):
        bench(Parabola(), Data(count=0), tmp_path).speed(1, 1, 1.0)


def test_another_error_is_no_lack_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = bench(Parabola(), Data(), tmp_path)

    def fail(**_: Any) -> Speed:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(it, "speed", fail)
    with pytest.raises(RuntimeError, match="shapes"):
        batch_size.measure(it, lambda what: None)


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({32: 100, 64: 190, 128: 200, 4096: 900}, 64),  # 128 is hardly faster, 4096 leaves 2 steps
        ({32: 185, 64: 190, 128: 200}, 32),
        ({32: 100}, 32),
    ],
)
def test_the_smallest_batch_that_is_fast_is_taken(rates: dict[int, float], best: int) -> None:
    tried = {size: Speed(value, 0.1, 0) for size, value in rates.items()}
    assert Sizes(now=32, samples=10_000, tried=tried).best == best


def test_the_rate_that_a_batch_implies() -> None:
    linear, root = batch_size.implied_rate, batch_size.implied_rate
    assert linear(0.1, torch.optim.SGD, 4.0) == (0.4, "linear")
    assert root(0.001, torch.optim.AdamW, 4.0) == (0.002, "square root")


@pytest.mark.slow
@pytest.mark.parametrize("curvature", [1.0, 100.0])
def test_the_suggested_rate_is_below_where_descent_diverges(
    tmp_path: Path, curvature: float
) -> None:
    task = Parabola(curvature)
    found = rate.measure(bench(task, Data(), tmp_path))
    assert found.rate is not None
    assert 0.002 / curvature < found.rate < 1 / curvature
    assert len(found.rates) == len(found.losses) == len(found.smooth)
    assert task.weight.item() == 3.0


@pytest.mark.slow
def test_accumulated_batches_have_one_rate(tmp_path: Path) -> None:
    it = Bench(
        Parabola(), Data(), {"accelerator": "cpu", "accumulate_grad_batches": 2}, 0, tmp_path
    )
    found = rate.measure(it)
    assert found.rates[::2] == found.rates[1::2]
    assert found.rates[-1] == pytest.approx(rate.HIGH)


@pytest.mark.slow
def test_batches_that_are_left_out_have_no_rate(tmp_path: Path) -> None:
    found = rate.measure(bench(Parabola(left_out=5), Data(), tmp_path))
    assert len(found.rates) == len(found.losses) == rate.STEPS * 4 // 5
    assert found.rate is not None
    assert rate.measure(bench(Parabola(left_out=1), Data(), tmp_path)).losses == []


@pytest.mark.slow
def test_a_schedule_that_is_over_sooner_does_not_stop_it(tmp_path: Path) -> None:
    assert rate.measure(bench(Parabola(total_steps=20), Data(), tmp_path)).rate is not None


@pytest.mark.slow
def test_a_loss_that_does_not_fall_suggests_nothing(tmp_path: Path) -> None:
    assert rate.measure(bench(Parabola(curvature=0.0), Data(), tmp_path)).rate is None


def losses(noise: float, end: float) -> list[float]:
    """120 losses from 2.3 on; from the middle on they fall, and end 20 steps later."""
    draw = torch.Generator().manual_seed(0)
    falls = [2.3 - (2.3 - end) * min(1.0, max(0, step - 60) / 20) for step in range(120)]
    return [loss + noise * torch.randn((), generator=draw).item() for loss in falls]


@pytest.mark.parametrize(
    ("noise", "end", "clear"),
    [(0.0, 2.0, True), (0.05, 2.0, True), (0.3, 2.3, False), (0.3, 2.0, False), (1.0, 0.5, True)],
)
def test_a_fall_that_may_be_chance_suggests_nothing(noise: float, end: float, clear: bool) -> None:
    rates = [rate.LOW * (rate.HIGH / rate.LOW) ** (step / 119) for step in range(120)]
    found = rate.suggested(rates, losses(noise, end))
    assert (found is not None) == clear
    if clear:
        assert found > rates[60] / 2


@pytest.mark.slow
def test_labels_drawn_by_lot_leave_the_rate_as_it_is(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(workdir)
    Path("by_lot.py").write_text(
        "import torch\nfrom project.data import DigitsDataModule\n"
        "class ByLot(DigitsDataModule):\n"
        "    def load(self, train):\n"
        "        images, labels = super().load(train)\n"
        "        draw = torch.Generator().manual_seed(0)\n"
        "        return images, labels[torch.randperm(len(labels), generator=draw)]\n"
    )
    assert main(["tune", "--only", "lr", "--data", "by_lot.ByLot"]) == 0
    said = capsys.readouterr().out
    assert "no clear descent" in said
    assert "lr 0.003 is kept" in said
    assert not Path("tuned.yaml").exists()


def test_a_smoothed_constant_is_that_constant() -> None:
    assert rate.smoothed([2.0] * 5) == pytest.approx([2.0] * 5)


@pytest.mark.slow
def test_workers_are_taken_where_they_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "workers", lambda: 2)
    monkeypatch.setattr(workers, "SECONDS", 0.5)
    slow = workers.measure(bench(Parabola(), Data(seconds=0.01), tmp_path))
    assert sorted(slow) == [0, 1, 2]
    assert workers.best(slow) == 2
    assert workers.measure(bench(Parabola(), Fixed(), tmp_path)) == {}
    assert workers.measure(bench(Parabola(), Deaf(), tmp_path)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("share", [True, False])
def test_workers_that_repeat_a_stream_are_told_from_those_that_share_it(
    share: bool, tmp_path: Path
) -> None:
    assert workers.repeats(bench(Parabola(), Numbers(share), tmp_path)) != share
    assert not workers.repeats(bench(Parabola(), Data(), tmp_path))


def test_the_fewest_workers_that_are_enough_are_taken() -> None:
    assert workers.counts(6) == [0, 1, 2, 4]
    assert workers.best({0: 50.0, 1: 92.0, 2: 100.0}) == 1


def test_the_picture_shows_the_suggestion() -> None:
    rates = [10.0**power for power in range(-4, 2)]
    losses = [2.0, 1.9, 1.0, 0.5, 1.0, math.exp(9)]
    pictures = [draw(Range(rates, losses, losses, value)) for value in (None, 0.01)]
    colors = [{color for _, color in picture.getcolors(10**6)} for picture in pictures]
    assert [(214, 39, 40) in found for found in colors] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "keys", "value"),
    [
        (
            {"optimizer": {"class_path": "x", "init_args": {"lr": 0.1}}},
            "optimizer.init_args.lr",
            0.1,
        ),
        ({"optimizer": {"class_path": "x"}}, "optimizer.init_args.lr", None),
        (
            {"optimizer": {}, "scheduler": {"class_path": "x", "init_args": {"max_lr": 0.4}}},
            "scheduler.init_args.max_lr",
            0.4,
        ),
        ({"lr": 0.2, "optimizer": "x"}, "lr", 0.2),
        ({"learning_rate": 0.3}, "learning_rate", 0.3),
    ],
)
def test_the_setting_of_the_rate_is_found(
    arguments: dict[str, Any], keys: str, value: float | None
) -> None:
    assert rate_setting({"init_args": arguments}) == (
        ["model", "init_args", *keys.split(".")],
        value,
    )
    assert rate_setting({"init_args": {"width": 3}}) == ([], None)


@pytest.mark.slow
def test_everything_is_measured_written_and_stacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--data", "slopes.Data", "--model", "slopes.Parabola", "--model.curvature", "50"]
    settings += ["--checkpoint", "null", "--early_stopping", "null"]
    settings += ["--trainer.limit_test_batches", "0"]
    beating = ["--data.batch_size", "8", "--model.init_args.lr=0.5"]
    assert main(["tune", *settings, *beating, "--output", "found/tuned.yaml"]) == 0
    said = capsys.readouterr().out
    content = yaml.safe_load(Path("found/tuned.yaml").read_text())
    assert set(content["data"]["init_args"]) == {"num_workers", "batch_size"}
    assert 0 < content["model"]["init_args"]["lr"] < 2 / 50
    event, tuned = sorted(files(tmp_path), key=lambda name: "tuned" in name)
    assert tuned == "found/tuned.yaml"
    assert event.startswith("logs/Data/tune/events.out.tfevents")
    events = EventAccumulator(str(Path(event).parent)).Reload()
    assert events.Tags()["images"] == ["learning_rate/range"]
    assert f"lightning fit {' '.join(settings)} --config found/tuned.yaml" in said
    more = ["--trainer.max_epochs", "1", "--config", "found/tuned.yaml"]
    assert main(["fit", *settings, *more]) == 0
    [file] = Path("logs").rglob("config.yaml")
    config = yaml.safe_load(file.read_text())
    assert config["model"]["init_args"]["lr"] == content["model"]["init_args"]["lr"]
    assert config["model"]["init_args"]["curvature"] == 50


@pytest.mark.slow
def test_the_suggested_rate_trains_the_digits_and_brings_its_optimizer(tmp_path: Path) -> None:
    other = ["--model.optimizer", "torch.optim.SGD", "--model.optimizer.momentum", "0.9"]
    assert main(["tune", "--only", "lr", *other]) == 0
    content = yaml.safe_load(Path("tuned.yaml").read_text())
    optimizer = content["model"]["init_args"]["optimizer"]
    assert optimizer["class_path"] == "torch.optim.SGD"
    epochs = ["--trainer.max_epochs", "5"]
    assert main(["fit", *other, *epochs, "--config", "tuned.yaml"]) == 0
    run = find_run("last")
    assert run.record["scores"]["test/acc"] >= 0.95
    used = yaml.safe_load(run.config.read_text())["model"]["init_args"]["optimizer"]
    assert used["init_args"]["lr"] == optimizer["init_args"]["lr"]
    assert used["init_args"]["momentum"] == 0.9


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--only", "worker"], "Did you mean workers?"),
        (["--run", "last"], "tune has no setting --run"),
        (["--outptu", "x"], "lightning tune has no setting --outptu. Did you mean --output?"),
        (["--optimizer.lrr", "1"], "tune has no setting --optimizer.lrr. Did you mean --model.opt"),
        (["digits"], "Did you mean --config configs/digits.yaml?"),
        (["--output"], "--output"),
        (["--output", "."], ". cannot be written"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    args: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *args]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) <= 3
    assert not files(tmp_path)


def test_what_is_stacked_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tuned.yaml").write_text("data: {init_args: {batch_size: 8}}")
    assert main(["tune", "--config", "tuned.yaml", "--only", "lr"]) == 2
    assert "--output tuned.yaml is a --config, too" in capsys.readouterr().err
    assert "batch_size" in Path("tuned.yaml").read_text()
