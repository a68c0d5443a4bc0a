"""What a step of training and an image of validation cost, against other ways to do the same.

MLP 784-512-256-10 on MNIST, batch 64, AdamW with the recipe's settings, in CPU milliseconds of one
thread: on a machine that others use, too, the clock on the wall says nothing. Every contender runs
in a process of its own, one after the other, and the rounds are interleaved; the table has the
median of the rounds. In a process, one epoch warms up and the next one is measured, with all that
belongs to it: logging, progress bar, checkpoints.

- ours: `lightning fit --config configs/mnist.yaml` with all that a default run has.
- plain loop: PyTorch's tutorial, a DataLoader over torchvision's MNIST (ToTensor, Normalize).
- Lightning: a LightningModule with torchmetrics and self.log over the same DataLoader, its
  validation in batches of the same 64; everything else as Lightning has it by default.
- floor: forward, backward and the fused step on one batch that is there already.
- same batches: a plain loop with the fused step over our own loader; ours minus this is overhead.
"""

import argparse
import io
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torchmetrics
import torchvision
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision.transforms import Compose, Normalize, ToTensor

from project.cli import main as command
from project.data import MNISTDataModule
from project.models import MLP
from project.optim import parameter_groups

ROOT = Path(__file__).parents[2]
BATCH, LR, DECAY = 64, 1e-3, 0.05
Figures = dict[str, float]


class Screen(io.StringIO):
    """A terminal that nobody looks at, so that progress bars are drawn."""

    def isatty(self) -> bool:
        return True


@contextmanager
def on_a_screen() -> Iterator[None]:
    kept, sys.stdout = sys.stdout, Screen()
    try:
        yield
    finally:
        sys.stdout = kept


class Stopwatch(L.Callback):
    """CPU seconds of the second epoch and of its validation; checkpoints count as training."""

    def __init__(self) -> None:
        self.begun = self.spent = self.validation = 0.0

    def on_train_epoch_start(self, trainer: L.Trainer, *_: object) -> None:
        if trainer.current_epoch == 1:
            self.begun = time.process_time()

    def on_validation_start(self, trainer: L.Trainer, *_: object) -> None:
        self.validation = time.process_time()

    def on_validation_end(self, trainer: L.Trainer, *_: object) -> None:
        self.validation = time.process_time() - self.validation

    def on_train_end(self, trainer: L.Trainer, *_: object) -> None:
        self.spent = time.process_time() - self.begun - self.validation


def figures(watch: Stopwatch, steps: int, images: int) -> Figures:
    return {"train": 1e3 * watch.spent / steps, "val": 1e3 * watch.validation / images}


def net() -> nn.Module:
    return MLP(in_channels=1, image_size=28, num_classes=10)


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameter_groups(model), LR, weight_decay=DECAY, fused=True)


def torchvision_mnist(data_dir: Path, train: bool) -> DataLoader[Any]:
    transform = Compose([ToTensor(), Normalize((0.1307,), (0.3081,))])
    data = torchvision.datasets.MNIST(data_dir, train=train, transform=transform)
    return DataLoader(data, BATCH, shuffle=train)


def our_data(data_dir: Path) -> MNISTDataModule:
    data = MNISTDataModule(str(data_dir), batch_size=BATCH)
    data.setup("fit")
    return data


def plain(
    batches: Callable[[], Iterable[tuple[torch.Tensor, torch.Tensor]]],
    steps: int,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
) -> Figures:
    """One epoch to warm up, one to measure."""
    # Lightning's import sets it, and every step looks for NVIDIA's library; not so in a plain loop.
    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    model = net().train()
    optimizer = make_optimizer(model)
    for _ in range(2):
        begun = time.process_time()
        for images, labels in itertools.islice(batches(), steps):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
    return {"train": 1e3 * (time.process_time() - begun) / steps}


def plain_loop(data_dir: Path, steps: int) -> Figures:
    loader = torchvision_mnist(data_dir, train=True)
    return plain(
        lambda: loader, steps, lambda m: torch.optim.AdamW(m.parameters(), LR, weight_decay=DECAY)
    )


def floor(data_dir: Path, steps: int) -> Figures:
    batch = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    return plain(lambda: itertools.repeat(batch), steps, fused_adamw)


def same_batches(data_dir: Path, steps: int) -> Figures:
    data = our_data(data_dir)
    loader = data.train_dataloader()
    return plain(
        lambda: ((data.preprocess(images), labels) for images, labels, _ in loader),
        steps,
        fused_adamw,
    )


