import functools

import pytest
import torch
import torch.nn.functional as F

from project.mistakes import UserError
from project.tasks.losses import balanced_weights, to_labels, training_loss


@pytest.fixture
def counted(data):
    """Random data whose classes are of unequal size, and counted."""

    def make(**attributes):
        split = data()
        split.class_counts = split.labels.bincount(minlength=3).tolist()
        for name, value in attributes.items():
            setattr(split, name, value)
        return split

    return make


SGD = functools.partial(torch.optim.SGD, lr=0.1)


def test_balanced_weights_make_every_class_count_alike(counted):
    counts = [30, 10, 0, 60]
    weights = balanced_weights(counted(class_counts=counts), 4)
    sums = weights * torch.tensor(counts)
    torch.testing.assert_close(sums, torch.tensor([100 / 3, 100 / 3, 0.0, 100 / 3]))


def test_balanced_weights_train_as_the_same_numbers_given_by_hand(trainer, task, counted):
    after = []
    for weights in ("balanced", balanced_weights(counted(), 3).tolist(), None):
        model = task(optimizer=SGD, class_weights=weights)
        trainer().fit(model, counted())
        after.append(model.net.layers[1].weight.detach())
    assert torch.equal(after[0], after[1])
    assert not torch.equal(after[0], after[2])


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"class_counts": None}, "needs a data module with class_counts"),
        ({"class_counts": [1, 2]}, "each of the 3 classes"),
        ({"balanced": True}, "rare classes would count twice"),
    ],
)
def test_balanced_weights_need_counts_and_no_balanced_sampler(
    trainer, task, counted, attributes, message
):
    with pytest.raises(UserError, match=message):
        trainer().fit(task(class_weights="balanced"), counted(**attributes))


def test_balanced_weights_are_not_asked_for_in_a_test(trainer, task, data):
    trainer().test(task(class_weights="balanced"), data(), verbose=False)


def test_other_words_for_class_weights_are_refused(task):
    with pytest.raises(ValueError, match="must be numbers or balanced, got 'even'"):
        task(class_weights="even")


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_sure_probabilities_cost_what_labels_cost(smoothing):
    logits, labels = torch.randn(8, 3), torch.arange(8) % 3
    sure = F.one_hot(labels, 3).float()
    one, other = (training_loss(logits, target, None, smoothing) for target in (labels, sure))
    torch.testing.assert_close(one, other)


def test_mixed_images_cost_the_mixture_of_the_costs():
    logits, first, second = torch.randn(8, 3), torch.arange(8) % 3, torch.arange(8) % 2
    mixed = 0.7 * F.one_hot(first, 3) + 0.3 * F.one_hot(second, 3)
    expected = 0.7 * F.cross_entropy(logits, first) + 0.3 * F.cross_entropy(logits, second)
    torch.testing.assert_close(training_loss(logits, mixed, None, 0.0), expected)


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 3.0])])
def test_an_ignored_image_among_mixed_ones_costs_nothing(weight):
    logits, mixed = torch.randn(8, 3), torch.rand(8, 3).softmax(dim=1)
    mixed[5:] = 0.0
    whole, part = (training_loss(logits[:n], mixed[:n], weight, 0.1) for n in (8, 5))
    torch.testing.assert_close(whole, part)
    assert training_loss(logits[5:], mixed[5:], weight, 0.1) == 0


def test_label_of_a_mixed_image_is_that_of_the_larger_share():
    assert to_labels(torch.tensor([[0.2, 0.7, 0.1], [0.6, 0.0, 0.4]])).tolist() == [1, 0]
    assert to_labels(torch.tensor([[0.2, 0.7, 0.1], [0.0, 0.0, 0.0]])).tolist() == [1, -100]
    assert to_labels(torch.tensor([2, -100])).tolist() == [2, -100]


def test_training_on_mixed_images_logs_loss_and_accuracy_of_all_of_them(trainer, task, data):
    split = data()
    split.mixed = 0.8 * F.one_hot(split.labels, 3) + 0.2 / 3
    split.on_after_batch_transfer = lambda batch, _: (
        batch[0],
        0.8 * F.one_hot(batch[1], 3) + 0.2 / 3 if split.trainer.training else batch[1],
    )
    frozen = functools.partial(torch.optim.SGD, lr=0.0)
    model, run = task(optimizer=frozen, label_smoothing=0.1), trainer()
    run.fit(model, split)
    logits = model(split.images)
    expected = F.cross_entropy(logits, split.mixed, label_smoothing=0.1)
    assert run.callback_metrics["train/loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    right = (logits.argmax(dim=1) == split.labels).double().mean().item()
    assert run.callback_metrics["train/acc"].item() == pytest.approx(right)
