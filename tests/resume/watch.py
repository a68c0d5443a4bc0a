"""Callbacks for tests, given as ``--trainer.callbacks+=watch.…``."""

import torch
from lightning.pytorch.callbacks import Callback


class Script(Callback):
    """Makes ``val/loss`` what a list says, validation by validation."""

    def __init__(self, losses: list[float]):
        self.losses = losses

    def on_validation_epoch_end(self, trainer, module):
        """Just before the module works it out."""
        loss = self.losses[min(trainer.current_epoch, len(self.losses) - 1)]
        tally = module._eval_tally
        tally._loss = torch.tensor(loss, dtype=torch.float64) * tally.confusion_matrix.sum()
