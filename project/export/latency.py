"""How long one batch takes: percentiles of many calls, and a table of them."""

import time
from collections.abc import Callable, Mapping

import numpy as np
from rich.console import Console
from rich.table import Table

SIZES = (1, 32)  # images in a batch: one request, and a full batch of a server
SECONDS = 5.0  # of measuring, for each row and batch size
_CALLS = 10, 1000  # at least and at most, however long or short one takes

Times = tuple[float, float]  # p50 and p99, in seconds


def measure(call: Callable[[], object], seconds: float = SECONDS) -> Times:
    """Return the median and the 99th percentile of a call's time, in seconds."""
    for _ in range(3):  # caches, memory pools
        call()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < _CALLS[0] or (time.perf_counter() < end and len(taken) < _CALLS[1]):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    p50, p99 = np.percentile(taken, [50, 99])
    return float(p50), float(p99)


def show(rows: Mapping[str, tuple[int, list[Times]]], threads: int) -> None:
    """Print a table.

    Args:
        rows: What was measured: bytes, and times for each of ``SIZES``.
        threads: That all of them computed with.
    """
    table = Table(f"{threads} CPU thread{'s' if threads > 1 else ''}", "size")
    for size in SIZES:
        for name in ("p50", "p99"):
            table.add_column(f"batch {size}\n{name}, ms", justify="right")
    for name, (count, times) in rows.items():
        cells = [f"{value * 1000:.2f}" for pair in times for value in pair]
        table.add_row(name, megabytes(count), *cells)
    Console(highlight=False).print(table)


def megabytes(count: int) -> str:
    """Say how large something of so many bytes is."""
    return f"{count / 1e6:.3g} MB"
