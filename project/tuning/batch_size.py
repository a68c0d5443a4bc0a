"""The largest batch that fits, and the one to take."""

from collections.abc import Callable, Sized
from dataclasses import dataclass, field

import torch

from project.memory_left import available_memory
from project.mistakes import RunFailed
from project.tuning.bench import Bench, Speed

# A batch is never larger than the training set, and what is recommended leaves an epoch this many
# steps: with fewer, a run of the same epochs learns less however fast it is.
STEPS_PER_EPOCH = 50
ENOUGH = 0.9  # of the best rate
SLOW = 10.0  # seconds: a larger batch that takes longer is of no use to anybody
SHARE = 0.8  # of the memory that is left; a system without memory kills
FINE = 1.1  # the largest that fits is found to 10 %


@dataclass
class Sizes:
    """What was found.

    Args:
        now: The batch size of the recipe.
        samples: Of the training set.
        tried: By batch size; what did not fit is not there.
        end: Why no larger one was tried.
    """

    now: int
    samples: int
    tried: dict[int, Speed] = field(default_factory=dict)
    end: str = ""

    @property
    def largest(self) -> int:
        """The largest that fits."""
        return max(self.tried)

    @property
    def best(self) -> int:
        """The smallest that is about as fast as any that leaves an epoch enough steps."""
        most = max(self.now, self.samples // STEPS_PER_EPOCH)
        rates = {size: speed.rate for size, speed in self.tried.items() if size <= most}
        enough = [size for size in rates if rates[size] >= ENOUGH * max(rates.values())]
        return self.now if self.now in enough else min(enough)


def measure(bench: Bench, progress: Callable[[str], None]) -> Sizes | None:
    """Double the batch until it no longer fits, then look in between.

    Args:
        bench: Trains.
        progress: Is told what is tried.

    Returns:
        None if the data know no batch size, or do not know how many they are.

    Raises:
        RunFailed: If no batch fits.
    """
    now = getattr(bench.data, "batch_size", None)
    if not isinstance(now, int) or getattr(bench.loader(batch_size=1), "batch_size", None) != 1:
        return None
    dataset = getattr(bench.loader(), "dataset", None)
    if not isinstance(dataset, Sized):
        return None
    samples = len(dataset)
    found = Sizes(min(now, samples), samples)
    good, bad, size = 0, 0, found.now
    while True:
        progress(f"batch size {size}")
        if _fits(bench, found, size):
            good, size = size, size * 2
        else:
            bad, size = size, size // 2
        if bad:
            size = (good + bad) // 2
        size = min(size, found.samples)
        if not size:
            raise RunFailed("Not even a batch of one sample fits in the memory.")
        if size <= good or (bad and bad <= FINE * good) or found.end:
            return found


def _fits(bench: Bench, found: Sizes, size: int) -> bool:
    """Try a batch size; on the CPU only if that is safe."""
    if not bench.on_cuda:
        wanted, left = _wanted(found, size), available_memory()
        if left is not None and wanted > SHARE * left:
            return False
    try:
        speed = bench.speed(warm_up=1, steps=4, seconds=2.0, batch_size=size)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not isinstance(error, torch.OutOfMemoryError) and "memory" not in str(error):
            raise
        torch.cuda.empty_cache()
        return False
    found.tried[size] = speed
    if speed.step > SLOW:
        found.end = f"a step takes {speed.step:.0f} s"
    return True


def _wanted(found: Sizes, size: int) -> float:
    """Return the bytes that a batch will need, going by those that were tried."""
    if not found.tried:
        return 0.0
    largest = max(found.tried)
    return found.tried[largest].memory * size / largest


def implied_rate(rate: float, optimizer: type, factor: float) -> tuple[float, str]:
    """Return the learning rate for a batch that is ``factor`` times as large, and the rule.

    Linear for SGD (Goyal et al. 2017, arXiv:1706.02677); the square root for optimizers that divide
    by the gradient's size (Malladi et al. 2022, arXiv:2205.10287).
    """
    if issubclass(optimizer, torch.optim.SGD):
        return rate * factor, "linear"
    return rate * factor**0.5, "square root"
