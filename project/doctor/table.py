"""A report on the terminal."""

import shlex
from pathlib import Path

from rich.console import Console
from rich.table import Table

from project.doctor.report import Report
from project.report import program

COLORS = {"FAIL": "bold red", "WARN": "yellow"}


def show(report: Report, picture: Path | None, output: Path | None = None) -> None:
    """Print what needs a look, FAIL first, what was skipped and why, and how many there are.

    Args:
        report: All findings.
        picture: Folder of the event file with a training batch.
        output: The file that holds all findings, if there is one.
    """
    console = Console(highlight=False)
    notable = report.of("FAIL") + report.of("WARN")
    if console.is_terminal and notable:
        table = Table(box=None, show_header=False, padding=(0, 2, 1, 0))
        for found in notable:
            advice = f"\n→ {_plain(found.advice)}" if found.advice else ""
            text = f"[bold]{found.check}[/]\n{_plain(found.evidence)}{advice}"
            table.add_row(f"[{COLORS[found.status]}]{found.status}[/]", text)
        console.print(table)
    else:
        for found in notable:
            console.print(f"{found.status}  {found.line}", markup=False, soft_wrap=True)
    for line in report.skipped():
        console.print(f"SKIP  {line}", markup=False, soft_wrap=True)
    console.print(report.counts(), markup=False)
    if output is not None:
        console.print(f"All findings: {output}", markup=False, soft_wrap=True)
    if picture is not None:
        command = f"{program('tensorboard')} --logdir {shlex.quote(str(picture.parent))}"
        line = f"A training batch with its labels: {command}"
        console.print(line, markup=False, soft_wrap=True)


def _plain(text: str) -> str:
    return text.replace("[", "\\[")
