"""Which units of a network are at rest, or at their limits."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

RELUS = ("relu", "relu_", "relu6", "leaky_relu", "threshold")
BOUNDED = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "hardsigmoid": (0.0, 1.0)}


class Activations(TorchFunctionMode):
    """Collects, for every call of an activation, which units are at rest or at their limits.

    Args:
        task: Whose modules are named.
    """

    def __init__(self, task: nn.Module) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.found: list[tuple[str, str, float]] = []
        self.handles = []
        for name, module in task.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                self.handles.append(module.register_forward_pre_hook(self._enter(name)))
                self.handles.append(module.register_forward_hook(lambda *_: self._leave()))

    def _enter(self, name: str) -> Callable[..., None]:
        return lambda *_: self.stack.append(name)

    def _leave(self) -> None:
        self.stack.pop()

    def close(self) -> None:
        """Stop watching."""
        for handle in self.handles:
            handle.remove()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call it, and measure what comes out of an activation."""
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if isinstance(out, Tensor) and out.dim() > 1 and out.numel() and name in (*RELUS, *BOUNDED):
            where = next((name for name in reversed(self.stack) if name), "forward")
            self.found.append((where, name, _share(name, out.detach().float())))
        return out


def _share(name: str, out: Tensor) -> float:
    """Return the share of units that never fire, or of values at the limits."""
    if name in BOUNDED:
        low, high = BOUNDED[name]
        margin = 0.01 * (high - low) / 2
        return float(((out < low + margin) | (out > high - margin)).float().mean())
    units = out.transpose(0, 1) if out.dim() in (2, 4) else out.movedim(-1, 0)
    # Leaky ones leave a small slope: nothing is dead there.
    return float((units.flatten(1) == 0).all(1).float().mean())
