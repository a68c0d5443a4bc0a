"""The first steps of the real loop on one batch each, watched closely; every check looks at one."""

import copy
import functools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from project.doctor.loop import Broken
from project.doctor.once import once
from project.doctor.registry import Skip
from project.doctor.structures import trimmed
from project.doctor.subject import Subject
from project.doctor.tape import Call, Tape

STEPS = 3
MOST = 32  # samples of a batch


@dataclass
class Steps:
    """What was seen in the first steps.

    Args:
        task: Afterwards.
        tape: What was computed in the first step.
        losses: Of every step.
        gradients: Largest RMS of every parameter's gradient over the steps; a parameter that never
            got one is not there.
        first: The same of the first step.
        leaves: Tensors of the loss's graph that are trained, but by no parameter of the task.
        cut: Whether the loss has no graph at all.
        origins: Where what the loss is made of lost its gradient.
        optimizers: Lightning's.
        frozen: Parameters that were not trained in one of the steps.
    """

    task: L.LightningModule
    tape: Tape
    losses: list[float] = field(default_factory=list)
    gradients: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    leaves: list[Tensor] = field(default_factory=list)
    cut: bool = False
    origins: set[Call] = field(default_factory=set)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    frozen: set[str] = field(default_factory=set)

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that are to be trained, by name."""
        named = self.task.named_parameters()
        return {n: p for n, p in named if p.requires_grad and n not in self.frozen}


class _Watcher(Callback):
    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.known: set[int] = set()

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        self.steps.cut = not loss.requires_grad
        self.steps.frozen |= {n for n, p in pl_module.named_parameters() if not p.requires_grad}
        self.steps.origins |= self.steps.tape.origins(loss)
        if not self.known:
            self.known = {id(parameter) for parameter in pl_module.parameters()}
            self.steps.leaves = [t for t in _leaves(loss) if id(t) not in self.known]

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        largest = self.steps.gradients
        for name, parameter in pl_module.named_parameters():
            if parameter.grad is not None and parameter.grad.numel():
                grad = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                rms = float(grad.detach().float().pow(2).mean().sqrt())
                largest[name] = rms if rms != rms else max(rms, largest.get(name, 0.0))

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if not self.steps.first:
            self.steps.first = dict(self.steps.gradients)


def _leaves(loss: Tensor) -> list[Tensor]:
    """Return what the gradient of a loss arrives at."""
    found, seen, todo = [], set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        todo.extend(following for following, _ in node.next_functions)
    return found


def first_steps(subject: Subject) -> Steps:
    """Take three steps with a copy of the task; remembered.

    Raises:
        Broken: If the user's code raises, but for a loss without a graph, which is to be found.
        Skip: If there is nothing to train on.
    """
    return once(subject, "first steps", lambda: _take(subject))


def _take(subject: Subject) -> Steps:
    task = subject.fresh_task()
    batches = [trimmed(batch, MOST) for batch in subject.batches("train", STEPS)]
    steps = Steps(task, Tape(task))
    original, calls = task.training_step, defaultdict[str, int](int)

    @functools.wraps(original)
    def training_step(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        calls["step"] += 1
        if calls["step"] > 1:
            return original(*args, **kwargs)
        steps.tape.inputs = {id(t) for t in _inputs(args)}
        with steps.tape:
            result = original(*args, **kwargs)
        loss = result.get("loss") if isinstance(result, dict) else result
        if isinstance(loss, Tensor):
            steps.origins |= steps.tape.origins(loss)
        return result

    task.training_step = training_step  # type: ignore[method-assign]
    watcher = _Watcher(steps)
    try:
        lesson = subject.train(
            task,
            STEPS,
            batches,
            [watcher],
            accumulate_grad_batches=1,
            limit_train_batches=1.0,
            overfit_batches=0,
        )
        steps.losses = lesson.losses
        steps.optimizers = list(lesson.trainer.optimizers)
        subject.other_inputs |= "" not in steps.tape.called
    except Broken:
        if not steps.cut:
            raise
    finally:
        steps.tape.close()
        del task.training_step
        task.trainer = None
    return steps


def _inputs(args: tuple[Any, ...]) -> list[Tensor]:
    batch = args[0] if args else None
    parts = list(batch.values()) if isinstance(batch, dict) else batch
    parts = parts if isinstance(parts, list | tuple) else [parts]
    return [part for part in parts if isinstance(part, Tensor)]


def settled_task(subject: Subject) -> L.LightningModule:
    """Return a copy of the task after the first steps, when a last layer of zeros has moved."""
    try:
        return copy.deepcopy(first_steps(subject).task)
    except (Broken, Skip):
        return subject.fresh_task()
