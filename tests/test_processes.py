"""The same numbers on any number of processes: scores, predictions and the curve of a training."""

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from project import helptext
from project.cli import main
from project.runs import find_run

pytestmark = pytest.mark.slow

# 11 classes of 182 training images, half of them held out, and of 91 test images: 1,001 each,
# which neither 2 nor 3 processes divide.
ODD = """
import torch
from project.data.images import ImageDataModule

class OddData(ImageDataModule):
    class_names = [f"class {i}" for i in range(11)]
    in_channels, native_size = 1, 8
    mean, std = (0.5,), (0.3,)

    def load(self, train):
        generator = torch.Generator().manual_seed(int(train))
        labels = torch.arange(2002 if train else 1001) % 11
        images = torch.randint(0, 160, (len(labels), 1, 8, 8), generator=generator)
        rows = images.view(len(labels), 64)
        rows[torch.arange(len(labels)), labels] += 80
        return images.to(torch.uint8), labels
"""

EVALUATE = """
import json, sys
import lightning as L
import torch
from odd import OddData
from project.callbacks import PredictionWriter
from project.models import ConvNet
from project.tasks import ClassificationTask

class Watch(L.Callback):
    # Which samples this process has seen, padding left out.
    def __init__(self):
        self.seen = {"val": [], "test": []}
    def on_validation_batch_end(self, trainer, module, outputs, batch, *_):
        self.seen["val"] += [i for i in batch[2].tolist() if i >= 0]
    def on_test_batch_end(self, trainer, module, outputs, batch, *_):
        self.seen["test"] += [i for i in batch[2].tolist() if i >= 0]

if __name__ == "__main__":
    processes = int(sys.argv[1])
    L.seed_everything(1)
    task, watch = ClassificationTask(ConvNet(1, 11, hidden_dim=4), 11), Watch()
    for part in task.modules():
        if isinstance(part, torch.nn.BatchNorm2d):  # as if it had been trained
            part.running_mean.uniform_(-0.1, 0.1)
            part.running_var.uniform_(0.1, 0.3)
    data = OddData(val_fraction=0.5, eval_batch_size=64)
    trainer = L.Trainer(accelerator="cpu", devices=processes, logger=False,
        strategy="ddp" if processes > 1 else "auto", enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[watch, PredictionWriter(f"predictions-{processes}.csv")])
    found = {}
    for split, evaluate in (("val", trainer.validate), ("test", trainer.test)):
        scores = evaluate(task, datamodule=data, verbose=False)[0]
        matrix = task.confusion_matrix.tolist()
        figures = [figure.tolist() for figure in task.per_class()]
        found[split] = {"scores": scores, "matrix": matrix, "per_class": figures}
    trainer.predict(task, datamodule=data, return_predictions=False)
    found["seen"] = watch.seen
    with open(f"rank-{trainer.global_rank}-of-{processes}.json", "w") as file:
        json.dump(found, file)
if torch.distributed.is_initialized():  # else its threads may outlive the interpreter
    torch.distributed.destroy_process_group()
"""

TRAIN = """
import json, sys
from functools import partial
import lightning as L
import torch
from project.data import DigitsDataModule
from project.models import MLP
from project.tasks import ClassificationTask

class Curve(L.Callback):
    def __init__(self):
        self.losses = []
    def on_train_batch_end(self, trainer, *_):
        self.losses.append(float(trainer.callback_metrics["train/loss"]))

if __name__ == "__main__":
    processes = int(sys.argv[1])
    L.seed_everything(1)
    curve = Curve()
    trainer = L.Trainer(accelerator="cpu", devices=processes, max_steps=25, logger=False,
        strategy="ddp" if processes > 1 else "auto", enable_checkpointing=False,
        enable_progress_bar=False, log_every_n_steps=1, limit_val_batches=0, callbacks=[curve])
    net = MLP(1, 8, 10, hidden_dims=[64], dropout=0.0)
    task = ClassificationTask(net, 10, optimizer=partial(torch.optim.AdamW, lr=0.01))
    # batch_size is that of a process: 64 images in all, however many there are.
    trainer.fit(task, datamodule=DigitsDataModule(batch_size=64 // processes, shift=1))
    if trainer.is_global_zero:
        with open(f"curve-{processes}.json", "w") as file:
            json.dump(curve.losses, file)
if torch.distributed.is_initialized():  # else its threads may outlive the interpreter
    torch.distributed.destroy_process_group()
"""