class UsualModule(L.LightningModule):
    """As in many a tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.train_acc = torchmetrics.Accuracy("multiclass", num_classes=10)
        self.val_acc = torchmetrics.Accuracy("multiclass", num_classes=10)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        images, labels = batch
        logits = self.net(images)
        loss = F.cross_entropy(logits, labels)
        self.train_acc(logits, labels)
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/acc", self.train_acc, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, labels = batch
        logits = self.net(images)
        self.val_acc(logits, labels)
        self.log("val/loss", F.cross_entropy(logits, labels), prog_bar=True)
        self.log("val/acc", self.val_acc, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), LR, weight_decay=DECAY)


def lightning(data_dir: Path, steps: int) -> Figures:
    watch, held_out = Stopwatch(), torchvision_mnist(data_dir, train=False)
    with on_a_screen(), tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            default_root_dir=folder, max_epochs=2, limit_train_batches=steps, callbacks=[watch]
        )
        trainer.fit(UsualModule(), torchvision_mnist(data_dir, train=True), held_out)
    return figures(watch, steps, len(held_out.dataset))


def ours(data_dir: Path, steps: int) -> Figures:
    """Through the command; the stopwatch gets in as any callback of one's own does."""
    sys.modules["stopwatch"] = sys.modules[__name__]
    watches: list[Stopwatch] = []
    noted = L.Callback.setup
    Stopwatch.setup = lambda self, *a, **k: (watches.append(self), noted(self, *a, **k))[1]
    with on_a_screen(), tempfile.TemporaryDirectory() as folder:
        settings = {
            "config": ROOT / "configs/mnist.yaml",
            "data.data_dir": data_dir,
            "data.batch_size": BATCH,
            "trainer.max_epochs": 2,
            "trainer.limit_train_batches": steps,
            "trainer.limit_test_batches": 0,
            "trainer.default_root_dir": folder,
            "trainer.callbacks+": "stopwatch.Stopwatch",
        }
        code = command(["fit", *(f"--{key}={value}" for key, value in settings.items())])
    assert code == 0
    return figures(watches[0], steps, 6000)  # a tenth of the training images


CONTENDERS = {
    "ours": ours,
    "plain loop": plain_loop,
    "Lightning": lightning,
    "floor": floor,
    "same batches": same_batches,
}


def random_mnist(folder: Path) -> None:
    """Files with the sizes of MNIST's, for a machine that has not got them."""
    raw = folder / "MNIST/raw"
    raw.mkdir(parents=True)
    for name, count in (("train", 60_000), ("t10k", 10_000)):
        for what, shape, most in (
            ("images-idx3", (count, 28, 28), 256),
            ("labels-idx1", (count,), 10),
        ):
            head = b"\0\0\x08" + bytes([len(shape)]) + b"".join(n.to_bytes(4) for n in shape)
            data = torch.randint(most, shape, dtype=torch.uint8).numpy().tobytes()
            (raw / f"{name}-{what}-ubyte").write_bytes(head + data)


def fresh(name: str, data_dir: Path, steps: int) -> Figures:
    """Measure in a process of its own: what ran before has changed nothing."""
    line = [sys.executable, __file__, "--data_dir", data_dir, "--steps", steps, "--measure", name]
    out = subprocess.check_output(
        [str(word) for word in line],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
        text=True,
    )
    found: Figures = json.loads(out.splitlines()[-1])
    return found


def show(rounds: list[dict[str, Figures]], title: str) -> None:
    def ratio(name: str, other: str, what: str = "train") -> str:
        each = sorted(turn[name][what] / turn[other][what] for turn in rounds)
        return f"{statistics.median(each):.2f}  ({each[0]:.2f} to {each[-1]:.2f})"

    overhead = [turn["ours"]["train"] - turn["same batches"]["train"] for turn in rounds]
    table = Table("contender", "CPU ms a step", "CPU ms of validation a 1000 images", title=title)
    for name in CONTENDERS:
        cells = [
            f"{scale * statistics.median(turn[name][what] for turn in rounds):.2f}"
            for what, scale in (("train", 1), ("val", 1000))
            if what in rounds[0][name]
        ]
        table.add_row(name, *cells)
    bars = Table("what", "median (all rounds)", "bar")
    bars.add_row("step: plain loop / ours", ratio("plain loop", "ours"), ">= 3.0")
    bars.add_row("step: Lightning / ours", ratio("Lightning", "ours"), ">= 3.0")
    bars.add_row("step: floor / ours", ratio("floor", "ours"), ">= 0.80")
    bars.add_row("validation: Lightning / ours", ratio("Lightning", "ours", "val"), ">= 15")
    bars.add_row("overhead, CPU ms a step", f"{statistics.median(overhead):.2f}", "<= 1.2")
    Console(width=100).print(table, bars)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", type=Path, default=Path("data"), help="has MNIST/raw")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400, help="an epoch's, for every contender")
    parser.add_argument("--measure", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.measure:
        warnings.filterwarnings("ignore")
        print(json.dumps(CONTENDERS[args.measure](args.data_dir, args.steps)))
        return
    with tempfile.TemporaryDirectory() as folder:
        data_dir, data = args.data_dir.resolve(), "MNIST"
        if not (data_dir / "MNIST/raw").is_dir():
            data_dir, data = Path(folder), f"random images of MNIST's size: no {data_dir}/MNIST/raw"
            random_mnist(data_dir)
        rounds = [
            {name: fresh(name, data_dir, args.steps) for name in CONTENDERS}
            for _ in range(args.rounds)
        ]
    show(rounds, f"{data}; torch {torch.__version__}, lightning {L.__version__}, one thread")


if __name__ == "__main__":
    main()
