"""Samples per second and the wait for data, with data that are slow and data that are not."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from project import cores
from project.callbacks import TensorBoard, Throughput, throughput

RATE, WAIT = "train/samples_per_second", "train/data_wait"


class Time:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    monkeypatch.setattr(throughput, "time", clock := Time())
    monkeypatch.setattr(cores, "workers", lambda processes: 6)
    return clock


class Slow(Dataset[Tensor]):
    """Vectors; one takes a while to come."""

    def __init__(self, clock: Time, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> Tensor:
        self.clock.sleep(self.seconds)
        return torch.full((4,), float(index))


class Data(L.LightningDataModule):
    """Batches of 4; validation takes long."""

    def __init__(self, clock: Time, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def train_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(Slow(self.clock, self.seconds), batch_size=4, shuffle=True)

    def val_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(Slow(self.clock, 1.0), batch_size=40)


class Settable(Data):
    """The same with a number of workers."""

    num_workers = 0


class Task(L.LightningModule):
    """A linear layer; a step takes a while."""

    def __init__(self, clock: Time, seconds: float) -> None:
        super().__init__()
        self.layer, self.clock, self.seconds = nn.Linear(4, 1), clock, seconds

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.clock.sleep(self.seconds)
        loss: Tensor = self.layer(batch).mean()
        return loss

    def on_train_batch_end(self, *_: object) -> None:
        self.clock.sleep(0.002)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Validate nothing."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def train(folder: Path, task: Task, data: Data, **settings: Any) -> tuple[str, Any]:
    """Train; return the closing line and the curves."""
    watcher = Throughput()
    trainer = L.Trainer(
        log_every_n_steps=1,
        callbacks=[watcher],
        logger=TensorBoard(str(folder)),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        accelerator="cpu",
        **({"max_epochs": 2} | settings),
    )
    trainer.fit(task, datamodule=data)
    assert not {"_on_before_fetch", "_on_after_fetch"} & vars(trainer.fit_loop.epoch_loop).keys()
    events = EventAccumulator(str(folder)).Reload()
    curves = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    return watcher.closing_line, {tag: [(e.step, e.value) for e in curves[tag]] for tag in curves}


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
]


def test_slow_data_are_seen_and_workers_advised(tmp_path: Path, clock: Time) -> None:
    line, curves = train(tmp_path, Task(clock, 0.002), Settable(clock, 0.004))
    # 4 samples: 16 ms to load, 2 in the model, 2 behind it but for an epoch's last.
    assert [step for step, _ in curves[WAIT]] == list(range(4, 60, 5))
    assert [value for _, value in curves[WAIT]] == pytest.approx([16 / 20] * 12, rel=0.05)
    assert [value for _, value in curves[RATE]] == pytest.approx([4 / 0.020] * 12, rel=0.05)
    assert line == (
        "Speed  200 samples per second, in the model 10 %, waiting for data 80 %: "
        "try --data.num_workers 5"
    )


def test_fast_data_are_not_waited_for(tmp_path: Path, clock: Time) -> None:
    line, curves = train(tmp_path, Task(clock, 0.078), Settable(clock, 0.0))
    assert {value for _, value in curves[WAIT]} == {0.0}
    assert line == "Speed  50 samples per second, in the model 98 %, waiting for data 0 %"


def test_processes_count_together_and_it_is_said(
    tmp_path: Path, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(L.Trainer, "world_size", 2)
    line, curves = train(tmp_path, Task(clock, 0.078), Settable(clock, 0.0))
    assert line.startswith("Speed  100 samples per second of 2 processes, in the model 98 %")
    assert curves[RATE][0][1] == pytest.approx(100, rel=0.05)


def test_a_wait_that_workers_would_not_shorten_brings_no_advice(
    tmp_path: Path, clock: Time
) -> None:
    line, _ = train(tmp_path, Task(clock, 0.002), Settable(clock, 0.0005))
    assert line.endswith("waiting for data 34 %")


def test_data_without_such_a_setting_get_other_advice(tmp_path: Path, clock: Time) -> None:
    line, _ = train(tmp_path, Task(clock, 0.002), Data(clock, 0.004))
    assert line.endswith("waiting for data 80 %: load it in workers, DataLoader(num_workers=...)")


def test_time_that_is_neither_is_pointed_at(tmp_path: Path, clock: Time) -> None:
    line, _ = train(tmp_path, Task(clock, 0.001), Data(clock, 0.0))
    assert line.endswith("waiting for data 0 %: lightning profile says where the rest goes")


def test_a_run_of_few_steps_has_no_line_but_its_points(tmp_path: Path, clock: Time) -> None:
    line, curves = train(tmp_path, Task(clock, 0.01), Data(clock, 0.001), max_steps=15)
    assert line == ""
    assert [step for step, _ in curves[WAIT]] == [4, 9, 14]


def test_accumulated_batches_are_one_step(tmp_path: Path, clock: Time) -> None:
    how = {"accumulate_grad_batches": 3, "max_steps": 10}
    _, curves = train(tmp_path, Task(clock, 0.014), Data(clock, 0.001), **how)
    assert [step for step, _ in curves[RATE]] == [4, 9]
    assert [value for _, value in curves[RATE]] == pytest.approx([4 / 0.020] * 2, rel=0.05)


@pytest.mark.parametrize(
    ("workers", "most", "advice"),
    [
        (0, 8, "try --data.num_workers 2"),
        (2, 8, "try --data.num_workers 6"),
        (4, 8, "try --data.num_workers 8"),
        (2, 2, "every core loads, so store the images smaller"),
    ],
)
def test_as_many_workers_as_the_data_need_and_there_are_cores_for(
    monkeypatch: pytest.MonkeyPatch, workers: int, most: int, advice: str
) -> None:
    monkeypatch.setattr(cores, "workers", lambda processes: most)
    run = SimpleNamespace(datamodule=SimpleNamespace(num_workers=workers), num_devices=1)
    assert throughput._advice(run, wait=0.61, model=0.3, seconds=0.05) == advice  # type: ignore[arg-type]


def test_a_device_that_is_busy_waits_for_nothing() -> None:
    watcher = Throughput()
    watcher._since = watcher._asked = 0.0
    watcher._is_idle = lambda: False
    watcher._have()
    assert (watcher._waited, watcher._began) == (0.0, 0.0)
    watcher._asked, watcher._is_idle = 0.0, lambda: True
    watcher._have()
    assert watcher._waited > 0
