"""What a network computes, call by call: where gradients end, and which functions make the loss."""

import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from project.doctor.calls import dropping, is_in_place, makers, masked, outer

HERE = str(Path(__file__).resolve().parent)
FOREIGN = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
LOSSES = (
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "gaussian_nll_loss",
    "poisson_nll_loss",
    "kl_div",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)
# To Python and back: what a number goes through without its graph.
NUMBERS = ("item", "tolist", "numpy", "__array__", "__float__", "__int__", "__index__")
# What a traced graph cannot follow: numbers that decide, and shapes that depend on values.
DECIDING = ("__bool__", "nonzero", "masked_select", "unique", "__contains__", "equal", "allclose")
WATCHED = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
MOVES = ("to", "type_as", "cuda", "cpu", "clone", "detach", "__getitem__", "__repr__", "data")
ROUNDING = ("floor_divide", "__floordiv__", "floor", "round", "trunc", "ceil")
FLAT = ("sign", "round", "floor", "ceil", "trunc", "heaviside", "sgn")
CASTS = ("long", "int", "short", "byte", "to", "type", "floor_divide", "__floordiv__")
ARITHMETIC = ("sub", "rsub", "mul", "add", "eq", "div", "__eq__", "__sub__", "__rsub__")


def place() -> str:
    """Return ``file.py, line n`` of the user's innermost line; "" for what `self.log` does."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if "/lightning/pytorch/core/" in name and "log" in frame.f_code.co_name:
            return ""
        if not name.startswith((*FOREIGN, HERE, "<")):
            return f"{Path(name).name}, line {frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@dataclass(frozen=True)
class Call:
    """A call that was noted.

    Args:
        name: Of the function, e.g. ``detach``.
        module: The module whose forward was running; empty outside of all.
        place: File and line of the user's.
        about: What else is to say, e.g. shapes.
    """

    name: str
    module: str
    place: str
    about: str = ""

    @property
    def where(self) -> str:
        """Say it in words."""
        module = f" in {self.module}" if self.module else ""
        place = f" ({self.place})" if self.place else ""
        return f"{self.name}{module}{place}"


@dataclass
class LossCall:
    """A loss function that was called.

    Args:
        call: The call.
        given: Its first argument, detached.
        target: Its second argument.
        made_by: Names of what the first argument went through last, e.g. ``Softmax``.
        own_input: Whether the first argument carries a gradient.
    """

    call: Call
    given: Tensor
    target: Tensor
    made_by: list[str] = field(default_factory=list)
    own_input: bool = True


class Tape(TorchFunctionMode):
    """Notes what is looked for while a network computes.

    Args:
        task: Whose modules are named; its forwards are watched between ``watch`` and ``close``.
        origins: Whether to follow what lost its gradient up to the loss; holds such tensors.

    ``inputs`` are the ids of tensors that are not to be changed; by default that of the tensor that
    the first module gets, which is ``first``.
    """

    def __init__(self, task: nn.Module, origins: bool = True) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.called: dict[str, int] = {}
        self.cuts: list[Call] = []
        self.numbers: list[Call] = []
        self.lost: list[Call] = []
        self.flat: list[Call] = []
        self.deciding: list[Call] = []
        self.dropouts: list[Call] = []
        self.losses: list[LossCall] = []
        self.broadcasts: list[Call] = []
        self.casts: list[Call] = []
        self.in_place: list[Call] = []
        self.inputs: set[int] = set()
        self.first: Tensor | None = None
        self.operands: set[int] = set()
        self._follow = origins
        self._origins: dict[int, frozenset[Call]] = {}
        self._held: list[Tensor] = []
        self._dropped: list[Tensor] = []
        self._handles: list[RemovableHandle] = []
        for name, module in task.named_modules():
            self._watch(name, module)

    def _watch(self, name: str, module: nn.Module) -> None:
        def enter(module: object, args: tuple[object, ...]) -> None:
            if not self.inputs and args and isinstance(args[0], Tensor):
                self.first, self.inputs = args[0], {id(args[0])}
            self.stack.append(name)
            self.called[name] = self.called.get(name, 0) + 1

        def leave(*_: object) -> None:
            self.stack.pop()

        if isinstance(module, torch.jit.ScriptModule):
            return
        self._handles.append(module.register_forward_pre_hook(enter))
        self._handles.append(module.register_forward_hook(leave, always_call=True))

    def close(self) -> None:
        """Stop watching; let tensors go."""
        for handle in self._handles:
            handle.remove()
        self._origins, self._held, self._dropped = {}, [], []

    def origins(self, tensor: Tensor) -> frozenset[Call]:
        """Return the calls in which what a tensor is made of lost its gradient."""
        return self._origins.get(id(tensor), frozenset())

    def _call(self, name: str, about: str = "") -> Call:
        module = next((name for name in reversed(self.stack) if name), "")
        return Call(name, module, place(), about)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call it, and note what is to note."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            if name not in ("data", "T", "mT", "real"):
                return func(*args, **kwargs)
        elif name in ("__set__", "size", "dim", "stride", "is_floating_point", "numel"):
            return func(*args, **kwargs)
        tensors = list(_tensors((args, kwargs)))
        if name not in MOVES:
            self.operands.update(map(id, tensors))
        # Before the call, which may change its arguments in place.
        self._before(name, args, kwargs, tensors)
        out = func(*args, **kwargs)
        self._after(name, tensors, out)
        return out

    def _before(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> None:
        if name in LOSSES and len(tensors) >= 2:
            self.losses.append(self._loss(name, tensors[0], tensors[1]))
        elif name in ARITHMETIC and len(tensors) == 2:
            shapes = [tuple(t.shape) for t in tensors]
            if outer(shapes):
                self.broadcasts.append(self._call(name, f"{shapes[0]} and {shapes[1]}"))
        elif name in WATCHED and dropping(args, kwargs):
            self.dropouts.append(self._call(name))
        elif name in DECIDING or name in NUMBERS:
            self.deciding.append(self._call(name))
        elif name == "__getitem__" and masked(args):
            self.deciding.append(self._call("indexing with a mask"))

    def _loss(self, name: str, given: Tensor, target: Tensor) -> LossCall:
        about = f"{tuple(given.shape)} and {tuple(target.shape)}"
        values = given.detach().clone()
        made_by = list(makers(given))
        if any(given is dropped for dropped in self._dropped):
            made_by.append("Dropout")
        call = self._call(name, about)
        return LossCall(call, values, target.detach().clone(), made_by, given.requires_grad)

    def _after(self, name: str, tensors: list[Tensor], out: Any) -> None:  # noqa: ANN401
        if is_in_place(name) and tensors and id(tensors[0]) in self.inputs:
            self.in_place.append(self._call(name))
        whole = [t for t in _tensors((out,)) if not (t.is_floating_point() or t.is_complex())]
        if name in ROUNDING and tensors and id(tensors[0]) in self.inputs:
            self.casts.append(self._call(name, "rounded"))
        if whole and name in CASTS and tensors and tensors[0].is_floating_point():
            self.casts.append(self._call(name, str(whole[0].dtype)))
        if name in FLAT and any(t.requires_grad for t in tensors):
            self.flat.append(self._call(name))
        if name in WATCHED:
            self._dropped += _tensors((out,))
        if self._follow:
            self._follow_gradient(name, tensors, out)

    def _follow_gradient(self, name: str, tensors: list[Tensor], out: Any) -> None:  # noqa: ANN401
        found: frozenset[Call] = frozenset()
        for tensor in tensors:
            found |= self._origins.get(id(tensor), frozenset())
        with_graph = any(t.requires_grad for t in tensors)
        if name in NUMBERS and (with_graph or found):
            self.numbers.append(self._call(name))
            self.lost.append(self.numbers[-1])
        elif with_graph and not torch.is_grad_enabled():
            lost = self._call("no_grad")
            self.cuts.append(lost)
            self.lost.append(lost)
            found |= {lost}
        for made in _tensors((out,)):
            own = found
            if with_graph and torch.is_grad_enabled() and not made.requires_grad:
                call = self._call(f".{name}" if name == "data" else name)
                if call.place:
                    self.cuts.append(call)
                    self.lost.append(call)
                own = found | {call}
            if own:
                self._origins[id(made)] = own
                self._held.append(made)


def _tensors(values: Any, depth: int = 3) -> Iterator[Tensor]:  # noqa: ANN401
    if isinstance(values, Tensor):
        yield values
    elif depth and isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value, depth - 1)
    elif depth and isinstance(values, dict):
        for value in values.values():
            yield from _tensors(value, depth - 1)
