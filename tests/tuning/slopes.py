"""Data and a task for which the best settings are known."""

import time
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Rows(Dataset[Tensor]):
    def __init__(self, count: int, seconds: float = 0.0) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.seconds)
        return torch.ones(4)


class Data(L.LightningDataModule):
    """As many vectors as are asked for; workers sleep beside one another."""

    def __init__(
        self, count: int = 200, batch_size: int = 4, num_workers: int = 0, seconds: float = 0.0
    ) -> None:
        super().__init__()
        self.count, self.batch_size, self.num_workers = count, batch_size, num_workers
        self.seconds = seconds

    def train_dataloader(self) -> DataLoader[Tensor]:
        rows = Rows(self.count, self.seconds)
        return DataLoader(rows, self.batch_size, num_workers=self.num_workers)

    def val_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(Rows(4), 4)


class Deaf(Data):
    """The same, and none of it is heeded."""

    def train_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(Rows(40), 4)


class Flow(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield torch.ones(4)


class Endless(Data):
    """As many as anybody wants."""

    def train_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(Flow(), self.batch_size)


class Count(IterableDataset[Tensor]):
    def __init__(self, share: bool) -> None:
        self.share = share

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info() if self.share else None
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in range(first, 100, step):
            yield torch.full((4,), float(number))


class Numbers(Data):
    """Numbers from 0 on, of which each worker gives its share or all."""

    def __init__(self, share: bool) -> None:
        super().__init__()
        self.share = share

    def train_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(Count(self.share), self.batch_size, num_workers=self.num_workers)


class Fixed(Data):
    """The same with nothing to set."""

    def __init__(self) -> None:
        super().__init__()
        del self.num_workers, self.batch_size

    def train_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(Rows(40), 4)


class Parabola(L.LightningModule):
    """Loss ``curvature * w ** 2 / 2``: gradient descent diverges from ``lr = 2 / curvature`` on.

    Args:
        curvature: Of the loss.
        lr: Learning rate.
        room: Samples in a batch that fit; more run out of memory.
        left_out: Every so manieth batch is left out.
        total_steps: After which its schedule refuses to go on; None for no schedule.
    """

    def __init__(
        self,
        curvature: float = 1.0,
        lr: float = 0.01,
        room: int = 10**9,
        left_out: int = 0,
        total_steps: int | None = None,
    ) -> None:
        super().__init__()
        self.left_out, self.total_steps = left_out, total_steps
        self.weight = nn.Parameter(torch.tensor([3.0]))
        self.curvature, self.lr, self.room = curvature, lr, room

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor | None:
        if self.left_out and batch_idx % self.left_out == 0:
            return None
        if len(batch) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        loss: Tensor = self.curvature * (self.weight * batch.mean()).square().sum() / 2
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val/loss", 0.0)
        self.log("val/acc", 0.0)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        if self.total_steps is None:
            return optimizer
        schedule = OneCycleLR(optimizer, self.lr, self.total_steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]
