import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from project.data.loader import EpochLoader, EpochSampler, EvalSampler, FixedSampler


class Indices(Dataset[int]):
    def __init__(self, length: int):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def batches(sampler, size: int) -> list[list[int]]:
    order = list(sampler)
    return [order[i : i + size] for i in range(0, len(order), size)]


def epoch_order(seed: int, epoch: int) -> list[int]:
    sampler = EpochSampler(1000, 10, seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def test_order_depends_on_seed_and_epoch_only():
    torch.manual_seed(1)
    first = epoch_order(3, 4)
    torch.manual_seed(2)
    assert epoch_order(3, 4) == first
    assert sorted(first) == list(range(1000))


def test_no_two_seeds_or_epochs_share_an_order():
    # seed + epoch, as torch's DistributedSampler has it, would share (0, 1) and (1, 0).
    orders = [tuple(epoch_order(seed, epoch)) for seed in range(4) for epoch in range(4)]
    assert len(set(orders)) == 16


@pytest.mark.parametrize("drop_last", [True, False])
def test_global_batches_do_not_depend_on_the_number_of_processes(drop_last: bool):
    single = batches(EpochSampler(1003, 8, 5, drop_last, rank=0, num_replicas=1), 8)
    ranks = [
        batches(EpochSampler(1003, 4, 5, drop_last, rank=r, num_replicas=2), 4) for r in (0, 1)
    ]
    together = [sorted(a + b) for a, b in zip(*ranks, strict=True)]
    assert together[:125] == [sorted(batch) for batch in single[:125]]
    assert len(together) == len(single) == (125 if drop_last else 126)


def test_rank_and_world_are_read_when_iterated(monkeypatch: pytest.MonkeyPatch):
    sampler = EpochSampler(100, 5, 0, drop_last=True)
    assert len(sampler) == 100
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    assert len(sampler) == len(list(sampler)) == 25
    assert list(sampler) == list(EpochSampler(100, 5, 0, rank=1, num_replicas=4))


@pytest.mark.parametrize("world", [1, 2, 7])
def test_short_training_set_is_one_short_batch_and_equal_on_every_process(world: int):
    parts = [list(EpochSampler(5, 512, 0, rank=r, num_replicas=world)) for r in range(world)]
    assert {len(part) for part in parts} == {-(-5 // world)}
    assert set().union(*parts) == set(range(5))


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_evaluation_sees_every_sample_once(world: int):
    parts = [list(EvalSampler(1001, rank=r, num_replicas=world)) for r in range(world)]
    assert len({len(part) for part in parts}) == 1
    assert sorted(i for part in parts for i in part if i >= 0) == list(range(1001))


def test_fixed_sampler_keeps_its_order_and_counts_epochs():
    sampler = FixedSampler(100, 5, 3)
    first = list(sampler)
    sampler.set_epoch(2)
    assert list(sampler) == first
    assert sampler.epoch == 2


def loader(workers: int, persistent: bool = False) -> EpochLoader[int]:
    return EpochLoader(
        Indices(40),
        EpochSampler(40, 4, seed=7),
        batch_size=4,
        num_workers=workers,
        persistent_workers=persistent,
    )


def run(of: EpochLoader[int], epoch: int) -> list[list[int]]:
    of.sampler.set_epoch(epoch)
    return [batch.tolist() for batch in of if isinstance(batch, Tensor)]


def test_order_is_the_same_with_workers():
    one, two = loader(0), loader(2, persistent=True)
    assert [run(one, e) for e in range(3)] == [run(two, e) for e in range(3)]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_state_counts_batches_handed_out_not_prefetched(workers: int):
    first = loader(workers)
    first.sampler.set_epoch(3)
    iterator = iter(first)
    seen = [next(iterator).tolist() for _ in range(4)]
    state = first.state_dict()
    assert state == {"epoch": 3, "batches": 4}

    second = loader(workers)
    second.load_state_dict(state)
    assert len(second) == 10
    assert seen + [batch.tolist() for batch in second] == run(loader(0), 3)
    assert run(second, 4) == run(loader(0), 4)


def test_state_of_a_finished_epoch_does_not_cut_the_next():
    # As with limit_train_batches: the epoch ended after 6 of 10 batches, the next is to be whole.
    resumed = loader(0)
    resumed.load_state_dict({"epoch": 0, "batches": 6})
    assert run(resumed, 1) == run(loader(0), 1)


class Rows(Dataset[Tensor]):
    """Notes what it is asked for, and would rather be asked for seven rows at once."""

    rows_at_once = 7

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 20

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        self.asked.append(len(rows))
        return torch.tensor(rows), 10 * torch.tensor(rows)


@pytest.mark.parametrize(("size", "asked"), [(3, [6, 6, 6, 2]), (9, [9, 9, 2])])
def test_batches_gathered_together_are_those_gathered_one_by_one(size: int, asked: list[int]):
    def epoch(at_once: int, done: int) -> list[list[list[int]]]:
        data = Rows()
        data.rows_at_once = at_once
        sampler = EpochSampler(20, size, 1, drop_last=False)
        loader = EpochLoader(data, sampler, batch_size=size, collate_fn=lambda batch: batch)
        loader.load_state_dict({"epoch": 3, "batches": done})
        found = [[part.tolist() for part in batch] for batch in loader]
        assert not at_once or done or data.asked == asked
        assert loader.state_dict()["batches"] == -(-20 // size)
        return found

    for done in (0, 1):
        assert epoch(7, done) == epoch(0, done)
        assert len(epoch(7, done)) == -(-20 // size) - done


def test_batches_gathered_together_are_collated_as_asked():
    sampler = EpochSampler(20, 3, 1)
    first, *_ = EpochLoader(Rows(), sampler, batch_size=3, collate_fn=lambda batch: batch[1] + 1)
    assert first.tolist() == [10 * row + 1 for row in sampler.order(0).tolist()[:3]]
