"""What was measured, as tables of one screen."""

import math

from rich.console import Console
from rich.table import Table

from project import cores
from project.profiling.memory import Held
from project.profiling.parts import PARTS
from project.profiling.session import Found

ROWS = 10


def show(found: Found) -> None:
    """Print where the time of a step goes, the dearest operators, and the memory by module."""
    console = Console(highlight=False, soft_wrap=True)
    rate = f"{found.samples / found.free:,.0f} samples per second"
    console.print(f"A step of {found.samples} samples takes {_ms(found.free)} ms: {rate}")
    for table in (_parts(found), _operators(found), _modules(found)):
        console.print(table)
        console.print()
    where = "device's memory" if found.busy is not None else "memory of the process"
    console.print(f"Peak   {_size(found.peak) if found.peak else 'unknown'}, {where}")
    console.print(f"Trace  {found.trace}, for https://ui.perfetto.dev", markup=False)
    if cores.crowded():
        console.print(f"Others compute on these cores, too: see {cores.SHARED} in README.md")


def _parts(found: Found) -> Table:
    table = _table("part of a step", "ms", "%", "")
    for part, seconds in found.parts.items():
        table.add_row(part, _ms(seconds), _share(seconds, found.step), PARTS[part][1])
    if found.busy is not None:
        idle = max(0.0, found.free - found.busy)
        table.add_row("device idle", _ms(idle), _share(idle, found.free), "of a step as it is")
        table.add_row("waiting", _ms(found.step), "", "step when each part waits for the device")
    return table


def _operators(found: Found) -> Table:
    table = _table("dearest operators", "ms", "%", "calls")
    whole = sum(seconds for *_, seconds in found.operators)
    for name, calls, seconds in found.operators[:ROWS]:
        short = name if len(name) <= 44 else name[:43] + "…"
        table.add_row(short, _ms(seconds), _share(seconds, whole), f"{calls:.3g}")
    return table


def _modules(found: Found) -> Table:
    columns = ("parameters", "gradients", "optimizer", "activations")
    table = _table("memory", *columns, "all")
    order = sorted(found.held.items(), key=lambda item: -item[1].total)
    whole = Held()
    for held in found.held.values():
        for name in columns:
            setattr(whole, name, getattr(whole, name) + getattr(held, name))
    for name, held in [("all modules", whole), *order[:ROWS]]:
        sizes = [_size(getattr(held, column)) for column in columns]
        table.add_row(name or "the task itself, its loss", *sizes, _size(held.total))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 or not name else "right")
    return table


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}" if seconds < 1 else f"{1000 * seconds:,.0f}"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}" if whole else ""


def _size(count: float) -> str:
    if not count:
        return ""
    power = min(3, int(math.log(count, 1000)))
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB')[power]}"
