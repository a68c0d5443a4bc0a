"""A learning-rate range test: the rate rises from step to step until the loss does, too.

Smith 2017, Cyclical Learning Rates for Training Neural Networks, arXiv:1506.01186.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from project.tuning.bench import Bench, stop_schedules

LOW, HIGH, STEPS = 1e-6, 10.0, 120
WIDTH = 6  # steps to either side that smooth a loss
RISE = 3.0  # times the lowest loss: beyond, nothing is learned
FALL = 0.05  # share of the first loss: less may be another batch
STILL = 1e-4  # learning rate up to which hardly anything is learned: what changes is noise
# Standard deviations of the loss from batch to batch that a fall must have. Measured on digits and
# Fashion-MNIST: labels drawn by lot 0.2 to 2.3, right ones in batches of 8 and more 5.7 to 280.
CLEAR = 4.0
FAR = 0.5  # share of the first loss: so far no loss falls by chance, however it varies
NEARLY = 0.95  # of the whole fall
LOOK = 5  # steps between two looks at the losses, each of which makes a GPU wait


@dataclass
class Range:
    """What the test has shown.

    Args:
        rates: Learning rate of every step.
        losses: Loss of every step.
        smooth: The same, smoothed.
        rate: The suggestion; None if the loss fell no more than by chance.
    """

    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    smooth: list[float] = field(default_factory=list)
    rate: float | None = None


class _Ramp(Callback):
    """Raises the learning rate of all groups, keeping their ratio, whatever a schedule says."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.losses: list[Tensor] = []
        self.done = 0  # batches

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note the ratio of the groups, from before a schedule's warm-up."""
        self.groups = [group for one in trainer.optimizers for group in one.param_groups]
        peaks = [float(group.get("initial_lr", group["lr"])) for group in self.groups]
        self.shares = [peak / (max(peaks) or 1.0) for peak in peaks]
        self.batches = trainer.accumulate_grad_batches  # of a step
        stop_schedules(trainer)

    def on_train_batch_start(self, *_: object) -> None:
        """Set the rate of this step."""
        self.rates.append(LOW * (HIGH / LOW) ** (self.done // self.batches / (STEPS - 1)))
        for group, share in zip(self.groups, self.shares, strict=True):
            group["lr"] = self.rates[-1] * share

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Note the loss; end the test when it has risen."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is None:  # a batch that was left out
            self.rates.pop()
        else:
            self.losses.append(torch.as_tensor(loss).detach())
        self.done += 1
        over = self.done >= STEPS * self.batches
        trainer.should_stop = over or (self.done % LOOK == 0 and self._has_risen())

    def _has_risen(self) -> bool:
        if not self.losses:
            return False
        losses = torch.stack(self.losses).float().cpu().tolist()
        if not math.isfinite(losses[-1]):
            return True
        smooth = smoothed(losses)
        return smooth[-1] > RISE * abs(min(smooth)) and smooth[-1] > smooth[0]


def measure(bench: Bench, **changes: Any) -> Range:
    """Run the test on a copy of the task.

    Args:
        bench: Trains.
        changes: Attributes of the data module that are to be otherwise.
    """
    ramp = _Ramp()
    bench.train(ramp, **changes)
    losses = [float(loss) for loss in ramp.losses]
    end = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), len(losses))
    found = Range(ramp.rates[:end], losses[:end], smoothed(losses[:end]))
    found.rate = suggested(found.rates, found.losses)
    return found


def smoothed(losses: list[float]) -> list[float]:
    """Return the mean around every loss, nearer ones counting more; it lags behind nothing."""
    found = []
    for here in range(len(losses)):
        near = range(max(0, here - WIDTH), min(len(losses), here + WIDTH + 1))
        weights = [WIDTH + 1 - abs(there - here) for there in near]
        whole = sum(w * losses[there] for w, there in zip(weights, near, strict=True))
        found.append(whole / sum(weights))
    return found


def spread(losses: list[float]) -> float:
    """Return the standard deviation of losses, without what they rise or fall as a whole."""
    return math.sqrt(fmean((b - a) ** 2 for a, b in pairwise(losses)) / 2)


def suggested(rates: list[float], losses: list[float]) -> float | None:
    """Return half of the first rate that brings nearly all that any brings; None if none does.

    Not that of the lowest loss, which may stay low for decades: the next are already too high.
    """
    if len(losses) < 2:
        return None
    smooth = smoothed(losses)
    still = losses[: max(2, sum(rate <= STILL for rate in rates))]
    first = fmean(still)
    fall = first - min(smooth)
    if not fall > max(FALL * abs(first), min(FAR * abs(first), CLEAR * spread(still))):
        return None
    enough = next(i for i, loss in enumerate(smooth) if first - loss >= NEARLY * fall)
    return float(f"{rates[enough] / 2:.2g}")
