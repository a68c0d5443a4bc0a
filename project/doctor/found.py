"""Modules and tensors that an object holds without having registered them."""

import functools
import types
from collections.abc import Iterator
from typing import Any

import lightning as L
from torch import Tensor, nn

# Attributes of every module that torch and Lightning keep for themselves.
OWN = set(vars(nn.Module())) | set(vars(L.LightningModule())) | {"_modules", "trainer"}
DEPTH = 5


def unregistered(task: nn.Module) -> Iterator[tuple[str, nn.Module | Tensor]]:
    """Yield the path and the value of what lies in attributes, but is not registered.

    Goes into lists, tuples, sets, dictionaries, plain objects, closures and partial functions.

    Args:
        task: All of its modules are looked at.
    """
    seen = {id(part) for part in task.modules()}
    seen |= {id(tensor) for tensor in (*task.parameters(), *task.buffers())}
    for name, module in list(task.named_modules()):
        if type(module)._apply is not nn.Module._apply:  # moves its tensors by itself: a metric
            continue
        for key, value in list(vars(module).items()):
            if key not in OWN and not key.startswith("_forward_"):
                path = f"{name}.{key}" if name else key
                yield from _below(path, value, seen, DEPTH)


def _below(
    path: str,
    value: Any,  # noqa: ANN401
    seen: set[int],
    depth: int,
) -> Iterator[tuple[str, nn.Module | Tensor]]:
    if depth == 0 or id(value) in seen:
        return
    if isinstance(value, nn.Module | Tensor):
        seen.add(id(value))
        if isinstance(value, nn.Module):
            seen.update(id(part) for part in value.modules())
        yield path, value
        return
    if isinstance(value, list | tuple | set | dict) or hasattr(value, "__dict__"):
        seen.add(id(value))
    for key, inner in _inside(value):
        yield from _below(f"{path}{key}", inner, seen, depth - 1)


def _inside(value: Any) -> list[tuple[str, Any]]:  # noqa: ANN401
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in list(value.items())[:999]]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{index}]", item) for index, item in enumerate(list(value)[:999])]
    if isinstance(value, functools.partial):
        return [("()", item) for item in (value.func, *value.args, *value.keywords.values())]
    if isinstance(value, types.FunctionType):
        return [("()", _content(cell)) for cell in value.__closure__ or ()]
    if isinstance(value, types.MethodType):
        return [("()", value.__self__)]
    library = type(value).__module__.split(".")[0] in ("torch", "lightning", "torchmetrics")
    if isinstance(value, type | types.ModuleType) or library or not hasattr(value, "__dict__"):
        return []
    # An object of the user's may move its tensors by itself; weights are for nobody but a module.
    return [
        (f".{key}", item)
        for key, item in list(vars(value).items())[:999]
        if not isinstance(item, Tensor) or item.requires_grad
    ]


def _content(cell: Any) -> Any:  # noqa: ANN401
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None
