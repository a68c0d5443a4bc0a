import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.strategies import SingleDeviceStrategy
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_confusion_matrix,
    multiclass_f1_score,
    multiclass_precision,
    multiclass_recall,
)

from project.tasks.tally import Tally, per_class


def counted(logits, labels, sizes, num_classes=5):
    tally = Tally(num_classes)
    for x, y in zip(logits.split(sizes), labels.split(sizes), strict=True):
        tally.add(F.cross_entropy(x, y, reduction="sum"), x, y)
    return tally


@pytest.fixture
def sample():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(103, 5, generator=generator)
    logits[:, 4] = -100  # class 4 is never predicted
    labels = torch.randint(4, (103,), generator=generator)  # and never occurs
    return logits, labels


def test_figures_equal_torchmetrics_for_uneven_batches_and_an_absent_class(sample):
    logits, labels = sample
    scalars = counted(logits, labels, [50, 50, 3]).scalars()
    expected = {
        "loss": F.cross_entropy(logits, labels),
        "acc": multiclass_accuracy(logits, labels, 5, average="micro"),
        "f1": multiclass_f1_score(logits, labels, 5, average="macro"),
    }
    for name, value in expected.items():
        # torchmetrics computes in float32.
        assert scalars[name].item() == pytest.approx(value.item(), rel=1e-6), name


def test_confusion_matrix_equals_torchmetrics(sample):
    logits, labels = sample
    matrix = counted(logits, labels, [50, 50, 3]).confusion_matrix
    assert matrix.dtype == torch.int64
    assert torch.equal(matrix, multiclass_confusion_matrix(logits, labels, 5))


def test_per_class_equals_torchmetrics_where_defined(sample):
    logits, labels = sample
    figures = per_class(counted(logits, labels, 103).confusion_matrix)
    for name, metric in (
        ("precision", multiclass_precision),
        ("recall", multiclass_recall),
        ("f1", multiclass_f1_score),
    ):
        expected = metric(logits, labels, 5, average="none")[:4].double()
        torch.testing.assert_close(getattr(figures, name)[:4], expected, rtol=1e-6, atol=0)
        assert getattr(figures, name)[4].isnan()
    assert figures.support.tolist() == labels.bincount(minlength=5).tolist()


@pytest.fixture
def imagined(sample):
    logits, labels = sample
    logits[:9, 4] = 100  # class 4, which never occurs, is predicted
    return logits, labels


def test_macro_f1_is_that_of_torchmetrics_over_the_classes_with_samples(imagined):
    logits, labels = imagined
    # torchmetrics' own macro average would count class 4 as 0 (torchmetrics#1691).
    each = multiclass_f1_score(logits, labels, 5, average="none")
    assert each[4] == 0
    scalars = counted(logits, labels, 103).scalars()
    assert scalars["f1"].item() == pytest.approx(each[:4].mean().item(), rel=1e-6)


def test_a_class_without_samples_has_no_figures_even_if_it_is_predicted(imagined):
    figures = per_class(counted(*imagined, 103).confusion_matrix)
    assert [figure[4].isnan().item() for figure in figures[:3]] == [True, True, True]
    assert figures.support[4] == 0


def test_a_class_that_is_never_predicted_has_no_precision_and_an_f1_of_zero():
    tally = Tally(2)
    tally.add(torch.tensor(0.0), torch.tensor([[1.0, 0.0]] * 7), torch.tensor([0] * 4 + [1] * 3))
    figures = per_class(tally.confusion_matrix)
    assert figures.precision[1].isnan()
    assert (figures.recall[1], figures.f1[1]) == (0, 0)
    # Class 0: precision 4/7, recall 1, F1 8/11.
    assert tally.scalars()["f1"].item() == pytest.approx((8 / 11 + 0) / 2)


def test_padding_does_not_count(sample):
    logits, labels = sample
    padded_logits = torch.cat([logits, torch.randn(7, 5)])
    padded = counted(padded_logits, F.pad(labels, (0, 7), value=-100), 110)
    plain = counted(logits, labels, 103)
    assert torch.equal(padded.confusion_matrix, plain.confusion_matrix)
    assert padded.scalars()["loss"].item() == pytest.approx(plain.scalars()["loss"].item())


def test_loss_does_not_depend_on_the_batches(sample):
    whole, pieces = counted(*sample, 103), counted(*sample, 1)
    # The sum inside a batch is float32, the one over batches float64.
    assert whole.scalars()["loss"].item() == pytest.approx(pieces.scalars()["loss"].item(), 1e-6)


def test_a_million_small_losses_keep_their_digits():
    tally = Tally(2)
    tally.loss.add_(1e6)
    for _ in range(100):
        tally.add(torch.tensor(1e-3), torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))
    # float32 would lose every one of them.
    assert tally.loss.item() - 1e6 == pytest.approx(0.1)


def test_state_goes_on_where_it_was(sample):
    logits, labels = sample
    first, second = counted(logits[:60], labels[:60], 60), Tally(5)
    second.load_state_dict(first.state_dict(SingleDeviceStrategy("cpu")), 0, 1)
    second.add(F.cross_entropy(logits[60:], labels[60:], reduction="sum"), logits[60:], labels[60:])
    assert torch.equal(second.confusion_matrix, counted(logits, labels, 103).confusion_matrix)


def test_a_mean_counts_as_often_as_its_batch_has_valid_samples(sample):
    logits, labels = sample
    labels[:7] = -100
    tally = Tally(5, mean=True)
    for x, y in zip(logits.split([50, 50, 3]), labels.split([50, 50, 3]), strict=True):
        tally.add(F.cross_entropy(x, y), x, y)
    expected = F.cross_entropy(logits, labels)
    assert tally.scalars()["loss"].item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_batch_without_a_valid_sample_adds_nothing(sample):
    logits, labels = sample
    tally = counted(logits, labels, 103)
    nothing = torch.full((4,), -100)
    tally.add(F.cross_entropy(logits[:4], nothing, reduction="sum"), logits[:4], nothing)
    assert torch.equal(tally.confusion_matrix, counted(logits, labels, 103).confusion_matrix)
    assert tally.scalars()["loss"] == counted(logits, labels, 103).scalars()["loss"]


def test_what_is_noted_does_not_grow_without_end():
    tally = Tally(2)
    for _ in range(1000):
        tally.add(torch.tensor(0.5), torch.eye(2), torch.tensor([0, 1]))
        assert len(tally._noted) < 64
    assert tally.confusion_matrix.tolist() == [[1000, 0], [0, 1000]]
    assert tally.batches == 1000
