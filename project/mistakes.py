"""A user's mistake in one to three lines: what was given, what is allowed, what to do next."""

import difflib
import importlib
import pkgutil
import re
from collections.abc import Iterable, Sequence
from types import ModuleType

import project


class UserError(Exception):
    """A mistake of the user's; the front door prints it without a traceback and exits with 2.

    Args:
        message: One to three lines: what was given, what is allowed, what to do next.
    """


class RunFailed(Exception):
    """A run that cannot go on, through no mistake in a setting; the exit code is 1.

    Args:
        message: A few lines: what happened, where, what to try.
    """


class Meaning(str):
    """What an error means for the user: a note on it, which plain Python shows below the traceback.

    The front door prints it alone, and exits with 1.
    """


def meaning(error: BaseException) -> str | None:
    """Return what an error means for the user, if somebody has noted that on it."""
    notes = getattr(error, "__notes__", [])
    return next((str(note) for note in notes if isinstance(note, Meaning)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean a or b?`` for the nearest of ``known``, or an empty string."""
    near = difflib.get_close_matches(word, sorted(set(known)), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def explain(message: str, accepted: Sequence[str], where: str) -> str:
    """Put a parser's message into the words of this file.

    Args:
        message: What the parser said.
        accepted: Names of the settings that the parser at fault accepts.
        where: Whose settings those are: a verb, or the class path.

    Returns:
        One to three lines.
    """
    if unknown := re.search(r"unrecognized arguments: (--)?([^\s=]+)", message):
        return _unknown(unknown[2], accepted, where, dashes=unknown[1] or "")
    if unknown := re.search(r"[Oo]ption '([^']+)'", message):
        return _unknown(unknown[1], accepted, where)
    if unknown := re.search(r"Group '([^']+)' does not accept option '([^']+)'", message):
        return _unknown(f"{unknown[1]}.{unknown[2]}", accepted, where)
    if missing := re.search(r"File does not exist: '([^']+)'", message):
        return f"No file {missing[1]}. A recipe is given as --config configs/NAME.yaml."
    key = (
        found[1] if (found := re.search(r'Parser key "([^"]+)"', message)) else "the configuration"
    )
    if no_name := re.search(r"module '([\w.]+)' has no attribute '(\w+)'", message):
        return _no_class(key, no_name[1], no_name[2])
    if no_path := re.search(
        r"(?:No module named '([^']+)'|dot import path string: (\S+))", message
    ):
        wanted = re.search(r"class_path '([^']+)'|Expected a path but (\S+) either", message)
        full = (wanted[1] or wanted[2]) if wanted else no_path[1] or no_path[2]
        return _no_class(key, "", full)
    if "Problem with given class_path" in message:
        return innermost(message)
    if given := re.search(r"Given value: (.*)|Got value: (.*)", message):
        value = given[1] if given[1] is not None else given[2]
        return f"{key} cannot be {value!r}: {_expected(message)}."
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return "\n".join(lines[:3])


def innermost(message: str) -> str:
    """Cut the layers off a message about a class that refused its settings."""
    problem = re.search(r"Problem with given class_path '([^']+)':\s*([^\n]+)", message)
    if problem is None:
        # A list of what was tried, one after another; what the class itself said stands out.
        tried = re.findall(r"^ *- ((?!Expected an? |Not a valid ).+)", message, re.MULTILINE)
        return tried[0] if tried and message.startswith("Does not validate") else message
    name, reason = problem.groups()
    if missing := re.search(r"Requirement '([^']+)' not met|No module named '([^']+)'", reason):
        package = missing[1] or missing[2]
        return f"{name} needs a package that is not installed: pip install '{package}'"
    return f"{name}: {reason.strip()}"


def _unknown(name: str, accepted: Sequence[str], where: str, dashes: str = "") -> str:
    leaf = name.rsplit(".", 1)[-1]
    root = name.split(".", 1)[0]
    hint = (
        did_you_mean(name, accepted)
        or did_you_mean(leaf, (a.rsplit(".", 1)[-1] for a in accepted))
        or did_you_mean(root, {a.split(".", 1)[0] for a in accepted} - {root})
    )
    if not hint and len(accepted) <= 12 and accepted:
        hint = f" It has: {', '.join(sorted(accepted))}."
    return f"{where} has no setting {dashes}{name}.{hint}"


def _expected(message: str) -> str:
    """Say what the parser would have taken, e.g. ``expected int or null``."""
    wanted: list[str] = []
    for found in re.findall(r"Expected an? ([^\n]+?)(?:\. Got value.*)?(?:\n|$)", message):
        literal = re.match(r"typing\.Literal\[(.*)\]", found)
        plain = re.match(r"<class '(?:\w+\.)*(\w+)'>", found)
        name = literal[1] if literal else plain[1] if plain else found
        wanted.append("null" if name == "NoneType" else name)
    return "expected " + " or ".join(dict.fromkeys(wanted)) if wanted else "it has the wrong type"


def _no_class(key: str, module: str, name: str) -> str:
    """Say that there is no such class, with the nearest names of its module and of ours."""
    given = f"{module}.{name}" if module else name
    leaf = given.rsplit(".", 1)[-1]
    names = _public_names(module) if module else []
    near = difflib.get_close_matches(given, names + _own_names(), n=3, cutoff=0.75)
    by_leaf = {path.rsplit(".", 1)[-1]: path for path in _own_names()}
    near = near or [by_leaf[n] for n in difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=0.75)]
    hint = (
        f"Did you mean {' or '.join(near)}?"
        if near
        else "Give the full path, e.g. project.models.MLP."
    )
    return f"{key}: there is no {given}. {hint}"


def _public_names(module: str) -> list[str]:
    try:
        return [
            f"{module}.{name}" for name in dir(importlib.import_module(module)) if name[0] != "_"
        ]
    except ImportError:
        return []


def _own_names() -> list[str]:
    """List the classes that the rooms of this package export, e.g. ``project.models.MLP``."""
    rooms = [name for _, name, is_room in pkgutil.iter_modules(project.__path__) if is_room]
    found = []
    for room in rooms:
        module: ModuleType = importlib.import_module(f"{project.__name__}.{room}")
        found += [f"{module.__name__}.{name}" for name in getattr(module, "__all__", [])]
    return found
