"""Batches and outputs of any make: copy them, and find what a check can compute with."""

import copy
from typing import Any

import lightning as L
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from project.doctor.registry import Skip


def clone(value: Any) -> Any:  # noqa: ANN401
    """Copy a batch, tensors of the graph without their graph."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return type(value)({key: clone(item) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(clone, value))
    if isinstance(value, list | tuple):
        return type(value)(map(clone, value))
    return copy.copy(value)


def pair(batch: object) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a batch ``(x, y, ...)``.

    Raises:
        Skip: If the batch is built in another way.
    """
    if isinstance(batch, list | tuple) and len(batch) >= 2:
        first, second = batch[0], batch[1]
        if isinstance(first, Tensor) and isinstance(second, Tensor):
            return first, second
    inner = f" of {', '.join(map(str, batch))}" if isinstance(batch, dict) else ""
    raise Skip(f"batches are no pairs (inputs, targets) of tensors, but {_kind(batch)}{inner}")


def _kind(value: object) -> str:
    return type(value).__name__


def forward_of(task: L.LightningModule) -> nn.Module:
    """Return what maps inputs to outputs: the task, or its only network.

    Raises:
        Skip: If neither has a ``forward``.
    """
    if is_overridden("forward", task):
        return task
    nets = [part for part in task.children() if any(True for _ in part.parameters())]
    if len(nets) != 1:
        raise Skip(f"{type(task).__name__} has no forward")
    return nets[0]


def tensor_in(output: Any) -> Tensor | None:  # noqa: ANN401
    """Find the logits in what a network returns."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict):
        output = [output[k] for k in ("logits", "out", "preds", "output") if k in output]
    elif isinstance(getattr(output, "logits", None), Tensor):
        output = [output.logits]
    if isinstance(output, list | tuple) and output and isinstance(output[0], Tensor):
        return output[0]
    return None


def trimmed(batch: Any, most: int) -> Any:  # noqa: ANN401
    """Return the first samples of a batch, if all its tensors are as long as the first one."""
    parts = list(batch.values()) if isinstance(batch, dict) else batch
    if not isinstance(parts, list | tuple) or not parts:
        return batch
    if not all(isinstance(part, Tensor) and part.dim() for part in parts):
        return batch
    if len({len(part) for part in parts}) != 1 or len(parts[0]) <= most:
        return batch
    if isinstance(batch, dict):
        return type(batch)({key: part[:most] for key, part in batch.items()})
    cut = [part[:most] for part in parts]
    return type(batch)(*cut) if hasattr(batch, "_fields") else type(batch)(cut)
