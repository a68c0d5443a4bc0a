"""How a network is built again where this project is not: a class or function, with arguments."""

import ast
import importlib
import inspect
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from torch import nn

import project
from project.runs import LoadedRun, find_class

NET = "net"  # the module that the copy of a network's source becomes


@dataclass(frozen=True)
class Architecture:
    """The network of a run, and what builds it.

    Args:
        net: Its weights are those to be written.
        class_path: The class or function that makes it.
        arguments: Its arguments, plain values; None if they are not known or not plain.
        source: Text of the file that defines it, if that needs nothing of this project.
        packages: What has to be installed beside torch to build it.
    """

    net: nn.Module
    class_path: str
    arguments: dict[str, Any] | None
    source: str | None
    packages: list[str]

    @property
    def module(self) -> str:
        """Where the class or function is imported from, beside the weights."""
        return self.class_path.rpartition(".")[0] if self.source is None else NET

    @property
    def name(self) -> str:
        """The class or function."""
        return self.class_path.rpartition(".")[2]


def find_architecture(loaded: LoadedRun) -> Architecture:
    """Find out how the network of a run is built: from its configuration, or as it says itself.

    A network that only wraps one of a library has a property ``built_by``: the module inside, and
    the function and the arguments that make it.
    """
    net = getattr(loaded.task, "net", None)
    if not isinstance(net, nn.Module):
        return Architecture(loaded.task, _path(loaded.task), None, None, [])
    if built_by := getattr(net, "built_by", None):
        net, class_path, arguments = built_by
    else:
        config = yaml.safe_load(loaded.run.config.read_text())
        setting = (config["model"].get("init_args") or {}).get("net") or {}
        class_path = setting.get("class_path", _path(net))
        arguments = _plain(setting.get("init_args") or {}) if setting else None
    if arguments and class_path.startswith("torchvision.") and "weights" in arguments:
        arguments["weights"] = None  # they would be downloaded, and then replaced by the run's
    source, packages = _source(class_path)
    return Architecture(net, class_path, arguments, source, packages)


def _path(net: nn.Module) -> str:
    return f"{type(net).__module__}.{type(net).__name__}"


def _plain(arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments unless one of them is an object that has to be built itself."""
    nested = any(isinstance(v, dict) and "class_path" in v for v in arguments.values())
    return None if nested else dict(arguments)


def _source(class_path: str) -> tuple[str | None, list[str]]:
    """Return the text of an own file that stands alone, and the packages that it needs."""
    made = inspect.unwrap(find_class(class_path))
    top = made.__module__.partition(".")[0]
    try:
        file = Path(inspect.getsourcefile(made) or "")
        text = file.read_text()
    except (OSError, TypeError):  # from a notebook, or compiled
        return None, [top]
    installed = Path(sysconfig.get_path("purelib")).resolve() in file.resolve().parents
    if installed and top != project.__name__:
        return None, [top]
    needs = _imported(text) - sys.stdlib_module_names - {"torch"}
    if "" in needs or not all(map(_is_installed, needs)):
        return None, [top]
    return text, sorted(needs)


def _imported(text: str) -> set[str]:
    """Return the packages that a file imports; an empty name for its neighbours."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("" if node.level else (node.module or "").partition(".")[0])
    return found


def _is_installed(package: str) -> bool:
    """Whether a package is one of a library, not of this project or the user's folder."""
    if package == project.__name__:
        return False
    file = getattr(importlib.import_module(package), "__file__", None) or ""
    return Path(sysconfig.get_path("purelib")).resolve() in Path(file).resolve().parents
