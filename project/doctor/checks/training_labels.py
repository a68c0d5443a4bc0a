"""Whether training goes by the labels at all; that of an autoencoder does not."""

from typing import Any

import lightning as L
import torch
from torch import Tensor

from project.doctor import Subject
from project.doctor.once import once


def with_other_labels(batch: Any) -> Any:  # noqa: ANN401
    """Return a batch with the labels of other classes, if it is a pair."""
    if not (isinstance(batch, list | tuple) and len(batch) >= 2 and isinstance(batch[1], Tensor)):
        return batch
    parts, made = list(batch), type(batch)
    parts[1] = other_labels(batch[1])
    return made(*parts) if hasattr(made, "_fields") else made(parts)


def other_labels(labels: Tensor) -> Tensor:
    """Return another class for every label."""
    if labels.is_floating_point():
        return labels.flip(0)
    valid = labels >= 0
    top = int(labels.max())
    return torch.where(valid, torch.where(labels == top, labels[valid].min(), labels + 1), labels)


def trains_on_labels(subject: Subject) -> bool:
    """Whether the gradients of a training step depend on the labels."""
    return once(subject, "trains on labels", lambda: _trains_on_labels(subject))


def _trains_on_labels(subject: Subject) -> bool:
    batches = subject.batches("train", 1)
    sizes: list[list[float]] = []
    for some in (batches, [with_other_labels(batch) for batch in batches]):
        L.seed_everything(subject.seed, workers=True, verbose=False)
        lesson = subject.train(
            steps=1, batches=some, accumulate_grad_batches=1, limit_val_batches=0
        )
        sizes.append([size for step in lesson.gradients for size in step.values()])
    one, two = sizes
    return len(one) != len(two) or any(
        abs(a - b) > 1e-4 * max(a, b) for a, b in zip(one, two, strict=True)
    )
