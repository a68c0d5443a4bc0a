"""Which classes a setting may have: those of this package's rooms and of the libraries."""

import ast
import difflib
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path

import project


def near_classes(key: str, module: str, name: str) -> list[str]:
    """Return the classes that a wrong name may have been meant for.

    Args:
        key: The setting, e.g. ``model.net``.
        module: Where the class was said to be; may be empty.
        name: Its name there.
    """
    given = f"{module}.{name}" if module else name
    names = [*candidates(key), *(_public_names(module) if module else [])]
    by_leaf = {_leaf(path).lower(): path for path in reversed(names)}
    leaf = _leaf(given).lower()
    near = [by_leaf[leaf]] if leaf in by_leaf else _in_files(module, _leaf(given))
    near = near or difflib.get_close_matches(given, names, n=3, cutoff=0.75)
    near = near or [by_leaf[n] for n in difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=0.75)]
    begun = [word for word in by_leaf if len(leaf) > 2 and word.startswith(leaf)]
    return near or [by_leaf[word] for word in sorted(begun, key=len)[:3]]


def classes_in(file: Path) -> list[str]:
    """Return the paths by which the classes of a Python file here are imported."""
    try:
        module = file.absolute().relative_to(Path.cwd()).with_suffix("").as_posix()
        nodes = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    names = [node.name for node in nodes if isinstance(node, ast.ClassDef) and node.bases]
    return [f"{module.replace('/', '.')}.{name}" for name in names[:3]]


def _in_files(module: str, name: str) -> list[str]:
    """Find a class in the files of a package that does not export it."""
    folders = getattr(sys.modules.get(module), "__path__", [])
    return [
        f"{module}.{file.stem}.{name}"
        for folder in folders
        for file in sorted(Path(folder).glob("*.py"))
        if re.search(rf"^class {re.escape(name)}\b", file.read_text(), re.MULTILINE)
    ]


# Where a setting's classes come from, besides this package.
_LIBRARIES = {
    "optimizer": "torch.optim",
    "scheduler": "torch.optim.lr_scheduler",
    "net": "torchvision.models",
    "callbacks": "lightning.pytorch.callbacks",
    "logger": "lightning.pytorch.loggers",
}


def candidates(key: str) -> list[str]:
    """List the classes that a setting may have, those of its room first."""
    library = _LIBRARIES.get(_leaf(key))
    return _own_names(_leaf(key)) + (_public_names(library) if library else [])


def _public_names(module: str) -> list[str]:
    """List the classes and functions of a module, without what it imports from elsewhere."""
    try:
        found = vars(importlib.import_module(module)).items()
    except ImportError:
        return []
    top = module.split(".", 1)[0]
    return [
        f"{module}.{name}"
        for name, value in found
        if name[0] != "_" and (inspect.isclass(value) or inspect.isfunction(value))
        if value.__module__.split(".", 1)[0] == top
    ]


def _own_names(first: str = "") -> list[str]:
    """List the classes that the rooms of this package export, those of the setting's room first."""
    rooms = [name for _, name, is_room in pkgutil.iter_modules(project.__path__) if is_room]
    order = {"net": "models", "model": "tasks"}
    rooms.sort(key=lambda room: room != order.get(first, first))
    found = []
    for room in rooms:
        module = importlib.import_module(f"{project.__name__}.{room}")
        found += [f"{module.__name__}.{name}" for name in getattr(module, "__all__", [])]
    return found


def _leaf(path: str) -> str:
    return path.rsplit(".", 1)[-1]
