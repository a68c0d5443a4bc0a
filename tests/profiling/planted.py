"""A task and data that take as long as they are told, by a clock that only they move."""

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Clock:
    """Stands for the module `time`."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CLOCK = Clock()


class Rows(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        CLOCK.sleep(self.seconds)
        return torch.full((1, 4, 4), index / 80), torch.tensor(index % 2)


class SlowStart(DataLoader[tuple[Tensor, Tensor]]):
    seconds = 0.0

    def __iter__(self) -> Any:
        CLOCK.sleep(self.seconds)
        return super().__iter__()


class Data(L.LightningDataModule):
    """Two classes of tiny images.

    Args:
        loading: Seconds for each image.
        moving: Seconds for each batch on its way to the device.
        starting: Seconds of the loader before an epoch.
        batch_size: Images in a batch.
    """

    num_classes, in_channels, image_size = 2, 1, 4

    def __init__(
        self,
        loading: float = 0.0,
        moving: float = 0.0,
        starting: float = 0.0,
        batch_size: int = 4,
    ) -> None:
        super().__init__()
        self.loading, self.moving, self.batch_size = loading, moving, batch_size
        self.starting = starting

    def train_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        loader = SlowStart(Rows(self.loading), self.batch_size, shuffle=True)
        loader.seconds = self.starting
        return loader

    def val_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        return DataLoader(Rows(self.loading), self.batch_size)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        CLOCK.sleep(self.moving)
        return batch


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, forth: float, back: float) -> Tensor:
        CLOCK.sleep(forth)
        ctx.back = back
        return values.clone()

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, None, None]:
        CLOCK.sleep(ctx.back)
        return grads, None, None


class Net(nn.Module):
    """One layer.

    Args:
        forth: Seconds of a forward pass.
        back: Seconds of a backward pass.
    """

    def __init__(self, forth: float = 0.0, back: float = 0.0) -> None:
        super().__init__()
        self.layer, self.forth, self.back = nn.Linear(16, 2), forth, back

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = Sleep.apply(self.layer(images.flatten(1)), self.forth, self.back)
        return logits


class SlowSGD(torch.optim.SGD):
    """SGD whose step takes a tenth of a second."""

    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        CLOCK.sleep(0.1)
        return found


class SlowCallback(L.Callback):
    """Takes a fifth of a second for every batch, and would judge the end of a run."""

    def on_train_batch_end(self, *_: Any) -> None:
        assert self.on_before_backward is None  # as for `fit`: it has no such hook
        CLOCK.sleep(0.2)

    def on_train_end(self, *_: Any) -> None:
        raise AssertionError("this is no run")


class Impatient(L.Callback):
    """Stands for somebody who presses Ctrl-C."""

    def on_train_batch_end(self, *_: Any) -> None:
        raise KeyboardInterrupt
