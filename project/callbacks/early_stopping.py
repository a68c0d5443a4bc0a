"""Early stopping that can change its mind until the run may stop."""

import math

import lightning as L
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.utilities import rank_zero_only

_FEW_STEPS = 5  # between two validations


class EarlyStopping(callbacks.EarlyStopping):
    """Lightning's EarlyStopping, which decides nothing before ``min_epochs`` and ``min_steps``.

    Lightning's own remembers it: a metric that was flat early and then recovers ends the run as
    soon as ``min_epochs`` is reached. Settings: see ``lightning.pytorch.callbacks.EarlyStopping``.
    """

    _stops = False  # whether `trainer.should_stop` is this callback's doing

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Say so where epochs are so short that patience is over after a few steps."""
        super().on_train_start(trainer, pl_module)
        every, batches = trainer.check_val_every_n_epoch, trainer.num_training_batches
        limit = trainer.limit_train_batches  # 1 is a batch, 1.0 all of them
        is_trial = isinstance(limit, int) or limit < 1
        if every is None or trainer.val_check_batch != batches or is_trial:
            return
        steps, end = batches / trainer.accumulate_grad_batches, trainer.max_epochs
        ends_first = end is not None and 0 < end <= self.patience * every
        if math.inf > steps and math.ceil(steps) * every < _FEW_STEPS and not ends_first:
            count = f"{math.ceil(steps)} step{'s' if steps > 1 else ''}"
            rank_zero_only(print)(
                f"An epoch is {count}: lower --data.batch_size or raise "
                f"--early_stopping.patience, now {self.patience}."
            )

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
