"""Activation checkpointing: less memory for more time, and the same numbers."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from project.mistakes import UserError

Forward = Callable[..., Any]


def recompute_blocks(net: nn.Module) -> int:
    """Have every block of a network computed again for its gradients; return how many there are.

    Training Deep Nets with Sublinear Memory Cost, https://arxiv.org/abs/1604.06174. A block is what
    stands in an ``nn.Sequential`` and has parts and parameters of its own: a residual block, a
    layer of a transformer. Names of parameters stay as they are. Only the statistics of BatchNorm
    would notice that a block is computed twice; they are left alone the second time. Dropout draws
    the same numbers again.

    Args:
        net: Changed in place.

    Raises:
        ValueError: If the network has no such blocks.
    """
    found = list(blocks(net))
    if not found:
        raise ValueError(
            f"checkpoint_activations needs a network with blocks in an nn.Sequential, and "
            f"{type(net).__name__} has none. Leave it false."
        )
    for block in found:
        block.forward = partial(_forward, block, block.forward)
    return len(found)


def blocks(net: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that stand in an ``nn.Sequential`` and are more than a layer."""
    for child in net.children():
        is_stage = isinstance(child, nn.Sequential) and any(_has_parts(part) for part in child)
        if isinstance(net, nn.Sequential) and _has_parts(child) and not is_stage:
            yield child
        else:
            yield from blocks(child)


def _has_parts(module: nn.Module) -> bool:
    has_parameters = next(module.parameters(), None) is not None
    return has_parameters and next(module.children(), None) is not None


def _forward(block: nn.Module, forward: Forward, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    versions = [tensor._version for tensor in tensors]
    contexts = partial(_contexts, block)
    outputs = checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)
    if versions != [tensor._version for tensor in tensors]:
        raise UserError(
            f"--model.checkpoint_activations: {type(block).__name__} changes its input in place, "
            "so it cannot be computed again. Set inplace=False where it begins, or leave it false."
        )
    return outputs


def _contexts(
    block: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _statistics_stay(block)


@contextmanager
def _statistics_stay(block: nn.Module) -> Iterator[None]:
    """BatchNorm counts the batch in copies, which are then thrown away."""
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
    kept = [dict(norm._buffers) for norm in norms]
    for norm in norms:
        for name, buffer in norm._buffers.items():
            norm._buffers[name] = None if buffer is None else buffer.clone()
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)
