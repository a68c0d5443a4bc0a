"""Counts from which every classification metric follows, exactly and without a sync per step."""

from typing import NamedTuple

import torch
from lightning.pytorch.strategies import Strategy
from torch import Tensor

NOTED = 64  # batches that are counted at once


class PerClass(NamedTuple):
    """Figures of every class, each ``(num_classes,)``; NaN where a figure is not defined."""

    precision: Tensor
    recall: Tensor
    f1: Tensor
    support: Tensor


def per_class(confusion_matrix: Tensor) -> PerClass:
    """Precision, recall, F1 (fractions) and support (samples) from ``(K, K)``, rows true.

    A class without samples has no figures, also if it is predicted: it can be neither found nor
    missed. One that is never predicted has no precision, and an F1 of 0.
    """
    counts = confusion_matrix.double()
    hits, support, predicted = counts.diagonal(), counts.sum(dim=1), counts.sum(dim=0)
    absent = support == 0
    return PerClass(
        precision=(hits / predicted).masked_fill(absent, torch.nan),
        recall=hits / support,
        f1=(2 * hits / (support + predicted)).masked_fill(absent, torch.nan),
        support=confusion_matrix.sum(dim=1),
    )


def worst_first(figures: PerClass) -> list[int]:
    """Labels of the classes that have samples, those found least often first."""
    order = figures.recall.argsort(stable=True).tolist()
    return [label for label in order if figures.support[label] > 0]


class Tally:
    """Summed loss and confusion matrix of the samples seen since the last reset.

    A batch is only noted, and some dozens are counted at once: counting each would take a tenth of
    a small network's step. Plain tensors: rank 0 of DDP would overwrite the buffers of a module.

    Args:
        num_classes: Number of classes.
        mean: Whether the loss of a batch is a mean over its valid samples, or their sum.
    """

    def __init__(self, num_classes: int, mean: bool = False) -> None:
        self.num_classes, self.mean = num_classes, mean
        self.reset()

    def reset(self) -> None:
        """Forget everything; the tensors follow the device of the next batch."""
        self.batches = 0
        self._noted: list[tuple[Tensor, Tensor]] = []
        self._loss = torch.zeros((), dtype=torch.float64)
        self._confusion = torch.zeros(self.num_classes**2, dtype=torch.int64)

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Note one batch.

        Args:
            loss: Mean or sum over the valid samples, shape ``()``.
            logits: Shape ``(B, num_classes)``.
            labels: Shape ``(B,)``; negative ones (-100, padding) do not count.
        """
        self.batches += 1
        # Row and column of the confusion matrix in one number, negative where the label is.
        cells = torch.add(logits.argmax(dim=1), labels, alpha=self.num_classes)
        self._noted.append((loss, cells))
        if len(self._noted) == NOTED:
            self._count()

    def _count(self) -> None:
        if not self._noted:
            return
        losses, cells = (list(each) for each in zip(*self._noted, strict=True))
        self._noted = []
        if self._confusion.device != cells[0].device:
            self._to(cells[0].device)
        sums = torch.stack(losses)
        if self.mean:
            sums = sums * torch.stack([(batch >= 0).sum() for batch in cells])
        self._loss = self._loss + sums.to(self._loss.dtype).sum()
        every = torch.cat(cells)
        # Not bincount: on CUDA it reads the maximum back, and waits for it.
        self._confusion.index_add_(0, every.clamp(min=0), (every >= 0).long())

    def _to(self, device: torch.device) -> None:
        # MPS has no float64.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._loss = self._loss.to(dtype).to(device)
        self._confusion = self._confusion.to(device)

    def reduce(self, strategy: Strategy) -> None:
        """Sum over all processes with one collective; counts are exact up to 2**53."""
        self._count()
        if strategy.root_device.type == "mps":  # one process; float64 on the CPU from here
            self._to(torch.device("cpu"))
            return
        packed = torch.cat([self._loss.view(1), self._confusion.to(self._loss.dtype)])
        packed = strategy.reduce(packed.to(strategy.root_device), reduce_op="sum")
        self._loss, self._confusion = packed[0], packed[1:].long()

    @property
    def loss(self) -> Tensor:
        """Loss summed over the valid samples, shape ``()``."""
        self._count()
        return self._loss

    @property
    def confusion_matrix(self) -> Tensor:
        """Int64 ``(num_classes, num_classes)``, rows true, columns predicted."""
        self._count()
        return self._confusion.view(self.num_classes, self.num_classes)

    def scalars(self) -> dict[str, Tensor]:
        """Mean loss over samples (nats), accuracy and macro F1 (fractions), each of shape ``()``.

        F1 is the mean over the classes that have samples.
        """
        matrix = self.confusion_matrix
        count = matrix.sum()
        f1 = per_class(matrix).f1
        return {
            "loss": self.loss / count,
            "acc": matrix.diagonal().sum().double() / count,
            "f1": f1.nanmean(),
        }

    def state_dict(self, strategy: Strategy) -> dict[str, Tensor]:
        """The counts of all processes, loadable with ``weights_only=True``; all have to call it."""
        counts = self.confusion_matrix.view(-1).cpu().double()
        own = torch.cat([self.loss.view(1).cpu().double(), counts])
        own = torch.cat([own.new_tensor([self.batches]), own])
        if strategy.root_device.type == "mps":  # one process, without float64
            return {"ranks": own[None]}
        ranks = strategy.all_gather(own.to(strategy.root_device))
        return {"ranks": ranks.view(-1, len(own)).cpu()}

    def load_state_dict(self, state: dict[str, Tensor], rank: int, world_size: int) -> None:
        """Go on from ``state``; counts of another number of classes are dropped.

        Args:
            state: From ``state_dict``.
            rank: This process. If there were another number of them, the first takes all counts.
            world_size: Number of processes.
        """
        ranks = state["ranks"]
        if ranks.shape[1] != 2 + self.num_classes**2:
            return
        if len(ranks) != world_size:
            ranks = torch.cat([ranks.sum(dim=0)[None], ranks.new_zeros(world_size, ranks.shape[1])])
        own = ranks[rank]
        self._noted = []
        self.batches, self._loss, self._confusion = int(own[0]), own[1].clone(), own[2:].long()
