import pytest
import torch
from torch.utils.data import TensorDataset

from project.data.loader import BalancedSampler, EpochLoader

# 2 + 90 + 8 samples of the classes 0, 2 and 5, in no order.
LABELS = torch.tensor([0] * 2 + [2] * 90 + [5] * 8)[torch.arange(100) * 37 % 100]


def drawn(epoch: int = 0, labels=LABELS, **options) -> list[int]:
    sampler = BalancedSampler(labels, 5, seed=1, **options)
    sampler.set_epoch(epoch)
    return list(sampler)


def test_every_class_is_equally_likely_whatever_its_size():
    seen = torch.tensor([i for epoch in range(300) for i in drawn(epoch)])
    counts = torch.bincount(LABELS[seen], minlength=6)
    assert counts.tolist()[1::2][:2] == [0, 0]
    # 10,000 of 30,000 draws each; four standard deviations are 330.
    assert (counts[[0, 2, 5]] - 10_000).abs().max() < 330


def test_every_sample_of_a_class_is_equally_likely():
    seen = torch.tensor([i for epoch in range(300) for i in drawn(epoch)])
    each = torch.bincount(seen, minlength=100)
    assert each.min() > 0
    frequent = each[LABELS == 2].double()  # 111 draws each, standard deviation 10.5
    assert (frequent - 111).abs().max() < 50
    assert frequent.std() == pytest.approx(10.5, rel=0.3)


def test_draws_depend_on_seed_and_epoch_only():
    torch.manual_seed(1)
    first = drawn(3)
    torch.manual_seed(2)
    assert drawn(3) == first
    assert drawn(4) != first


def test_processes_share_the_draws_of_one():
    alone = drawn(2, rank=0, num_replicas=1)
    ranks = [drawn(2, rank=rank, num_replicas=2) for rank in (0, 1)]
    assert [i for pair in zip(*ranks, strict=True) for i in pair] == alone


def test_a_resume_in_the_middle_of_an_epoch_draws_the_rest():
    def loader():
        data = TensorDataset(torch.arange(100))
        return EpochLoader(data, BalancedSampler(LABELS, 5, seed=1), batch_size=5)

    whole, stopped, resumed = loader(), loader(), loader()
    batches = [batch[0].tolist() for batch in whole]
    for _, _ in zip(range(7), stopped, strict=False):
        pass
    resumed.load_state_dict({"epoch": 0, "batches": 7})
    assert [batch[0].tolist() for batch in resumed] == batches[7:]


def test_samples_without_a_label_are_never_drawn():
    labels = torch.where(torch.arange(100) % 2 == 0, LABELS, -100)
    assert all(labels[i] >= 0 for epoch in range(20) for i in drawn(epoch, labels))


def test_no_labels_at_all_are_refused():
    with pytest.raises(ValueError, match="needs samples with labels"):
        BalancedSampler(torch.full((10,), -100), 5, seed=1)


def test_the_setting_balances_the_batches_of_a_data_module(monkeypatch, small):
    images = torch.zeros(200, 1, 8, 8, dtype=torch.uint8)
    labels = torch.cat([torch.zeros(180, dtype=torch.int64), torch.ones(20, dtype=torch.int64)])
    monkeypatch.setattr(small, "load", lambda self, train: (images, labels))
    shares = []
    for balanced in (False, True):
        data = small(balanced=balanced, batch_size=60)
        data.setup()
        assert data.class_counts == [162, 18, 0, 0, 0, 0, 0, 0, 0, 0]
        drawn = torch.cat([batch[1] for batch in data.train_dataloader()])
        shares.append(float(drawn.float().mean()))
    # Of 180 draws at 1/2, five standard deviations are 0.19.
    assert shares[0] < 0.15
    assert abs(shares[1] - 0.5) < 0.19
