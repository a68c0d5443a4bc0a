"""What several checks look at is made once."""

from collections.abc import Callable
from typing import Any, TypeVar

from project.doctor.loop import Broken
from project.doctor.registry import Skip
from project.doctor.subject import Subject

Kept = TypeVar("Kept")


def once(subject: Subject, name: str, make: Callable[[], Kept]) -> Kept:
    """Return what ``make`` gives, made at the first call; what it raises is raised again.

    Args:
        subject: What is looked at; keeps it.
        name: What it is.
        make: Makes it.

    Raises:
        Broken: If the user's code raises in it.
        Skip: If there is nothing to make it of.
    """
    if name not in subject.memo:
        try:
            subject.memo[name] = make()
        except (Broken, Skip) as error:
            subject.memo[name] = error
    found: Any = subject.memo[name]
    if isinstance(found, Exception):
        raise found
    result: Kept = found
    return result
