"""Early stopping that can change its mind until the run may stop."""

import lightning as L
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason


class EarlyStopping(callbacks.EarlyStopping):
    """Lightning's EarlyStopping, which decides nothing before ``min_epochs`` and ``min_steps``.

    Lightning's own remembers it: a metric that was flat early and then recovers ends the run as
    soon as ``min_epochs`` is reached. Settings: see ``lightning.pytorch.callbacks.EarlyStopping``.
    """

    _stops = False  # whether `trainer.should_stop` is this callback's doing

    def _run_early_stopping_check(self, trainer: L.Trainer) -> None:
        others = trainer.should_stop and not self._stops
        trainer.should_stop = False
        super()._run_early_stopping_check(trainer)
        self._stops = trainer.should_stop and _may_stop(trainer)
        trainer.should_stop = others or self._stops
        if not self._stops:
            self.stopped_epoch = 0
            self.stopping_reason = EarlyStoppingReason.NOT_STOPPED
            self.stopping_reason_message = None


def _may_stop(trainer: L.Trainer) -> bool:
    """Whether the run may stop at the end of this epoch."""
    return (trainer.current_epoch + 1 >= (trainer.min_epochs or 0)) and (
        trainer.global_step >= (trainer.min_steps or 0)
    )
