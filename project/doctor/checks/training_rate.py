"""The learning rate against a quick range test."""

import math
from dataclasses import dataclass
from typing import Any

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.training_runs import AtRate, each, loss_of, mean, real_loop, rehearsed

STEPS, BATCHES = 24, 4
# Falls of the loss, as shares of what it was.
LITTLE, GOOD = 0.05, 0.2
SHOT = 2.0  # times the loss at the start
SLOW = 0.1  # seconds per step from which on a part of each batch must do


@dataclass
class Tried:
    """What a short training at one learning rate has brought.

    Args:
        first: Loss of the batches at the start.
        last: Loss of the same batches in the end; inf where it is not finite.
        worst: The largest loss on the way.
    """

    first: float
    last: float
    worst: float

    @property
    def fall(self) -> float:
        """By which share the loss has fallen."""
        return (self.first - self.last) / max(abs(self.first), 1e-12)

    @property
    def shoots(self) -> bool:
        """Whether the loss was far above its start on the way."""
        return not self.worst < SHOT * abs(self.first)

    def __str__(self) -> str:
        way = f" -> {self.worst:.3g}" if self.shoots and self.worst > self.last else ""
        return f"{self.first:.3g}{way} -> {self.last:.3g}"


def _attempt(subject: Subject, batches: list[Any], factor: float, first: float) -> Tried:
    """Train on a few batches at a multiple of the schedule's peak, after a short rise.

    Raises:
        Skip: If the time is over before all steps are done.
    """
    lesson = subject.train(
        steps=STEPS,
        batches=batches,
        callbacks=[AtRate(subject, factor, warmup=8)],
        accumulate_grad_batches=1,
        limit_val_batches=0,
    )
    if len(lesson.losses) < STEPS:
        raise Skip(f"only {len(lesson.losses)} losses in the time of the check")
    if not all(map(math.isfinite, lesson.losses)):
        return Tried(first, math.inf, math.inf)
    return Tried(first, mean(lesson.losses[-len(batches) :]), max(lesson.losses))


@check("training", seconds=10)
def learning_rate(subject: Subject) -> Finding:
    """The peak learning rate is neither a decade too high nor too low."""
    run, lesson = rehearsed(subject), real_loop(subject)
    peak = max(run.peaks, default=0.0)
    if len(run.optimizers) != 1:
        raise Skip(f"the task has {len(run.optimizers)} optimizers")
    if peak == 0:
        raise Skip("the learning rate is 0 all along")
    batches = subject.batches("train", BATCHES)
    if lesson.seconds / max(1, len(lesson.losses)) > SLOW:
        batches = [each(batch, lambda rows: rows[: max(4, len(rows) // 4)]) for batch in batches]
    first = loss_of(subject, batches)
    own = _attempt(subject, batches, 1.0, first)
    if own.fall >= GOOD and not own.shoots:
        return passed(f"at lr {peak:.3g} the loss falls in {STEPS} steps: {own}")
    if (high := _too_high(subject, batches, own, peak)) is not None:
        return high
    if own.fall < LITTLE and (low := _too_low(subject, batches, own, peak)) is not None:
        return low
    return passed(f"at lr {peak:.3g}: {own}")


def _too_high(subject: Subject, batches: list[Any], own: Tried, peak: float) -> Finding | None:
    for factor in (0.1, 0.01, 0.001):
        less = _attempt(subject, batches, factor, own.first)
        said = f"in {STEPS} steps the loss goes {own} at lr {peak:.3g}, "
        said += f"{less} at lr {factor * peak:.3g}"
        bad = own.shoots or (own.fall < LITTLE and less.fall > own.fall + 0.1)
        enough = LITTLE if own.fall < -1 else GOOD
        if bad and less.fall > enough and less.fall >= own.fall - LITTLE and not less.shoots:
            sure = own.fall < LITTLE or own.worst > 2 * SHOT * abs(own.first)
            return (fail if sure else warn)(
                f"the learning rate is too high: {said}", f"Try {factor * peak:.2g}."
            )
        if less.fall > max(2 * own.fall, 0.4):
            return warn(f"the learning rate is too high: {said}", f"Try {factor * peak:.2g}.")
        if not own.shoots and (0 < less.fall < own.fall or own.fall >= LITTLE):  # no better
            return None
    return None


def _too_low(subject: Subject, batches: list[Any], own: Tried, peak: float) -> Finding | None:
    # What the whole run would bring if it went on like this.
    reach = max(own.fall, 0.0) * rehearsed(subject).steps / STEPS
    if reach > 1:
        return None
    ten = more = _attempt(subject, batches, 10.0, own.first)
    factor = 10
    while more.fall < GOOD and factor < 1e5:
        factor *= 10
        more = _attempt(subject, batches, factor, own.first)
    if factor == 10:  # the whole run has time for that
        factor, more = 100, _attempt(subject, batches, 100.0, own.first)
    if more.fall < GOOD or ten.fall > 0.5 * more.fall:
        return None
    frozen = any(not p.requires_grad for p in rehearsed(subject).module.parameters())
    if frozen and ten.fall > LITTLE:  # the few that are trained may need many steps
        return None
    said = (
        f"the learning rate is too low: in {STEPS} steps the loss goes {own} at lr {peak:.3g}, "
        f"{ten} at {10 * peak:.3g} and {more} at {factor * peak:.3g}"
    )
    sure = reach < 0.2 and ten.fall < 2 * LITTLE
    return (fail if sure else warn)(said, f"Try {factor * peak / 3:.1g}.")
