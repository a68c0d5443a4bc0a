"""Which precision and memory order train fastest."""

import copy
from typing import NamedTuple

import torch
from torch import nn

from project.tuning.bench import Bench

ENOUGH = 0.9  # of the best rate: what changes less is taken
WARM_UP, STEPS, SECONDS = 5, 100, 2.0
ROUNDS = 2  # the better one counts, for something else may have run meanwhile
_FLOAT32, _HALF = "32-true", "bf16-mixed"


class Kind(NamedTuple):
    """A way to compute.

    Args:
        precision: The trainer's.
        channels_last: Whether images and convolutions are ``(B, H, W, C)`` in memory.
    """

    precision: str
    channels_last: bool

    def __str__(self) -> str:
        return self.precision + " channels_last" * self.channels_last


def kinds(bench: Bench) -> list[Kind]:
    """Return what is tried: what is configured, then what changes more and more.

    Nothing else where another precision was chosen than these two, where the GPU has no bfloat16,
    and where the task knows no ``channels_last`` or its network has no convolution on images.
    """
    given, task = str(bench.settings.get("precision") or _FLOAT32), bench.task
    now = Kind(_FLOAT32 if given == "32" else given, bool(getattr(task, "channels_last", False)))
    if now.precision not in (_FLOAT32, _HALF):
        return [now]
    convolves = any(isinstance(part, nn.Conv2d) for part in task.modules())
    orders = [now.channels_last]
    if hasattr(task, "channels_last") and convolves and not now.channels_last:
        orders.append(True)
    precisions = [now.precision]
    if not bench.on_cuda or torch.cuda.is_bf16_supported(including_emulation=False):
        precisions.append(_FLOAT32 if now.precision == _HALF else _HALF)
    return [Kind(precision, order) for precision in precisions for order in orders]


def measure(bench: Bench) -> dict[Kind, float]:
    """Return samples per second of every way that works, what is configured first."""
    now, *others = kinds(bench)
    found: dict[Kind, float] = {}
    for kind in [now, *others] * (ROUNDS if others else 0):
        try:
            rate = otherwise(bench, kind).speed(WARM_UP, STEPS, SECONDS).rate
        except RuntimeError:  # e.g. an operation that bfloat16 has not got
            if kind == now:
                raise
            continue
        found[kind] = max(rate, found.get(kind, 0.0))
    return found


def best(rates: dict[Kind, float]) -> Kind:
    """Return the first that is as fast as any."""
    return next(kind for kind, rate in rates.items() if rate >= ENOUGH * max(rates.values()))


def otherwise(bench: Bench, kind: Kind) -> Bench:
    """Return a bench that computes so; the one given stays as it is."""
    made = copy.copy(bench)
    made.settings = {**bench.settings, "precision": kind.precision}
    if kind.channels_last and not getattr(bench.task, "channels_last", True):
        with torch.no_grad():
            made.task = copy.deepcopy(bench.task).to(memory_format=torch.channels_last)
        vars(made.task)["channels_last"] = True
    return made
