"""Do labels fit the inputs? Two quick probes on thumbnails, always on samples they have not seen.

A vote of the nearest neighbours and a ridge regression on random features (Rahimi & Recht 2007)
say a class for every sample, and how sure they are.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.data_samples import Samples, samples
from project.doctor.checks.data_views import first_few
from project.doctor.once import once

MOST = 2000  # samples of a split
FOLDS = 5
NEIGHBOURS = 15
FEATURES = 600


@dataclass
class Answers:
    """What a probe says of samples that it has not seen.

    Args:
        classes: ``(N,)``.
        margins: How sure it is, ``(N,)``; larger is surer.
        labels: What the data say, ``(N,)``.
    """

    classes: Tensor
    margins: Tensor
    labels: Tensor

    @property
    def accuracy(self) -> float:
        """Share of answers that agree with the label."""
        return float((self.classes == self.labels).float().mean())

    @property
    def _sizes(self) -> Tensor:
        """Samples of each class that there is."""
        sizes = torch.bincount(self.labels)
        return sizes[sizes > 0]

    @property
    def count(self) -> int:
        """Number of classes that there are."""
        return len(self._sizes)

    @property
    def recall(self) -> float:
        """Share of right answers in a class, the mean over classes."""
        right = torch.bincount(self.labels[self.classes == self.labels])
        return (
            float((right[right > 0] / torch.bincount(self.labels)[: len(right)][right > 0]).sum())
            / self.count
        )

    @property
    def recall_deviation(self) -> float:
        """Deviation of that mean if answers are drawn by chance."""
        share = 1 / self.count
        return math.sqrt(share * (1 - share) * float((1 / self._sizes).sum())) / self.count


Probe = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def by_neighbours(known: Tensor, labels: Tensor, asked: Tensor, count: int) -> Tensor:
    """Return scores ``(N, count)``: the share of the nearest neighbours in each class."""
    apart = torch.cdist(asked, known)
    near = labels[apart.topk(min(NEIGHBOURS, len(known)), largest=False).indices]
    votes: Tensor = F.one_hot(near, count).float().mean(1)
    # Nearer ones decide a tie.
    return votes + 1e-3 * F.one_hot(near[:, 0], count)


def by_regression(known: Tensor, labels: Tensor, asked: Tensor, count: int) -> Tensor:
    """Return scores ``(N, count)`` of a ridge regression on random features."""
    generator = torch.Generator().manual_seed(0)
    size = known.shape[1]
    directions = torch.randn(size, FEATURES, generator=generator) / size**0.5
    offsets = torch.randn(FEATURES, generator=generator)

    def features(values: Tensor) -> Tensor:
        return torch.cat([values, torch.relu(values @ directions * 2 + offsets)], 1)

    x, y = features(known), F.one_hot(labels, count).float()
    middle, share = x.mean(0), y.mean(0)
    x = x - middle
    gram = x.T @ x
    gram.diagonal().add_(0.1 * float(gram.diagonal().mean()) + 1e-6)
    weights = torch.linalg.solve(gram, x.T @ (y - share))
    scores: Tensor = (features(asked) - middle) @ weights + share
    return scores


PROBES: tuple[Probe, ...] = (by_neighbours, by_regression)


def described(thumbs: Tensor) -> Tensor:
    """Return numbers ``(N, D)`` of samples: thumbnails, and their brightness and grain."""
    whole = thumbs.flatten(1)
    if thumbs.dim() == 4:
        grain = [(thumbs.diff(dim=d)).abs().mean((2, 3)) for d in (2, 3)]
        rough = torch.cat([thumbs.mean((2, 3)), thumbs.std((2, 3)), *grain], 1)
        whole = torch.cat([whole, rough.repeat(1, 4)], 1)
    return whole


def scaled(values: Tensor, like: Tensor) -> Tensor:
    """Scale every number by one deviation for all, so that flat borders stay flat."""
    return (values - like.mean(0)) / like.std(0).square().mean().sqrt().clamp_min(1e-8)


def answers(subject: Subject) -> list[Answers]:
    """Return what the probes say of training samples, each fitted to the other folds.

    Raises:
        Skip: If there are too few samples for that, or targets are no classes.
    """
    return once(subject, "answers", lambda: _cross_validated(subject))


def material(subject: Subject, split: str) -> tuple[Samples, Tensor, Tensor, Tensor]:
    """Return samples, the rows that can be used, their description and labels."""
    found = samples(subject, split)
    if found.labels is None:
        raise Skip("targets are no class indices")
    rows = ((found.labels >= 0) & found.finite).nonzero()[:, 0][:MOST]
    return found, rows, described(found.thumbs[rows]), found.labels[rows]


def _cross_validated(subject: Subject) -> list[Answers]:
    _, rows, values, labels = material(subject, "train")
    count = int(labels.max()) + 1 if len(labels) else 0
    if len(rows) < 100 or count < 2 or len(rows) < 10 * count:
        raise Skip("needs 100 training samples with labels, 10 of a class")
    values = scaled(values, values)
    # Equal ones would know one another's label.
    hashes = samples(subject, "train").hashes[rows]
    if len(torch.unique(hashes)) < 50:
        raise Skip("needs 50 training samples that differ")
    fold = _folds(hashes)
    found = []
    for probe in PROBES:
        scores = torch.empty(len(rows), count)
        for k in range(FOLDS):
            inside = fold == k
            scores[inside] = probe(values[~inside], labels[~inside], values[inside], count)
        found.append(_answers(scores, labels))
    return found


def _folds(hashes: Tensor) -> Tensor:
    _, group = torch.unique(hashes, return_inverse=True)
    order = torch.randperm(int(group.max()) + 1, generator=torch.Generator().manual_seed(0))
    return order[group] % FOLDS


def _answers(scores: Tensor, labels: Tensor) -> Answers:
    best = scores.topk(2, 1)
    return Answers(best.indices[:, 0], best.values[:, 0] - best.values[:, 1], labels)


def chance_of(labels: Tensor) -> float:
    """Return the accuracy of always saying the largest class, plus four deviations."""
    share = float(torch.bincount(labels).max()) / len(labels)
    return share + 4 * math.sqrt(share * (1 - share) / len(labels))


@check("data", seconds=8)
def labels_fit_inputs(subject: Subject) -> Finding:
    """Labels have to do with the inputs: a quick probe is right more often than by chance."""
    best = max(answers(subject), key=lambda found: found.accuracy)
    chance = chance_of(best.labels)
    told = f"a quick probe is right for {best.accuracy:.0%} of {len(best.labels)} training samples"
    if best.accuracy > chance or best.recall > 1 / best.count + 4 * best.recall_deviation:
        return passed(told)
    if chance > 0.7:
        raise Skip(f"{told}, and so is who always says the largest class")
    return warn(
        f"{told}, by chance it is up to {chance:.0%}",
        "Unless only fine detail tells the classes apart: are images and labels in the same order, "
        "from lists that were sorted or shuffled together? Look at the picture sheet.",
    )


@check("data", seconds=8)
def labels_agree_between_splits(subject: Subject) -> Iterator[Finding]:
    """What a probe learns from training samples holds in the other splits."""
    train = answers(subject)
    best = max(range(len(PROBES)), key=lambda i: train[i].accuracy)
    accuracy, chance = train[best].accuracy, chance_of(train[best].labels)
    if accuracy < chance + 0.1:
        raise Skip("a quick probe knows too little of these classes")
    _, _, known, labels = material(subject, "train")
    for split in subject.splits():
        if split == "train":
            continue
        _, rows, asked, truth = material(subject, split)
        if len(rows) < 30 or asked.shape[1] != known.shape[1]:
            continue
        count = int(max(labels.max(), truth.max())) + 1
        scores = PROBES[best](scaled(known, known), labels, scaled(asked, known), count)
        yield _judged(split, _answers(scores, truth), accuracy, count)


def _judged(split: str, answer: Answers, expected: float, count: int) -> Finding:
    """Compare a probe's accuracy in another split with that in training."""
    told = f"a quick probe is right for {expected:.0%} in train, {answer.accuracy:.0%} in {split}"
    if answer.accuracy > 0.6 * expected:
        return passed(told)
    pairs = answer.labels * count + answer.classes
    table = torch.bincount(pairs, minlength=count * count).view(count, count)
    said = table.argmax(1)
    renamed = float(table.max(1).values.sum()) / len(answer.labels)
    changed = [k for k in range(count) if int(said[k]) != k and table[k].sum() >= 3]
    one_to_one = len(set(said[table.sum(1) > 0].tolist())) == int((table.sum(1) > 0).sum())
    if renamed > 0.8 * expected and one_to_one and changed:
        names = first_few([f"{k} in {split} is {int(said[k])} in train" for k in changed])
        return fail(
            f"{told}; it seems that class {names}",
            "Number the classes from one sorted list for all splits.",
        )
    return warn(
        told,
        f"Are the images of {split} in the order of their labels, and preprocessed as in train?",
    )
