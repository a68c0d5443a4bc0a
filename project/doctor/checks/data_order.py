"""Order and batches: shuffled in training, the same every time in evaluation, none too small."""

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from lightning.pytorch import seed_everything
from torch import Tensor, nn
from torch.utils.data import BatchSampler, RandomSampler

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.data_samples import batch_of, class_labels, length
from project.doctor.checks.data_views import pairs
from project.doctor.loop import Broken


@check("data", seconds=8)
def random_in_evaluation(subject: Subject) -> Iterator[Finding]:
    """Two passes over validation or test data give the same inputs."""
    for split in subject.splits():
        if split == "train":
            continue
        where = _differs(subject, split)
        if where is not None:
            yield fail(
                f"two passes over {split} with other seeds give other inputs: {where}",
                "Augment in training only: give each split a transform of its own, and ask "
                "self.trainer.training in transfer hooks.",
            )


def _differs(subject: Subject, split: str) -> str | None:
    """Return where random numbers come in, None if they do not."""
    other = subject.seed + 1
    first, second = (subject.raw(split, 1, seed) for seed in (None, other))
    if not first or not second:
        return None
    if _same(first[0], second[0]):
        done = _same(subject.batches(split, 1)[0], subject.batches(split, 1, other)[0])
        return None if done else "in a hook for the transfer to the device"
    loader, dataset = subject.loader(split), subject.dataset(split)
    count = min(8, length(dataset))
    passes = []
    for seed in (subject.seed, other):
        seed_everything(seed, workers=True, verbose=False)
        passes.append(batch_of(loader, dataset, list(range(count))))
    return None if _same(*passes) else "in the dataset, its transform or collate_fn"


