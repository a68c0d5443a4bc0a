"""How many workers training wants."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset

from project import cores
from project.tuning.bench import Bench, silence

ENOUGH = 0.9  # of the best rate: more workers would only take memory
WARM_UP, STEPS, SECONDS = 5, 100, 2.0
ROUNDS = 2  # the better one counts, for something else may have run meanwhile


def counts(most: int) -> list[int]:
    """Return what is tried: none, and powers of two up to ``most``."""
    return [0, *(2**power for power in range(most.bit_length()) if 2**power <= most)]


def measure(bench: Bench) -> dict[int, float]:
    """Return samples per second by number of workers, nothing if the data know no such number."""
    found: dict[int, float] = {}
    if not isinstance(getattr(bench.data, "num_workers", None), int):
        return found
    for count in counts(cores.workers()) * ROUNDS:
        try:
            heeded = getattr(bench.loader(num_workers=count), "num_workers", None) == count
        except ValueError:  # e.g. a prefetch_factor, which needs workers
            continue
        if heeded:
            speed = bench.speed(WARM_UP, STEPS, SECONDS, num_workers=count)
            found[count] = max(speed.rate, found.get(count, 0.0))
    return found if len(found) > 1 else {}


def repeats(bench: Bench) -> bool:
    """Whether every worker gives all samples of a stream, so that more of them train no faster.

    Two workers deal out batches in turn: the first ones are equal then, and the later ones others.
    """
    with silence():
        loader = bench.loader(num_workers=2)
        if not isinstance(getattr(loader, "dataset", None), IterableDataset):
            return False
        batches = list(itertools.islice(loader, 4))
    return len(batches) == 4 and _same(*batches[:2]) and not _same(batches[0], batches[2])


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return _same(list(one.values()), list(other.values()))
    if isinstance(one, Sequence) and not isinstance(one, str):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def best(rates: dict[int, float]) -> int:
    """Return the smallest number that is as good as any."""
    return min(count for count, rate in rates.items() if rate >= ENOUGH * max(rates.values()))
