"""What checks of data ask again and again: classes, batches, what the first layer gets."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from project.doctor import Skip, Subject
from project.doctor.loop import Broken
from project.doctor.once import once
from project.doctor.structures import pair

# Batches that are read of a split, so that all checks share one reading; fewer where that many hold
# more numbers than the second (80 MB), but two.
BATCHES = 16
ROOM = 20_000_000
# That are enough to know the scale of what the first layer gets.
SAMPLES = 128

NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)


@dataclass
class Arrived:
    """What arrived at the first layer that has parameters, over some batches.

    Args:
        layer: Its name.
        kind: Its class.
        inputs: What it got, a tensor of floats per batch.
    """

    layer: str = ""
    kind: str = ""
    inputs: list[Tensor] = field(default_factory=list)
    normalises: bool = False


def pairs(subject: Subject, split: str, count: int = BATCHES) -> list[tuple[Tensor, Tensor]]:
    """Return the first batches as (inputs, targets); shared, only to look at.

    Raises:
        Skip: If batches are built in another way, or if there are none.
    """
    first = [pair(batch) for batch in subject.reading(split, 1).batches[:1]]
    if not first:
        raise Skip(f"the {split} split has no batch")
    room = max(2, min(BATCHES, ROOM // max(1, first[0][0].numel())))
    found = subject.reading(split, room).batches
    return [pair(batch) for batch in found[:count]]


def arrived(subject: Subject, split: str) -> Arrived:
    """Return what the network got in a few real steps of a split.

    Raises:
        Skip: If no layer got floats.
    """
    return once(subject, f"arrived in {split}", lambda: _watch(subject, split))


def _watch(subject: Subject, split: str) -> Arrived:
    task, seen = subject.fresh_task(), Arrived()
    for name, module in task.named_modules():
        own = next(module.parameters(recurse=False), None) is not None
        if name and (own or isinstance(module, NORMS)):
            module.register_forward_pre_hook(_note(seen, name), with_kwargs=True)
    try:
        if split == "train":
            batches = subject.batches("train", 4)
            # As many as there are: a schedule may need more than one step.
            subject.train(task, steps=max(2, len(batches)), batches=batches, limit_val_batches=0)
        else:
            subject.evaluate(task, split, count=4)
    except _Enough:
        pass
    except Broken:
        if not seen.inputs:  # else it is for other checks to tell
            raise
    if not seen.inputs:
        raise Skip("no layer with parameters got a tensor of floats")
    return seen


class _Enough(Exception):
    """Ends a loop: the rest of the network need not be computed."""


def _note(seen: Arrived, name: str) -> Any:  # noqa: ANN401
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if seen.layer not in ("", name):
            return
        given = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), None)
        seen.layer, seen.kind = name, type(module).__name__
        seen.normalises = isinstance(module, NORMS)
        if given is not None and given.is_floating_point() and given.numel():
            seen.inputs.append(given.detach().cpu().float().clone())
        if len(seen.inputs) >= 4 or sum(map(len, seen.inputs)) >= SAMPLES:
            raise _Enough

    return hook


def width(subject: Subject) -> int | None:
    """Return how many numbers the network gives for a target, None where it cannot be told."""
    return once(subject, "width", lambda: _width(subject))


def _width(subject: Subject) -> int | None:
    try:
        inputs, targets = subject.pairs("train")[0]
        with torch.no_grad():
            output = subject.logits(subject.fresh_task().eval(), inputs.clone())
    except (Skip, Broken):
        return None
    return _class_dimension(output, targets)


def _class_dimension(output: Tensor, targets: Tensor) -> int | None:
    if output.dim() < 2 or output.shape[0] != len(targets):
        return None
    if output.dim() == 2:
        return output.shape[1]
    if output.shape[1:-1] == targets.shape[1:]:
        return output.shape[-1]
    return output.shape[1] if output.shape[2:] == targets.shape[1:] else None


def classes(subject: Subject) -> int | None:
    """Return the number of classes as data or task say it, else the network's outputs."""
    if subject.num_classes is not None:
        return subject.num_classes
    outputs = width(subject)
    if outputs == 1:
        return 2 if is_binary(pairs(subject, "train")[0][1]) else None
    return outputs


def is_binary(targets: Tensor) -> bool:
    """Whether targets are zeros and ones."""
    return bool(((targets == 0) | (targets == 1)).all())


def first_few(names: list[str], most: int = 5) -> str:
    """Join the first names, and say if there are more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
