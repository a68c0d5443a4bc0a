"""How many workers training wants."""

from project import cores
from project.tuning.bench import Bench

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


def best(rates: dict[int, float]) -> int:
    """Return the smallest number that is as good as any."""
    return min(count for count, rate in rates.items() if rate >= ENOUGH * max(rates.values()))
