"""What every module of a network holds in memory when a step needs most."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


@dataclass
class Held:
    """Bytes that one module holds.

    Args:
        parameters: Its own, and its buffers.
        gradients: Of its parameters.
        optimizer: What the optimizer remembers of them.
        activations: What is kept from the forward pass for the backward pass.
    """

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


@contextmanager
def activations(module: nn.Module, found: dict[str, Held]) -> Iterator[None]:
    """Note what a forward pass in this context keeps, for the innermost module it happens in.

    Args:
        module: Whose submodules count.
        found: Filled by name.
    """
    inside = [""]
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    seen: set[int] = set(own)

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:  # several operations keep the same tensor
            seen.add(storage.data_ptr())
            found[inside[-1]].activations += storage.nbytes()
        return tensor

    def enter(name: str) -> object:
        return lambda *_: inside.append(name)

    handles = []
    for name, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(enter(name)))
        handles.append(part.register_forward_hook(lambda *_: _pop(inside), always_call=True))
    try:
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _pop(inside: list[str]) -> None:
    if len(inside) > 1:
        inside.pop()


def weights(
    module: nn.Module, optimizers: Iterable[torch.optim.Optimizer], found: dict[str, Held]
) -> None:
    """Add parameters, their gradients and what optimizers remember, each shared tensor once."""
    states = [optimizer.state for optimizer in optimizers]
    seen: set[int] = set()
    for name, part in module.named_modules():
        tensors = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        for tensor in tensors:
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            held = found[name]
            held.parameters += tensor.nbytes
            held.gradients += 0 if tensor.grad is None else tensor.grad.nbytes
            kept = [v for state in states if tensor in state for v in state[tensor].values()]
            held.optimizer += sum(v.nbytes for v in kept if isinstance(v, Tensor))


def nothing_held() -> dict[str, Held]:
    """Return what ``activations`` and ``weights`` fill."""
    return defaultdict(Held)
