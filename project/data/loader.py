"""Samplers and the training loader: which samples come when, and where a run was when it stopped.

The order is a pure function of (seed, epoch) and is dealt out to the processes in turn: batch ``k``
of ``W`` processes with ``B`` samples each holds the same samples as batch ``k`` of one process with
``B * W``. All samplers are DistributedSamplers, so that Lightning leaves them alone; any other
DataLoader still gets Lightning's sampler under several processes.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.utils.data import DataLoader, Dataset, DistributedSampler, SequentialSampler

from project.data.hashing import mix

T = TypeVar("T")


class _ShardedSampler(DistributedSampler[int]):
    """What the samplers share: who this process is, asked when the order is needed.

    ``DistributedSampler.__init__`` is not called: it wants to know the rank at construction, when
    torch.distributed may not run yet.
    """

    epoch = 0

    def __init__(self, length: int, rank: int | None, num_replicas: int | None) -> None:
        self.length = length
        self._place = rank, num_replicas

    def place(self) -> tuple[int, int]:
        """Return the rank and the number of processes, as given or from torch.distributed."""
        rank, world = self._place
        ready = distributed.is_available() and distributed.is_initialized()
        if rank is None:
            rank = distributed.get_rank() if ready else 0
        if world is None:
            world = distributed.get_world_size() if ready else 1
        return rank, world


class EpochSampler(_ShardedSampler):
    """Every sample once an epoch, in an order that depends on (seed, epoch) only.

    Args:
        length: Number of samples.
        batch_size: Samples per batch and process.
        seed: Seed of the order.
        drop_last: Leave out the samples that do not fill the last batch of every process, others in
            every epoch, if at least one full batch remains. Otherwise all are used, and the first
            ones come again where the processes would not get equally many.
        rank: This process; by default torch.distributed's answer when iteration starts.
        num_replicas: Number of processes, likewise.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        seed: int,
        drop_last: bool = True,
        rank: int | None = None,
        num_replicas: int | None = None,
    ) -> None:
        super().__init__(length, rank, num_replicas)
        self.batch_size, self.seed, self.drop_last = batch_size, seed, drop_last
        # Samples of this process to leave out, because they were trained on before a resume.
        self.start = 0
        # Whether to yield (epoch, index), for a data set whose workers have to know the epoch.
        self.with_epoch = False

    def __len__(self) -> int:
        _, world = self.place()
        full = self.length // (self.batch_size * world) * self.batch_size
        return full if self.drop_last and full else -(-self.length // world)

    def __iter__(self) -> Iterator[Any]:
        rank, world = self.place()
        mine = self.order(self.epoch)[torch.arange(rank, len(self) * world, world) % self.length]
        rows = mine[self.start :].tolist()
        return iter([(self.epoch, row) for row in rows] if self.with_epoch else rows)

    def order(self, epoch: int) -> Tensor:
        """Return the order of all samples in an epoch, ``(length,)``."""
        generator = torch.Generator().manual_seed(mix(self.seed, epoch))
        return torch.randperm(self.length, generator=generator)


class FixedSampler(EpochSampler, SequentialSampler):
    """The order of epoch 0 in every epoch, for ``Trainer(overfit_batches=...)``.

    Lightning takes a SequentialSampler for an order that stays, and does not replace it.
    """

    def __iter__(self) -> Iterator[Any]:
        samples = super().__iter__()
        return ((0, row) for _, row in samples) if self.with_epoch else samples

    def order(self, epoch: int) -> Tensor:
        """Return the order of epoch 0."""
        return super().order(0)


class EvalSampler(_ShardedSampler, SequentialSampler):
    """Samples in their own order, none twice, equally many for every process.

    Where processes would get unequal numbers, -1 stands for a sample that is not there; the
    dataset answers it with label -100, so that summed counts do not depend on the number of
    processes.

    Args:
        length: Number of samples.
        rank: This process; by default torch.distributed's answer when iteration starts.
        num_replicas: Number of processes, likewise.
    """

    def __init__(
        self, length: int, rank: int | None = None, num_replicas: int | None = None
    ) -> None:
        super().__init__(length, rank, num_replicas)

    def __len__(self) -> int:
        return -(-self.length // self.place()[1])

    def __iter__(self) -> Iterator[int]:
        rank, world = self.place()
        mine = range(rank, len(self) * world, world)
        return iter([i if i < self.length else -1 for i in mine])


class EpochLoader(DataLoader[T]):
    """DataLoader that goes on in the middle of an epoch; Lightning stores and restores its state.

    The state is the epoch and the number of its batches that are done. Nothing is fetched before
    the first batch is asked for: only then has Lightning told the sampler the epoch. If that is not
    the stored one, the stored one was over (its last batch, or ``limit_train_batches``), and the
    new epoch starts at its beginning. A new batch size starts at the same number of batches, as
    Lightning counts.

    Args:
        dataset: Indexed by the sampler.
        sampler: Order of the samples.
        progress: Number of batches of the current epoch that training is through with. By default
            every batch handed out counts, which is one too many if a step is interrupted.
        kwargs: Further arguments of DataLoader.
    """

    sampler: EpochSampler

    def __init__(
        self,
        dataset: Dataset[T],
        sampler: EpochSampler,
        progress: Callable[[], int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset, sampler=sampler, **kwargs)
        self.progress = progress
        self._epoch = 0
        self._handed_out = 0
        self._resume: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]
        self._epoch, skip = self.sampler.epoch, 0
        if self._resume is not None:
            epoch, batches = self._resume
            skip = batches if epoch == self._epoch else 0
            self._resume = None
        self.sampler.start = skip * self.sampler.batch_size
        self._handed_out = skip
        at_once = 0 if self.num_workers or self.pin_memory else self._rows_at_once()
        for batch in self._gathered(at_once) if at_once else super().__iter__():
            self._handed_out += 1
            yield batch

    def _rows_at_once(self) -> int:
        """Samples of whole batches that the data set had best be asked for; 0 if one is enough."""
        assert self.batch_size is not None
        rows: int = getattr(self.dataset, "rows_at_once", 0)
        return rows and max(1, rows // self.batch_size) * self.batch_size

    def _gathered(self, at_once: int) -> Iterator[Any]:
        """Gather some batches at once, where asking for a batch takes longer than copying it."""
        dataset: Any = self.dataset
        rows = list(self.sampler)
        for begin in range(0, len(rows), at_once):
            parts = dataset.__getitems__(rows[begin : begin + at_once])
            batches: Any = zip(*(part.split(self.batch_size) for part in parts), strict=True)
            yield from map(self.collate_fn, batches)

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the number of its batches that are done."""
        done = self._handed_out if self.progress is None else self.progress()
        return {"epoch": self._epoch, "batches": done}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from a state in the next iteration."""
        self._epoch, self._handed_out = state_dict["epoch"], state_dict["batches"]
        self._resume = self._epoch, self._handed_out
        self.sampler.set_epoch(self._epoch)


class BalancedSampler(EpochSampler):
    """As many samples an epoch as there are, every class equally likely; drawn with replacement.

    A rare class comes again and again, and some samples of a frequent one not at all in an epoch.
    What is drawn depends on (seed, epoch) only.

    Args:
        labels: ``(N,)``, integers. Negative ones are never drawn.
        batch_size: As for ``EpochSampler``.
        seed: Seed of the draws.
        drop_last: As for ``EpochSampler``.
        rank: As for ``EpochSampler``.
        num_replicas: As for ``EpochSampler``.

    Raises:
        ValueError: If no sample has a label.
    """

    def __init__(
        self,
        labels: Tensor,
        batch_size: int,
        seed: int,
        drop_last: bool = True,
        rank: int | None = None,
        num_replicas: int | None = None,
    ) -> None:
        super().__init__(len(labels), batch_size, seed, drop_last, rank, num_replicas)
        by_label = torch.argsort(labels, stable=True)
        self._by_label = by_label[int((labels < 0).sum()) :]
        if not len(self._by_label):
            raise ValueError("a balanced sampler needs samples with labels, and there are none")
        # Of the classes that have samples: how many, and where they begin in that order.
        _, self._counts = torch.unique_consecutive(labels[self._by_label], return_counts=True)
        self._begins = self._counts.cumsum(0) - self._counts

    def order(self, epoch: int) -> Tensor:
        """Return the samples drawn in an epoch, ``(length,)``."""
        generator = torch.Generator().manual_seed(mix(self.seed, epoch))
        classes = torch.randint(len(self._counts), (self.length,), generator=generator)
        # float64: with float32 the last samples of 20 million could never be drawn.
        share = torch.rand(self.length, generator=generator, dtype=torch.float64)
        return self._by_label[self._begins[classes] + (share * self._counts[classes]).long()]
