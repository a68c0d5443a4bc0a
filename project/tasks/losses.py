"""Cross-entropy on labels or on mixtures of them, and weights for classes of unequal size."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from project.mistakes import UserError


def training_loss(
    logits: Tensor, targets: Tensor, weight: Tensor | None, label_smoothing: float
) -> Tensor:
    """Return the mean cross-entropy of a batch, ``()``, in nats.

    Args:
        logits: ``(B, K)``.
        targets: Labels ``(B,)``, of which negative ones do not count, or the probabilities of the
            classes ``(B, K)`` of images that were mixed.
        weight: Of every class, ``(K,)``. The mean is one over weights for labels, over images for
            probabilities.
        label_smoothing: Share of the target that is spread over all classes, in [0, 1).
    """
    if targets.is_floating_point():
        losses = F.cross_entropy(
            logits, targets, weight=weight, label_smoothing=label_smoothing, reduction="none"
        )
        there = targets.sum(dim=1) > 0
        return (losses * there).sum() / there.sum().clamp(min=1)
    with label_check(targets, logits.shape[1]):
        return F.cross_entropy(logits, targets, weight=weight, label_smoothing=label_smoothing)


def to_labels(targets: Tensor) -> Tensor:
    """Return labels ``(B,)``: of an image that was mixed, the class with the larger share.

    One whose row is empty has no label: -100.
    """
    if not targets.is_floating_point():
        return targets
    return targets.argmax(dim=1).where(targets.sum(dim=1) > 0, -100)


@contextmanager
def label_check(labels: Tensor, num_classes: int) -> Iterator[None]:
    """Name a label that is too large.

    Raises:
        UserError: On a CPU; CUDA asserts in the kernel.
    """
    try:
        yield
    except IndexError as error:
        raise UserError(
            f"A label is {int(labels.max())}, but num_classes is {num_classes}, labels "
            f"end at {num_classes - 1}. Set --model.num_classes or correct the labels."
        ) from error


def balanced_weights(data: object, num_classes: int) -> Tensor:
    """Return weights ``(num_classes,)`` with which all classes count alike, whatever their size.

    A class of ``n`` of the ``N`` training images gets ``N / (K * n)``, where ``K`` classes have
    images: the mean weight of an image is 1. A class without images gets 0.

    Args:
        data: A data module that counts its training images in ``class_counts``.
        num_classes: Number of classes.

    Raises:
        UserError: If the data module does not count, or balances the classes itself.
    """
    counts = getattr(data, "class_counts", None)
    if counts is None or len(counts) != num_classes or not sum(counts):
        raise UserError(
            "--model.class_weights balanced needs a data module with class_counts, the number of "
            f"training images of each of the {num_classes} classes.\n"
            "Or give the weights as a list, one number a class."
        )
    if getattr(data, "balanced", False):
        raise UserError(
            "--data.balanced already draws every class equally often: with --model.class_weights "
            "balanced rare classes would count twice. Leave out one of them."
        )
    found = torch.tensor(counts, dtype=torch.float64)
    there = found > 0
    weights = found.sum() / (there.sum() * found)
    return torch.where(there, weights, 0.0).float()
