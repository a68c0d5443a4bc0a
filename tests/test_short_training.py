"""Trainings of some steps leave the process as it is."""

import signal
from collections.abc import Iterator
from pathlib import Path

import lightning as L
import pytest
from lightning.pytorch.callbacks import Callback

from project.data import DigitsDataModule
from project.models import MLP
from project.short_training import quiet_trainer
from project.tasks import ClassificationTask


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """What a handler of SIGTERM, set before, has heard."""
    numbers: list[int] = []
    old = signal.signal(signal.SIGTERM, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, old)


def test_a_signal_is_the_callers_and_no_line_of_lightnings_log(
    tmp_path: Path, heard: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    class Told(Callback):
        def on_train_batch_start(self, *_: object) -> None:
            signal.raise_signal(signal.SIGTERM)

    task = ClassificationTask(MLP(1, 8, 10), num_classes=10)
    with caplog.at_level("INFO"):
        trainer: L.Trainer = quiet_trainer({}, tmp_path, [Told()], max_steps=2, log_every_n_steps=1)
        trainer.fit(task, datamodule=DigitsDataModule())
    assert heard == [signal.SIGTERM] * 2
    assert "SIGTERM" not in caplog.text
