"""Saving at any batch boundary so that the run can go on exactly from there."""

from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback, WeightAveraging


def save_resumable(trainer: L.Trainer, file: Path | str) -> None:
    """Save a checkpoint from which the run goes on exactly; all processes have to call it.

    For hooks at the end of a batch, in training and in validation; a validation that is interrupted
    is done again from its beginning. Call it after all other callbacks: those that derive from
    ``lightning.pytorch.callbacks.Checkpoint`` come last. ``ExactResume`` must be among them.

    Args:
        trainer: In ``fit``.
        file: Where to.
    """
    averaging = [c for c in _callbacks(trainer) if isinstance(c, WeightAveraging)]
    # In a validation the module holds the averaged weights, and they hold the module's.
    swapped = [c for c in averaging if trainer.validating and c._average_model is not None]
    for callback in swapped:
        callback._swap_models(trainer.lightning_module)
    trainer.save_checkpoint(file, weights_only=False)  # None would be talked about
    for callback in swapped:
        callback._swap_models(trainer.lightning_module)


def _callbacks(trainer: L.Trainer) -> list[Callback]:
    found: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return found
