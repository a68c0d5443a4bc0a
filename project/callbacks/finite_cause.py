"""Where a NaN or Inf in training came from: input, parameters, labels, loss or gradients."""

import cmath
from collections.abc import Iterable
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, distributed

_SHOWN = 5  # samples or names in a message


class Cause(NamedTuple):
    """Where it came from, and what to try.

    Args:
        order: Of several, the least is nearest to the origin.
        what: One line.
        advice: One line.
    """

    order: int
    what: str
    advice: str


def is_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or Inf."""
    values = local(tensor)
    # A sum is finite only if all are, and is quick; finite ones may overflow together.
    return cmath.isfinite(values.sum().item()) or bool(values.isfinite().all())


def local(gradient: Tensor) -> Tensor:
    """Return the values that this process has of a sparse or a sharded gradient."""
    if gradient.is_sparse:
        return gradient._values()
    if type(gradient) is Tensor or not hasattr(gradient, "to_local"):
        return gradient
    values: Tensor = gradient.to_local()  # a DTensor
    return values


def find_cause(
    trainer: L.Trainer, module: L.LightningModule, batch: object, loss: Tensor | None
) -> Cause:
    """Go back from what was seen to where it came from.

    Args:
        trainer: Knows the data set and, under DDP, the other processes.
        module: Its gradients are those of the bad step.
        batch: The one with the bad loss, or the last; None if it is not there any more.
        loss: The first bad one, if any.
    """
    gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    wrong = [name for name, gradient in gradients.items() if not is_finite(gradient)]
    cause = _bad_input(trainer, batch) or bad_parameters(trainer, module)
    if cause is None and loss is not None:
        cause = _no_labels(batch) or Cause(
            3,
            f"the loss is {loss.item()}, parameters {'' if batch is None else 'and input '}"
            "are finite",
            _advice(trainer),
        )
    if cause is None:
        what = f"{len(wrong)} of {len(gradients)} gradients are not finite: {_some(wrong)}"
        cause = Cause(4, f"the loss is finite, but {what}", _advice(trainer))
    # DDP's processes share gradients, so all of them are here. A bad loss may be alone.
    if wrong and isinstance(trainer.strategy, DDPStrategy) and trainer.world_size > 1:
        return _agree(cause, trainer.world_size)
    return cause


def bad_parameters(trainer: L.Trainer, module: L.LightningModule) -> Cause | None:
    """Say which parameters are not finite, if any."""
    names = [name for name, p in module.named_parameters() if not is_finite(p.detach())]
    if not names:
        return None
    count = sum(1 for _ in module.parameters())
    what = f"{len(names)} of {count} parameters are not finite: {_some(names)}"
    return Cause(
        1, what, f"An earlier update did it, or the checkpoint it began with. {_advice(trainer)}"
    )


def _agree(own: Cause, world_size: int) -> Cause:
    """Return the cause nearest to the origin on all processes, and say on which."""
    causes: list[Any] = [None] * world_size
    distributed.all_gather_object(causes, own)
    rank, cause = min(enumerate(causes), key=lambda pair: int(pair[1].order))
    return Cause(cause.order, f"on process {rank} of {world_size}, {cause.what}", cause.advice)


def _advice(trainer: L.Trainer) -> str:
    half = str(trainer.precision).startswith("16")
    range_of_fp32 = "--trainer.precision bf16-mixed, which has a larger range, " if half else ""
    return (
        f"Try {range_of_fp32}a lower lr, a longer warm-up, --trainer.gradient_clip_val 1; "
        "or look for log, sqrt, exp or a division in net and loss."
    )


def _bad_input(trainer: L.Trainer, batch: object) -> Cause | None:
    parts = list(batch) if isinstance(batch, tuple | list) else [batch]
    for part in parts:
        if not isinstance(part, Tensor) or not part.is_floating_point() or part.ndim == 0:
            continue
        rows = ~part.isfinite().reshape(len(part), -1).all(dim=1)  # (B,)
        if positions := rows.nonzero()[:, 0].tolist():
            names = _samples(trainer, parts, positions)
            what = f"the input is not finite in {len(positions)} of {len(part)} samples: {names}"
            return Cause(0, what, "Correct them, or what is done to them (a division by 0?).")
    return None


def _samples(trainer: L.Trainer, batch: list[Any], positions: list[int]) -> str:
    """Name samples by file or by index in the split; failing that, by place in the batch."""
    index = batch[2] if len(batch) > 2 else None
    if not isinstance(index, Tensor) or index.dtype != torch.int64 or len(index) != len(batch[0]):
        return f"{_some(positions)} of the batch, counted from 0"
    samples = index[positions].tolist()
    dataset = getattr(trainer.train_dataloader, "dataset", None)
    if name := getattr(dataset, "file", None):  # the paths may be those of all splits
        return _some(f"{sample} ({name(sample)})" for sample in samples)
    files = getattr(dataset, "paths", None) or getattr(dataset, "files", None)
    if files is None:
        return f"{_some(samples)} of the training split"
    return _some(f"{sample} ({files[sample]})" for sample in samples)


def _no_labels(batch: object) -> Cause | None:
    labels = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or (labels >= 0).any():
        return None
    what = "no sample of the batch has a label (all are negative), so that its loss has no mean"
    return Cause(2, what, "Give them labels, or leave them out.")


def _some(items: Iterable[object]) -> str:
    words = [str(item) for item in items]
    return ", ".join(words[:_SHOWN]) + (", …" if len(words) > _SHOWN else "")
