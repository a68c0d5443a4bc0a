"""What arguments a class takes, read from its source: importing it may take seconds."""

import ast
import warnings
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

# Decorators that leave the arguments as they are; the second is Lightning's, of its Trainer.
_HARMLESS = {"override", "_defaults_from_env_vars"}


def arguments(path: str) -> tuple[str, ...] | None:
    """Return the names of a class's arguments.

    Args:
        path: Where it is imported from, e.g. ``project.models.ConvNet``.

    Returns:
        The names without ``self``, those that it hands on to its base too; None if only Python
        itself can say them.
    """
    found = _find(path)
    if found is None:
        return None
    module, node = found
    others = (part for part in node.body if not isinstance(part, ast.FunctionDef))
    if node.decorator_list or node.keywords:
        return None
    if any(_names_it(part, "__init__", "__new__") for part in others):
        return None
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    init = methods.get("__init__")
    if "__new__" in methods or (init and not _is_plain(init)):
        return None
    own = _names(init) if init else ()
    if init and not init.args.kwarg:
        return own
    if len(node.bases) > 1:
        return None
    given = _given_to_base(init) if init else set()
    handed_on = _of_base(module, node) if given is not None else None
    if given is None or handed_on is None:
        return None
    return tuple(dict.fromkeys([*own, *(name for name in handed_on if name not in given)]))


def _is_plain(method: ast.FunctionDef) -> bool:
    changed = {ast.unparse(decorator) for decorator in method.decorator_list} - _HARMLESS
    return not changed and method.args.vararg is None


def _names(method: ast.FunctionDef) -> tuple[str, ...]:
    args = method.args
    return tuple(arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs))[1:]


def _given_to_base(method: ast.FunctionDef) -> set[str] | None:
    """Return what a method gives to its base's besides ``**kwargs``; None if it does more."""
    assert method.args.kwarg is not None
    name, uses, given = method.args.kwarg.arg, 0, None
    for node in ast.walk(method):
        uses += isinstance(node, ast.Name) and node.id == name
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "super().__init__":
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if keywords.pop(None, "") == name and not node.args:
                given = {word for word in keywords if word}
    return given if uses == 1 else None


def _of_base(module: str, node: ast.ClassDef) -> tuple[str, ...] | None:
    if not node.bases:
        return ()
    base = ast.unparse(node.bases[0])
    return arguments(f"{module}.{base}") if base.replace(".", "").isidentifier() else None


def _find(path: str, steps: int = 9) -> tuple[str, ast.ClassDef] | None:
    """Return the module that defines a class, and the definition.

    Args:
        path: Where it is imported from.
        steps: From import to import that may lead there: two modules may import from each other.
    """
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        if steps and (file := _file(module)):
            found = _meaning(module, file, parts[end])
            if isinstance(found, ast.ClassDef):
                return None if parts[end + 1 :] else (module, found)
            return _find(".".join([found, *parts[end + 1 :]]), steps - 1) if found else None
    return None


def _meaning(module: str, file: Path, name: str) -> ast.ClassDef | str | None:
    """Return what a name stands for in a module: a class, or the path that it is imported from."""
    found: ast.ClassDef | str | None = None
    for node in _parse(file, file.stat().st_mtime_ns):
        if isinstance(node, ast.ClassDef) and node.name == name:
            found = node
        elif isinstance(node, ast.ImportFrom | ast.Import):
            origin = _origin(node, module, file)
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    found = f"{origin}.{alias.name}".lstrip(".")
                elif alias.name == "*":
                    found = None
        elif _names_it(node, name) and not ast.unparse(node).startswith(f"{name}.__doc__ = "):
            found = None  # it may have been changed, or stand for something else
    return found


def _names_it(node: ast.stmt, *names: str) -> bool:
    """Whether a statement has one of these names; of a definition only its own counts."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name in names
    parts = (part for part in ast.walk(node) if not isinstance(part, ast.Constant))
    return any(value in names for part in parts for _, value in ast.iter_fields(part))


def _origin(node: ast.ImportFrom | ast.Import, module: str, file: Path) -> str:
    if isinstance(node, ast.Import):
        return ""
    parts = module.split(".") + [""] * (file.name == "__init__.py")
    base = parts[: -node.level] if node.level else []
    return ".".join([*base, *([node.module] if node.module else [])])


def _file(module: str) -> Path | None:
    """Return a module's file; asking Python would import the packages that it is in."""
    first, *rest = module.split(".")
    try:
        spec = find_spec(first)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations is None:
        is_source = not rest and str(spec.origin).endswith(".py")
        return Path(str(spec.origin)) if is_source else None
    for folder in spec.submodule_search_locations:
        place = Path(folder, *rest)
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.is_file():
                return file
    return None


@lru_cache(256)
def _parse(file: Path, changed: int) -> list[ast.stmt]:
    try:
        with warnings.catch_warnings(action="ignore"):  # as of an import that has been compiled
            return ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # Python itself says what is wrong with it
        return []
