"""What a check is, what it answers, and where checks are found."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from project.doctor.subject import Subject

Status = Literal["PASS", "WARN", "FAIL", "SKIP"]
GROUPS = ("data", "model", "training", "machine")


@dataclass(frozen=True)
class Finding:
    """What a check has found.

    Args:
        status: PASS, WARN (look at it), FAIL (a run would be wrong) or SKIP (cannot be told here).
        evidence: Numbers, names and files, in one sentence.
        advice: What to do; empty where there is nothing to do.
    """

    status: Status
    evidence: str
    advice: str = ""


def passed(evidence: str = "") -> Finding:
    """Nothing to do."""
    return Finding("PASS", evidence)


def warn(evidence: str, advice: str) -> Finding:
    """Right in some projects, wrong in most."""
    return Finding("WARN", evidence, advice)


def fail(evidence: str, advice: str) -> Finding:
    """Wrong, or sure to go wrong."""
    return Finding("FAIL", evidence, advice)


class Skip(Exception):
    """Raised within a check that cannot answer here: it ends in SKIP.

    Args:
        reason: Why not, e.g. what kind of batch it would need.
    """


Answer = Finding | Iterable[Finding]


@dataclass(frozen=True)
class Check:
    """A check as the registry knows it.

    Args:
        name: Its name, e.g. ``labels-in-range``.
        group: One of ``GROUPS``.
        what: What it looks at, in one line.
        seconds: Time after which it stops taking samples or steps.
        run: The function itself.
    """

    name: str
    group: str
    what: str
    seconds: float
    run: Callable[["Subject"], Answer]


REGISTRY: dict[str, Check] = {}


def check(
    group: Literal["data", "model", "training", "machine"], seconds: float = 5.0
) -> Callable[[Callable[["Subject"], Answer]], Callable[["Subject"], Answer]]:
    """Register a function as a check; its name with dashes is the check's, its docstring says what.

    Args:
        group: What it is about; groups run in the order of ``GROUPS``.
        seconds: Time after which it should stop taking samples or steps.

    Raises:
        ValueError: If the group is unknown or the function has no docstring.
    """
    if group not in GROUPS:
        raise ValueError(f"group must be one of {', '.join(GROUPS)}, got {group!r}")

    def register(function: Callable[["Subject"], Answer]) -> Callable[["Subject"], Answer]:
        what = (inspect.getdoc(function) or "").split("\n")[0]
        if not what:
            raise ValueError(f"{function.__name__} needs a docstring that says what it checks")
        name = function.__name__.replace("_", "-")
        REGISTRY[name] = Check(name, group, what, seconds, function)
        return function

    return register


def all_checks() -> list[Check]:
    """Return the checks of every file in ``checks/``, group by group."""
    package = importlib.import_module(f"{__package__}.checks")
    for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"{package.__name__}.{module}")
    return sorted(REGISTRY.values(), key=lambda found: GROUPS.index(found.group))