def execute(folder: Path, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, *args], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what every rank of 1, 2 and 3 processes has found."""
    folder = tmp_path_factory.mktemp("evaluated")
    (folder / "odd.py").write_text(ODD)
    (folder / "evaluate.py").write_text(EVALUATE)
    for processes in ("1", "2", "3"):
        execute(folder, "evaluate.py", processes)
    return folder


def found(folder: Path, processes: int) -> list[dict[str, Any]]:
    files = [folder / f"rank-{rank}-of-{processes}.json" for rank in range(processes)]
    return [json.loads(file.read_text()) for file in files]


def close(one: Any, other: Any) -> bool:
    """Whether nested figures are equal to 1e-6, and integers exactly."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == (other if isinstance(one, int) else pytest.approx(other, abs=1e-6, nan_ok=True))


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluation_is_exact(evaluated: Path, split: str, processes: int) -> None:
    [alone] = found(evaluated, 1)
    assert set(alone[split]["scores"]) == {f"{split}/{name}" for name in ("loss", "acc", "f1")}
    assert sum(map(sum, alone[split]["matrix"])) == 1001
    for rank in found(evaluated, processes):
        assert close(alone[split], rank[split])


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("split", ["val", "test"])
def test_every_sample_is_seen_once(evaluated: Path, split: str, processes: int) -> None:
    seen = [index for rank in found(evaluated, processes) for index in rank["seen"][split]]
    assert sorted(seen) == list(range(1001))


def rows(file: Path) -> list[list[str]]:
    with file.open(newline="") as opened:
        return list(csv.reader(opened))


def same_predictions(one: Sequence[list[str]], other: Sequence[list[str]]) -> bool:
    """Whether index, label and class are equal, and probabilities to 1e-5."""
    values = [[list(map(float, row[3:])) for row in table[1:]] for table in (one, other)]
    return [row[:3] for row in one] == [row[:3] for row in other] and all(
        a == pytest.approx(b, abs=1e-5) for a, b in zip(*values, strict=True)
    )


@pytest.mark.parametrize("processes", [2, 3])
def test_predictions_come_once_each_and_in_order(evaluated: Path, processes: int) -> None:
    alone, together = (rows(evaluated / f"predictions-{n}.csv") for n in (1, processes))
    assert [int(row[0]) for row in together[1:]] == list(range(1001))
    assert same_predictions(alone, together)


def test_the_command_gives_the_same_on_two_processes(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "odd.py").write_text(ODD)
    monkeypatch.syspath_prepend(workdir)
    settings = ["--data", "odd.OddData", "--model", "project.tasks.ClassificationTask"]
    settings += ["--model.net", "project.models.ConvNet", "--data.val_fraction", "0.5"]
    assert main(["fit", *settings, "--trainer.max_epochs", "1"]) == 0
    run = find_run("last")
    two = ["--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
    tables, said = [], []
    for extra in ([], two):
        execute(workdir, "-m", "project", "predict", "--run", str(run.path), *extra)
        tables.append(rows(run.path / "predictions.csv"))
        out = execute(workdir, "-m", "project", "test", "--run", str(run.path), *extra)
        said.append([line for line in out.splitlines() if "test/" in line])
    assert len(tables[1]) == 1002
    assert same_predictions(*tables)
    assert len(said[0]) == 3
    assert said[0] == said[1]


def test_a_training_follows_the_same_curve_on_two_processes(workdir: Path) -> None:
    (workdir / "train.py").write_text(TRAIN)
    curves = []
    for processes in (1, 2):
        execute(workdir, "train.py", str(processes))
        curves.append(json.loads((workdir / f"curve-{processes}.json").read_text()))
    alone, together = curves
    assert len(alone) == 25  # an epoch has 20
    assert alone[-1] < 0.8 * alone[0]
    assert together == pytest.approx(alone, abs=1e-4)


GROUP = """
import atexit
from types import SimpleNamespace
import torch
from project.endings import keep_lightning_out

open_group = torch.distributed.is_initialized
atexit.register(lambda: print("open" if open_group() else "closed"))  # runs after those that follow
torch.distributed.init_process_group("gloo", "file://{file}", rank=0, world_size=1)
loops = SimpleNamespace(epoch_loop=SimpleNamespace())
keep_lightning_out(SimpleNamespace(_signal_connector=SimpleNamespace(), fit_loop=loops))
print("open" if open_group() else "closed")
"""


def test_the_command_closes_its_process_group_at_the_end(workdir: Path) -> None:
    (workdir / "group.py").write_text(GROUP.format(file=workdir / "group"))
    assert execute(workdir, "group.py").split() == ["open", "closed"]


ASKS = """
import lightning as L
import torch

class Asks(L.Callback):
    # Counts what is asked of other processes inside an epoch, of which the device is waited for.
    def on_train_start(self, trainer, module):
        self.asked, usual = 0, torch.distributed.broadcast
        def asking(*args, **kwargs):
            self.asked += 1
            return usual(*args, **kwargs)
        torch.distributed.broadcast = asking
    def on_train_end(self, trainer, module):
        print(f"steps {trainer.global_step}, asked {self.asked}")
"""


def test_no_step_of_several_processes_waits_to_hear_of_a_signal(workdir: Path) -> None:
    (workdir / "asks.py").write_text(ASKS)
    line = "-m project fit --trainer.accelerator cpu --trainer.devices 2 --trainer.strategy ddp"
    line += " --trainer.max_steps 7 --trainer.callbacks+=asks.Asks --trainer.limit_test_batches 0"
    said = execute(workdir, *line.split())
    assert "steps 7, asked 0" in said


def test_help_says_that_batch_size_is_per_process() -> None:
    assert "images per step and process" in helptext.FIT
