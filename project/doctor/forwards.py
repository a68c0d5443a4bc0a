"""Two forwards beside each other: in which module do they begin to differ."""

from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import Tensor

from project.doctor.structures import tensor_in

Trace = list[tuple[str, Tensor | None, Tensor | None]]
SAMPLES = 8


def traced(task: L.LightningModule, run: Callable[[], Tensor]) -> tuple[Tensor, Trace]:
    """Return an output without its graph, and what went in and out of every module.

    Args:
        task: Whose modules are followed.
        run: Computes the output with the task.
    """
    trace: Trace = []

    def follow(name: str) -> torch.utils.hooks.RemovableHandle:
        inside: list[Tensor | None] = []

        def enter(module: object, args: Any) -> None:  # noqa: ANN401
            inside.append(_kept(args))

        def leave(module: object, args: object, out: object) -> None:
            trace.append((name, inside.pop() if inside else None, _kept(out)))

        module = task.get_submodule(name)
        before = module.register_forward_pre_hook(enter)
        handles.append(module.register_forward_hook(leave))
        return before

    handles: list[torch.utils.hooks.RemovableHandle] = []
    handles += [
        follow(name)
        for name, module in task.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)
    ]
    try:
        with torch.no_grad():
            out = run()
    finally:
        for handle in handles:
            handle.remove()
    return out, trace


def _kept(value: object) -> Tensor | None:
    found = tensor_in(value)
    return None if found is None else found.detach().clone()


def parting(one: Trace, two: Trace, row: int | None = None) -> str:
    """Name the first module that makes different outputs of the same inputs; "" if there is none.

    Args:
        one: A forward.
        two: Another.
        row: The sample that is compared; by default all are.
    """
    for (name, in_one, out_one), (other, in_two, out_two) in zip(one, two, strict=False):
        if name != other or in_one is None or in_two is None or out_one is None or out_two is None:
            continue
        if alike(in_one, in_two, row) and not alike(out_one, out_two, row):
            return name
    return ""


def alike(one: Tensor, two: Tensor, row: int | None = None, tolerance: float = 1e-4) -> bool:
    """Whether two tensors are the same but for rounding.

    Args:
        one: A tensor.
        two: Another.
        row: What to compare of the first dimension; by default everything.
        tolerance: Relative to the largest value.
    """
    if row is not None:
        if one.dim() == 0 or two.dim() == 0 or min(len(one), len(two)) <= row:
            return False
        one, two = one[row], two[row]
    if one.shape != two.shape:
        return False
    one, two = one.double(), two.double()
    size = max(float(one.abs().max()), 1e-12) if one.numel() else 1.0
    return bool(((one - two).abs() <= tolerance * size).all())
