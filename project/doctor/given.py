"""What forward gets in a step: the inputs of a batch, or what the step makes of them."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from torch import Tensor

from project.doctor.loop import Broken
from project.doctor.registry import Skip
from project.doctor.structures import clone, forward_of, pair

if TYPE_CHECKING:
    from project.doctor.subject import Subject


@dataclass
class Given:
    """What the first call of forward in a step got.

    Args:
        batch: The batch of the step.
        inputs: Its first tensor, None where there was none or no call.
        alone: Whether it got nothing else.
    """

    batch: Any
    inputs: Tensor | None = None
    alone: bool = True


@contextlib.contextmanager
def forward_watched(task: L.LightningModule, step: str) -> Iterator[list[Given]]:
    """Note what forward gets in every call of a step, such as ``validation_step``.

    Args:
        task: A copy.
        step: Name of the step.

    Yields:
        One for each call of the step so far.
    """
    found: list[Given] = []
    try:
        net: Any = forward_of(task)
    except Skip:
        net = None
    if net is None or isinstance(net, torch.jit.ScriptModule) or not hasattr(task, step):
        yield found
        return
    run, original = net.forward, getattr(task, step)

    @functools.wraps(run)
    def forward(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if found and found[-1].inputs is None:
            values = [*args, *kwargs.values()]
            tensors = [value for value in values if isinstance(value, Tensor)]
            found[-1].inputs = tensors[0].detach().clone() if tensors else None
            found[-1].alone = len(values) == 1
        return run(*args, **kwargs)

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        found.append(Given(clone(args[0] if args else None)))
        return original(*args, **kwargs)

    changed = [(net, "forward", forward), (task, step, observed)]
    before = [vars(owner).get(name) for owner, name, _ in changed]
    for owner, name, function in changed:
        setattr(owner, name, function)
    try:
        yield found
    finally:
        for (owner, name, _), own in zip(changed, before, strict=True):
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def as_forward_gets_them(batches: Sequence[Tensor], given: Sequence[Given]) -> list[Tensor]:
    """Return the inputs of batches, made by the step where forward got others of as many samples.

    Args:
        batches: Inputs of the batches.
        given: What forward got of them; fewer where not all were seen.
    """
    made = [*batches]
    for index, (inputs, seen) in enumerate(zip(batches, given, strict=False)):
        other = seen.inputs
        if other is not None and other.dim() and inputs.dim() and len(other) == len(inputs):
            made[index] = other.cpu()
    return made


def forward_inputs(subject: "Subject", batches: Sequence[Any]) -> list[Tensor]:
    """Return what forward gets in training steps on batches.

    Args:
        subject: Whose task.
        batches: Pairs, as the training step gets them.
    """
    task = subject.fresh_task()
    with forward_watched(task, "training_step") as given, contextlib.suppress(Broken):
        steps = len(batches)
        subject.train(task, steps, batches, accumulate_grad_batches=1, limit_val_batches=0)
    subject.other_inputs |= not all(one.alone for one in given)
    return as_forward_gets_them([pair(batch)[0] for batch in batches], given)


def made_by_the_step(
    subject: "Subject", batches: Sequence[Any], found: list[tuple[Tensor, Tensor]]
) -> list[tuple[Tensor, Tensor]]:
    """Return pairs with the inputs that forward gets; what a task gives as it is stays.

    Args:
        subject: Whose task.
        batches: Of the training split.
        found: Their inputs and targets.
    """
    if not subject.memo.get("given as they are"):
        inputs = forward_inputs(subject, batches)
        same = all(torch.equal(new, old) for new, (old, _) in zip(inputs, found, strict=True))
        subject.memo["given as they are"] = same
        return [(new, targets) for new, (_, targets) in zip(inputs, found, strict=True)]
    return found
