"""Callbacks for tests, given as ``--trainer.callbacks+=watch.…``."""

import torch
from lightning.pytorch.callbacks import Callback


class Script(Callback):
    """Makes ``val/loss`` what a list says, validation by validation."""

    def __init__(self, losses: list[float]):
        self.losses = losses

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            loss = self.losses[min(trainer.current_epoch, len(self.losses) - 1)]
            trainer.callback_metrics["val/loss"] = torch.tensor(loss)
