"""Looks for the silent bug before the long run: checks of data, model, training and machine."""

from collections.abc import Collection, Mapping
from typing import Any

import lightning as L

from project.doctor.isolation import isolated
from project.doctor.registry import GROUPS, Finding, Skip, check, fail, passed, warn
from project.doctor.report import Report, Result
from project.doctor.runner import run_checks
from project.doctor.subject import Subject

__all__ = [
    "GROUPS",
    "Finding",
    "Report",
    "Result",
    "Skip",
    "Subject",
    "check",
    "check_task",
    "fail",
    "passed",
    "warn",
]


def check_task(
    task: L.LightningModule,
    datamodule: object = None,
    settings: Mapping[str, Any] | None = None,
    groups: Collection[str] = ("data", "model", "training"),
    only: Collection[str] | None = None,
    seconds: float = 45.0,
) -> Report:
    """Run the checks on a task; neither it nor its data nor the process is changed.

    In a test: ``check_task(task, datamodule).raise_for_failures()``.

    Args:
        task: Any LightningModule.
        datamodule: A LightningDataModule, a training loader, loaders by split such as
            ``{"train": ..., "val": ...}``, or None for the loaders of the task.
        settings: The configuration as the command line resolves it; trainer's settings from there.
        groups: Which of data, model, training and machine to check.
        only: Names of the checks to run; by default all of the groups.
        seconds: Time for all checks; those that are not reached end in SKIP.

    Raises:
        ValueError: If a group does not exist.
    """
    if unknown := set(groups) - set(GROUPS):
        raise ValueError(f"groups must be of {', '.join(GROUPS)}, got {min(unknown)!r}")
    with isolated(0):
        subject = Subject(task, datamodule, settings, seconds)
    try:
        return run_checks(subject, groups, only)
    finally:
        subject.close()
