"""Averages of weights, such as Lightning's EMAWeightAveraging, are what they are taken for."""

from collections.abc import Iterator
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, WeightAveraging


class AveragingGuard(Callback):
    """See to it that a callback which averages weights never stands in with other ones.

    While its first update is still to come (``update_starting_at_step``), Lightning's average is
    the network before training: it would be validated, saved and kept at the end. And after the
    training a test of the best checkpoint would get the raw weights instead of the average.
    """

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Validate the weights themselves while there is no average."""
        _follow(trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Let a training that ends before the first update end with its weights."""
        _follow(trainer, pl_module)

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the weights themselves while there is no average."""
        if any(_is_idle(callback) for callback in _averaging(trainer)):
            raw = checkpoint.get("current_model_state", checkpoint["state_dict"])
            checkpoint["state_dict"] = raw

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Drop the average, which the module has got: from here on a checkpoint's weights count."""
        for callback in _averaging(trainer):
            callback._average_model = None


def _averaging(trainer: L.Trainer) -> Iterator[WeightAveraging]:
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, WeightAveraging) and callback._average_model is not None:
            yield callback


def _is_idle(callback: WeightAveraging) -> bool:
    return callback._average_model is not None and not int(callback._average_model.n_averaged)


def _follow(trainer: L.Trainer, pl_module: L.LightningModule) -> None:
    for callback in _averaging(trainer):
        if _is_idle(callback):
            assert callback._average_model is not None
            callback._average_model.module.load_state_dict(pl_module.state_dict())
