import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from project.tasks import ClassificationTask

sys.path.insert(0, str(Path(__file__).parent))  # for `small_nets`, also as the path of a class

from small_nets import MLP


class Resumable(DataLoader[tuple[Tensor, ...]]):
    """Goes on at the batch after the one at which it was saved."""

    start = position = 0

    def __iter__(self) -> Any:
        batches = list(super().__iter__())
        self.position = self.start
        for batch in batches[self.start :]:
            self.position += 1
            # Only now: Lightning begins more than one iterator for an epoch.
            self.start = 0
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["position"]


class RandomData(L.LightningDataModule):
    """Random images with learnable labels."""

    def __init__(
        self,
        samples: int = 64,
        batch_size: int = 8,
        num_classes: int = 3,
        in_channels: int = 1,
        image_size: int = 4,
    ) -> None:
        super().__init__()
        self.batch_size, self.num_classes = batch_size, num_classes
        self.in_channels, self.image_size = in_channels, image_size
        shape = (samples, in_channels, image_size, image_size)
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(shape, generator=generator)
        self.labels = self.images.flatten(1)[:, :num_classes].argmax(dim=1)

    def train_dataloader(self) -> Resumable:
        return Resumable(TensorDataset(self.images, self.labels), batch_size=self.batch_size)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        # Lightning recommends worker processes; these data lie in memory.
        warnings.filterwarnings("ignore", message=".*does not have many workers")
        # Runs of a few steps log once.
        warnings.filterwarnings("ignore", message=".*number of training batches")
        yield


@pytest.fixture
def data() -> type[RandomData]:
    return RandomData


@pytest.fixture
def trainer(tmp_path: Any) -> Callable[..., L.Trainer]:
    def make(**options: Any) -> L.Trainer:
        settings: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": tmp_path,
            "num_sanity_val_steps": 0,
        }
        return L.Trainer(**settings | options)

    return make


@pytest.fixture
def task() -> Callable[..., ClassificationTask]:
    def make(net: nn.Module | None = None, num_classes: int = 3, **options: Any) -> Any:
        torch.manual_seed(0)
        net = net or MLP(1, 4, num_classes, hidden_dims=[8], dropout=0.0)
        return ClassificationTask(net, num_classes, **options)

    return make


class LrTrace(L.Callback):
    """Learning rate of every optimizer step."""

    def __init__(self) -> None:
        self.lrs: list[float] = []

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self.lrs.append(optimizer.param_groups[0]["lr"])


@pytest.fixture
def lr_trace() -> type[LrTrace]:
    return LrTrace
