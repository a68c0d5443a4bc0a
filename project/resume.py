"""Going on with a run, and beginning a new one with the weights of another."""

from collections.abc import Collection
from copy import copy
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Timer

from project.mistakes import UserError
from project.runs import Run


def already_done(run: Run, trainer: dict[str, Any], changed: Collection[str]) -> str | None:
    """Say in a line why there is nothing to go on with, or nothing.

    Args:
        run: The run that is to go on.
        trainer: The settings of the trainer at hand.
        changed: The settings that differ from the run's.
    """
    if run.state != "finished":
        return None
    epoch, step = run.record.get("epoch", 0), run.record.get("step", 0)
    max_epochs, max_steps = trainer.get("max_epochs"), trainer.get("max_steps", -1)
    if max_steps is not None and 0 <= max_steps <= step:
        return f"The run is already at step {step} of {max_steps}: raise --trainer.max_steps."
    if max_epochs is not None and 0 <= max_epochs <= epoch:
        return (
            f"The run is already at epoch {epoch} of {max_epochs} (step {step}): "
            "raise --trainer.max_epochs."
        )
    spent, limit = run.record.get("timed_out"), trainer.get("max_time")
    if spent and limit and (Timer(limit).time_remaining() or 0) <= spent:
        return (
            f"The run was stopped by --trainer.max_time at epoch {epoch} of {max_epochs} (step "
            f"{step}), after {spent:.0f} s: go on with --trainer.max_time null, or a longer one."
        )
    own = ("early_stopping", "trainer.callbacks")
    if run.record.get("stopped_early") and not any(name.startswith(own) for name in changed):
        return (
            f"The run stopped early at epoch {epoch} of {max_epochs} (step {step}): "
            "raise --early_stopping.patience, or --early_stopping null."
        )
    return None


def stopped_early(trainer: Trainer) -> bool:
    """Whether a training has ended before its last epoch or step."""
    limits = (
        (trainer.max_epochs, trainer.current_epoch),
        (trainer.max_steps, trainer.global_step),
    )
    reached = any(limit not in (None, -1) and at >= limit for limit, at in limits)
    return bool(trainer.should_stop and not reached)


def timed_out(trainer: Trainer) -> float | None:
    """Return after how many seconds a limit of time has ended a training; None if none has."""
    if not stopped_early(trainer):
        return None
    timers = [c for c in trainer.callbacks if isinstance(c, Timer)]  # type: ignore[attr-defined]
    left = {timer.time_elapsed(): timer.time_remaining() for timer in timers}
    return next((spent for spent, rest in left.items() if rest is not None and rest <= 0), None)


def load_weights(model: LightningModule, file: Path) -> list[str]:
    """Copy the weights that fit from a checkpoint; optimizer, epoch and step begin anew.

    Args:
        model: The task; changed in place.
        file: A checkpoint of Lightning, or a plain state dict.

    Returns:
        A line on each weight that was not copied, e.g. the head for another number of classes.

    Raises:
        UserError: If nothing fits.
    """
    content = torch.load(file, map_location="cpu", weights_only=True)
    given: dict[str, torch.Tensor] = content.get("state_dict", content)
    own = model.state_dict()
    fitting = copy(given)  # with what it says of the versions of layers
    for key, value in given.items():
        if not _fits(value, own.get(key)):
            del fitting[key]
    if not fitting:
        raise UserError(f"{file}: none of its {len(given)} weights fits the network at hand.")
    model.load_state_dict(fitting, strict=False)
    left = []
    for key in own.keys() | given.keys():
        if key not in fitting:
            left.append(f"{key}: {_shape(given, key)} in the file, {_shape(own, key)} here")
    return sorted(left)


def _fits(value: object, own: torch.Tensor | None) -> bool:
    return isinstance(value, torch.Tensor) and own is not None and value.shape == own.shape


def _shape(state: dict[str, torch.Tensor], key: str) -> str:
    return str(tuple(state[key].shape)) if key in state else "none"
