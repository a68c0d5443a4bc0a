"""What the arguments of a call, and the graph behind a tensor, say."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def outer(shapes: list[tuple[int, ...]]) -> bool:
    """Whether (N, 1) meets (N,): the result has N times as many numbers as either."""
    one, two = sorted(shapes, key=len)
    return len(one) == 1 and len(two) == 2 and two == (one[0], 1) and one[0] > 1


def dropping(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of dropout drops."""
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    training = kwargs.get("training", args[2] if len(args) > 2 else True)
    return bool(training) and float(p) > 0


def masked(args: tuple[Any, ...]) -> bool:
    """Whether a tensor is indexed with a mask."""
    index = args[1] if len(args) > 1 else None
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)


def is_in_place(name: str) -> bool:
    """Whether a function of this name changes its first argument."""
    own = name.endswith("_") and not name.endswith("__")
    return (own and name != "requires_grad_") or name == "__setitem__" or name.startswith("__i")


# Nodes of autograd that leave values as they are.
SAME = {
    "View",
    "UnsafeView",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "Select",
    "ToCopy",
    "Transpose",
    "Permute",
    "T",
    "Reshape",
    "Clone",
    "Alias",
    "Index",
    "Expand",
    "Contiguous",
    "AsStrided",
    "Cat",
    "Stack",
    "Split",
    "NativeDropout",
    "FusedDropout",
}


def makers(tensor: Tensor) -> Iterator[str]:
    """Name what gave a tensor its values, up to the first function that is no mere view."""
    node = tensor.grad_fn
    for _ in range(20):
        if node is None:
            return
        name = type(node).__name__.rstrip("0123456789").removesuffix("Backward")
        yield name
        if name not in SAME or not node.next_functions:
            return
        node = node.next_functions[0][0]
