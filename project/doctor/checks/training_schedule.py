"""Schedules, moved through the whole run without training."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.training_runs import Rehearsal, Schedule, rehearsed

DEAD = 1e-4  # share of the peak below which a learning rate trains nothing


def _run(subject: Subject) -> Rehearsal:
    """Return the rehearsal of a run whose length is known.

    Raises:
        Skip: If it is not.
    """
    said = subject.trainer_settings
    if said.get("max_epochs") in (None, -1) and said.get("max_steps") in (None, -1):
        raise Skip("the settings give the run no end")
    devices = said.get("devices", 1)
    if devices not in (1, "1", None, "auto", [0]):
        raise Skip(f"devices is {devices}: the steps of such a run are other ones")
    return rehearsed(subject)


@check("training")
def learning_rate_is_not_zero(subject: Subject) -> Iterator[Finding]:
    """Some learning rate is above 0, from the first epoch on."""
    run = rehearsed(subject)
    if run.peaks and max(run.peaks) <= 0:
        yield fail(
            "the learning rate is 0 all along",
            "Give the optimizer an lr above 0; look at what multiplies it in the schedule.",
        )
        return
    for schedule in run.schedules:
        curve = schedule.curve()
        zeros = next((i for i, lr in enumerate(curve) if lr > 0), 0)
        if zeros > 1 and zeros >= min(run.per_epoch, 0.05 * len(curve)):
            yield fail(
                f"{schedule.name} keeps the learning rate at 0 for the first {zeros} of "
                f"{len(curve)} steps",
                "Begin the warm-up above 0, e.g. with (step + 1) / warmup_steps.",
            )


@check("training")
def schedule_fits_the_run(subject: Subject) -> Iterator[Finding]:
    """Warm-up and schedule reach their ends in the planned steps."""
    run = _run(subject)
    if run.manual:
        raise Skip("with manual optimization the task moves its schedules itself")
    for schedule in run.schedules:
        if schedule.watches:
            continue
        if schedule.error:
            yield fail(
                f"{schedule.name} fails after {schedule.moves} moves; the run has {run.steps} "
                f"steps and {run.epochs} epochs: {schedule.error}",
                "Take its length from trainer.estimated_stepping_batches.",
            )
        elif run.complete:
            found = _by_end(schedule, run) or _by_curve(schedule, run)
            yield found or passed(f"{schedule.name}: {schedule.moves} moves")
        elif found := _by_end(schedule, run):
            yield found


def _other(interval: str) -> str:
    return "epoch" if interval == "step" else "step"


def _count(run: Rehearsal, interval: str) -> int:
    return run.epochs if interval == "epoch" else run.steps


def _by_end(schedule: Schedule, run: Rehearsal) -> Finding | None:
    """Compare the moves that a schedule is made for with those that the run has."""
    end, interval = schedule.end, str(schedule.config.interval)
    moves = _count(run, interval) // int(schedule.config.frequency)
    if end is None or 0.8 * end <= moves <= 1.25 * end:
        return None
    said = (
        f"{schedule.name} is made for {end} moves; at interval {interval!r} the run of "
        f"{run.epochs} epochs, {run.steps} steps, has {moves}"
    )
    curve = schedule.curve()
    if run.complete and curve:
        said += f", and the learning rate ends at {curve[-1] / max(max(curve), 1e-30):.0%} of peak"
    other = _other(interval)
    closer = abs(_count(run, other) - end) < 0.5 * min(end, abs(moves - end))
    if closer:
        return fail(said, f"Set its interval to {other!r} in what configure_optimizers returns.")
    if moves > end and isinstance(schedule.config.scheduler, CosineAnnealingLR):
        said += " after rising again"
    return warn(said, f"Make it {moves} moves long.")


def _by_curve(schedule: Schedule, run: Rehearsal) -> Finding | None:
    """Look at the learning rates themselves."""
    curve, interval = schedule.curve(), str(schedule.config.interval)
    peak = max(curve, default=0.0)
    if len(curve) < 4 or peak <= 0 or run.epochs < 2:
        return None
    dead = sum(lr < DEAD * peak for lr in curve[curve.index(peak) :])
    if dead > 0.4 * len(curve):
        return fail(
            f"{schedule.name} brings the learning rate below {DEAD:g} of its peak for {dead} of "
            f"the run's {len(curve)} steps, moving once per {interval}",
            f"Set its interval to {_other(interval)!r}, or let it fall more slowly.",
        )
    before = curve[int(0.75 * len(curve))]
    if curve[-1] >= peak * 0.999 and before < 0.999 * peak and curve[-1] > 1.2 * curve[0]:
        return fail(
            f"{schedule.name} still warms up when the run of {run.steps} steps ends: learning "
            f"rate {curve[0]:.3g} -> {curve[-1]:.3g}, moving once per {interval}",
            "Make the warm-up shorter than the run, and count it in what the schedule moves by.",
        )
    if (found := _by_factor(schedule, run)) is not None:
        return found
    falling = [lr for lr in curve if lr < 0.01 * peak]
    if interval == "step" and schedule.end is None and len(falling) > 0.4 * len(curve):
        return warn(
            f"{schedule.name}, moving once per step, has the learning rate below 1 % of its peak "
            f"for {len(falling)} of the run's {len(curve)} steps",
            "Set its interval to 'epoch', or let it fall more slowly.",
        )
    if curve.index(peak) > 0.6 * len(curve):
        return warn(
            f"{schedule.name} reaches its peak only at step {curve.index(peak)} of {len(curve)}",
            "Make the warm-up shorter.",
        )
    if min(curve) > 0.99 * peak:
        return warn(
            f"{schedule.name} changes the learning rate by less than 1 % in the whole run of "
            f"{run.epochs} epochs, {run.steps} steps, moving once per {interval}",
            f"Count it in {interval}s, set its interval to {_other(interval)!r}, or leave it out.",
        )
    return None


def _by_factor(schedule: Schedule, run: Rehearsal) -> Finding | None:
    """Tell by a function of the step that it is moved once an epoch."""
    scheduler, curve = schedule.config.scheduler, schedule.curve()
    if not isinstance(scheduler, LambdaLR) or str(schedule.config.interval) == "step":
        return None
    if min(curve) < 0.8 * max(curve):
        return None
    with contextlib.suppress(Exception):  # a function that is for fewer moves
        factors = [float(scheduler.lr_lambdas[0](step)) for step in range(run.steps)]
        if factors[-1] < 0.2 * max(factors):
            return fail(
                f"{schedule.name}, moving once per epoch, ends at {curve[-1] / max(curve):.0%} of "
                f"its peak; moving once per step it would end at {factors[-1] / max(factors):.0%}",
                "Set its interval to 'step' in what configure_optimizers returns.",
            )
    return None


@check("training", seconds=8)
def schedule_is_stepped(subject: Subject) -> Finding:
    """A schedule that is built is also moved."""
    built: list[LRScheduler] = []
    usual: Any = LRScheduler.__init__

    def note(self: LRScheduler, *args: Any, **kwargs: Any) -> None:
        built.append(self)
        usual(self, *args, **kwargs)

    LRScheduler.__init__ = note  # type: ignore[method-assign]
    try:
        lesson = subject.train(steps=4, max_epochs=2, max_steps=-1, limit_train_batches=2)
    finally:
        LRScheduler.__init__ = usual  # type: ignore[method-assign]
    if not built:
        raise Skip("the task has no schedule")
    if lesson.ended_early or lesson.trainer.current_epoch < 2:
        raise Skip("two epochs take too long")
    manual = not lesson.task.automatic_optimization
    if lesson.trainer.lr_scheduler_configs and not manual:
        return passed("Lightning moves them")
    if all(scheduler._step_count <= 1 for scheduler in built) and not _moved(lesson.lrs):
        name = type(built[-1]).__name__
        return fail(
            f"{name} is built, but has not moved in two epochs",
            "Manual optimization: call self.lr_schedulers().step()."
            if manual
            else "Return it from configure_optimizers: {'optimizer': …, 'lr_scheduler': …}.",
        )
    return passed(f"{len(built)} schedulers")


def _moved(lrs: list[list[float]]) -> bool:
    return any(not torch.equal(torch.tensor(lrs[0]), torch.tensor(rates)) for rates in lrs)
