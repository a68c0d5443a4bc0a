"""A report on the terminal."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from project.doctor.report import Report

COLORS = {"FAIL": "bold red", "WARN": "yellow"}


def show(report: Report, picture: Path | None) -> None:
    """Print each finding that is neither PASS nor SKIP, FAIL first, and how many there are."""
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
    console.print(report.counts(), markup=False)
    if picture is not None:
        line = f"A training batch with its labels: tensorboard --logdir {picture.parent}"
        console.print(line, markup=False, soft_wrap=True)


def _plain(text: str) -> str:
    return text.replace("[", "\\[")
