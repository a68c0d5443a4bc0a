"""What the cases are made of: a case, and tiny pictures, nets and tasks to spoil."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Specimen:
    """What `check_task` takes."""

    task: L.LightningModule
    datamodule: Any = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One planted mistake.

    Args:
        name: Name of the builder.
        make: Gives the specimen, with the mistake for True and the healthy twin for False.
        expect: Names of checks, at least one of which must FAIL or WARN.
        groups: Groups of checks that run on the bad one.
        only: Checks that run on the bad one; by default all of the groups. The twin runs all.
        says: What the evidence or the advice must contain, to name the cause.
        fast: Whether it belongs to the fast suite.
    """

    name: str
    make: Callable[[bool], Specimen]
    expect: tuple[str, ...]
    groups: tuple[str, ...] = ("data", "model", "training")
    only: tuple[str, ...] | None = None
    says: str = ""
    fast: bool = False

    def build(self, bad: bool) -> Specimen:
        """Make it, always with the same weights."""
        torch.manual_seed(0)
        return self.make(bad)


CASES: dict[str, Case] = {}


def case(*expect: str, **options: Any) -> Callable[[Callable[[bool], Specimen]], Any]:
    """Register a builder as a case; options are those of `Case`."""

    def register(build: Callable[[bool], Specimen]) -> Callable[[bool], Specimen]:
        assert build.__name__ not in CASES, f"two cases are called {build.__name__}"
        assert inspect.getdoc(build), f"{build.__name__} needs a docstring: the mistake"
        CASES[build.__name__] = Case(build.__name__, build, expect, **options)
        return build

    return register


def all_cases() -> list[Case]:
    """Return the cases of every file of the zoo."""
    package = importlib.import_module("zoo")
    for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"zoo.{module}")
    return list(CASES.values())


def pictures(
    count: int = 240, classes: int = 4, size: int = 8, channels: int = 1, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Pictures ``(count, channels, size, size)`` that a net can learn, mean 0 and deviation 1.

    A class is a bright bar, at a place that depends on the class, over noise; no two are alike.
    The constants of the normalisation are those of all such pictures, not of these.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    images = torch.randn(count, channels, size, size, generator=generator) * 0.5
    height = max(1, size // classes)
    for index, label in enumerate(labels.tolist()):
        row = label * size // classes
        images[index, :, row : row + height] += 1.5
    share = height / size
    return (images - 1.5 * share) / (0.25 + 2.25 * share * (1 - share)) ** 0.5, labels


class Pictures(L.LightningDataModule):
    """Pictures, split into train, val and test; plain DataLoaders.

    A case changes arguments, attributes after construction, or methods in a subclass.

    Args:
        classes: Number of classes.
        batch_size: Pictures per batch.
        count: Pictures of the training split; half as many for val and for test.
    """

    def __init__(self, classes: int = 4, batch_size: int = 32, count: int = 256, **make: Any):
        super().__init__()
        self.num_classes, self.batch_size = classes, batch_size
        self.train = pictures(count, classes, seed=1, **make)
        self.val = pictures(count // 2, classes, seed=2, **make)
        self.test = pictures(count // 2, classes, seed=3, **make)
        self.train_options: dict[str, Any] = {"shuffle": True, "drop_last": True}
        self.val_options: dict[str, Any] = {}

    def train_dataloader(self) -> Any:
        data = TensorDataset(*self.train)
        return DataLoader(data, batch_size=self.batch_size, **self.train_options)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.val), batch_size=self.batch_size, **self.val_options)

    def test_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.test), batch_size=self.batch_size)


def small_net(classes: int = 4, size: int = 8, channels: int = 1, hidden: int = 32) -> nn.Module:
    """A net of two layers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * size * size, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


class Task(L.LightningModule):
    """Plain classification, as in a tutorial; cases override one method.

    Args:
        net: Pictures to logits.
        lr: Of AdamW.
    """

    def __init__(self, net: nn.Module | None = None, lr: float = 3e-3):
        super().__init__()
        self.net, self.lr = net or small_net(), lr

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, labels = batch
        loss = self.loss(self(images), labels)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, labels = batch
        logits = self(images)
        self.log("val/loss", self.loss(logits, labels))
        self.log("val/acc", (logits.argmax(-1) == labels).float().mean())

    def test_step(self, batch: Any, batch_idx: int) -> None:
        images, labels = batch
        self.log("test/loss", self.loss(self(images), labels))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)