def tensors(batch: object) -> list[Tensor]:
    """Return all tensors of a batch."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, dict):
        batch = list(batch.values())
    return [x for item in batch for x in tensors(item)] if isinstance(batch, list | tuple) else []


def _same(one: object, other: object) -> bool:
    pairs = list(zip(tensors(one), tensors(other), strict=False))
    return all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), 1e-4, 1e-5, equal_nan=True)
        for a, b in pairs
    )


@check("data")
def training_shuffled(subject: Subject) -> Finding:
    """Training samples come in another order every epoch."""
    if float(subject.trainer_settings.get("overfit_batches") or 0) > 0:
        raise Skip("overfit_batches keeps the order")
    loader = subject.loader("train")
    first, second = (_order(loader, epoch) for epoch in (0, 1))
    if first is None or second is None or len(first) < 4:
        raise Skip("the order cannot be seen without a sampler")
    if first != second:
        return passed(type(loader.sampler).__name__)
    if first != sorted(first):
        return warn(
            "training samples come in the same mixed order every epoch",
            "Give the loader shuffle=True, or let the sampler draw anew every epoch.",
        )
    if _is_sorted(subject):
        return fail(
            "training is not shuffled, and its samples are sorted by class",
            "Give the training loader shuffle=True: the network forgets a class before it sees it "
            "again.",
        )
    return warn(
        "training is not shuffled: samples come in the order of the dataset, every epoch",
        "Give the training loader shuffle=True, unless the order matters.",
    )


def _order(loader: Any, epoch: int) -> list[int] | None:  # noqa: ANN401
    """Return which samples come first in an epoch; None if no sampler says so."""
    sampler = getattr(loader, "batch_sampler", None)
    sampler = getattr(loader, "sampler", None) if sampler is None else sampler
    inner: Any = getattr(sampler, "sampler", sampler)
    if not hasattr(inner, "__iter__") or type(inner).__name__ == "_InfiniteConstantSampler":
        return None
    inner = copy.copy(inner)
    if hasattr(inner, "set_epoch"):
        inner.set_epoch(epoch)
    found: list[int] = []
    for item in islice(inner, 4096):
        # (epoch, index), or the indices of a batch.
        found += item if isinstance(item, list) else [item[-1] if isinstance(item, tuple) else item]
    return found if all(isinstance(index, int) for index in found) else None


def _labels(subject: Subject) -> list[Tensor]:
    """Return the labels of training batches, in order.

    Raises:
        Skip: If they are no classes.
    """
    found = [class_labels(targets) for _, targets in pairs(subject, "train")]
    labels = [label for label in found if label is not None]
    if len(labels) < len(found):
        raise Skip("targets are no class indices")
    return labels


def _is_sorted(subject: Subject) -> bool:
    """Whether neighbours have the same label far more often than by chance."""
    try:
        labels = torch.cat(_labels(subject))
    except Skip:
        return False
    share = torch.bincount(labels.clamp_min(0)) / len(labels)
    kept = float((labels[1:] == labels[:-1]).float().mean())
    # Sorted data can show the first batches a single class.
    return len(labels) >= 8 and kept > 0.8 and (kept > 1.3 * float((share**2).sum()) or kept == 1)


@check("data")
def one_class_batches(subject: Subject) -> Finding:
    """Training batches mix classes."""
    labels = [found for found in _labels(subject) if len(found) >= 4]
    if not labels:
        raise Skip("training batches have fewer than 4 samples")
    share = torch.bincount(torch.cat(labels).clamp_min(0)) / sum(map(len, labels))
    pure = sum(bool((found == found[0]).all()) for found in labels) / len(labels)
    chance = float((share ** len(labels[0])).sum())
    told = f"{pure:.0%} of {len(labels)} training batches hold samples of one class only"
    if chance > 0.2 or pure < 0.1 + 2 * chance:
        return passed(told)
    advice = "Shuffle all of the data, not within classes or files; enlarge a shuffle buffer."
    return (fail if pure > 0.5 else warn)(told, advice)


@check("data")
def evaluation_order(subject: Subject) -> Iterator[Finding]:
    """Validation and test take every sample, in a fixed order."""
    for split in subject.splits():
        if split == "train":
            continue
        loader = subject.loader(split)
        left = _left_over(loader)
        if getattr(loader, "drop_last", False) and left:
            yield warn(
                f"the {split} loader drops the last {left} of {_size(loader)} samples",
                "Leave drop_last out of evaluation: the score misses them.",
            )
        if isinstance(getattr(loader, "sampler", None), RandomSampler):
            yield warn(
                f"the {split} loader shuffles",
                "Leave shuffle out of evaluation: predictions lose their order, and with "
                "limit_val_batches every validation sees others.",
            )


def _size(loader: Any) -> int:  # noqa: ANN401
    """Return how many samples an epoch has.

    Raises:
        Skip: If the loader does not know.
    """
    try:
        return len(loader.sampler)
    except (TypeError, AttributeError, NotImplementedError) as error:
        raise Skip("the loader does not know how many samples it has") from error


def _left_over(loader: Any) -> int:  # noqa: ANN401
    """Return the samples that do not fill a batch."""
    plain = type(getattr(loader, "batch_sampler", None)) is BatchSampler
    return _size(loader) % loader.batch_size if plain and loader.batch_size else 0


@check("data")
def last_batch(subject: Subject) -> Finding:
    """Training has batches, and none is too small for BatchNorm."""
    loader = subject.loader("train")
    if not _count(loader):
        return fail(
            f"the training loader has no batch: {_size(loader)} samples, batch_size "
            f"{getattr(loader, 'batch_size', None)}, drop_last",
            "Take a smaller batch_size, or leave drop_last out.",
        )
    whole = getattr(loader, "batch_size", None) or 0
    norms = [
        name
        for name, module in subject.fresh_task().named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]
    if not norms or not whole:
        raise Skip("the network has no BatchNorm, or the loader no batch_size")
    left = _left_over(loader)
    limit = subject.trainer_settings.get("limit_train_batches")
    size = whole if getattr(loader, "drop_last", False) or not left or limit else left
    if size >= 4 and size * 16 >= whole:
        return passed(f"{size} samples in the smallest batch")
    told = f"the last training batch has {size} of {whole} samples, and {norms[0]} is a BatchNorm"
    advice = "Give the training loader drop_last=True, or take another batch_size."
    if size == 1 and _dies_of_one(subject):
        return fail(f"{told}, which needs more than one", advice)
    return warn(f"{told}: its statistics are noise", advice)


def _count(loader: Any) -> int:  # noqa: ANN401
    try:
        return len(loader)
    except TypeError as error:
        raise Skip("the training loader has no length") from error


def _dies_of_one(subject: Subject) -> bool:
    """Whether the network refuses a single sample in training."""
    inputs = pairs(subject, "train")[0][0][:1].clone()
    try:
        subject.logits(subject.fresh_task().train(), inputs)
    except Broken as error:
        return "more than 1 value per channel" in str(error)
    return False
