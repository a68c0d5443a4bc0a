"""Callbacks that end a process as a power cut would, given as ``--trainer.callbacks+=killer.…``."""

import os
import signal

from lightning.pytorch.callbacks import Checkpoint

from project.callbacks.resumable import save_resumable


class Kill(Checkpoint):
    """SIGKILL in one hook, once ``step`` optimizer steps are done.

    A Checkpoint, so that it comes after all callbacks that save nothing, and before those that do.
    """

    def __init__(self, hook: str, step: int, batch: int | None = None):
        self.hook, self.step, self.batch = hook, step, batch

    def at(self, trainer, hook, batch=None):
        if (hook, trainer.global_step) != (self.hook, self.step) or trainer.sanity_checking:
            return
        if self.batch in (None, batch):
            self.end(trainer)

    def end(self, trainer):
        trainer.strategy.barrier()
        os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.at(trainer, "on_train_batch_start", batch_idx)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.at(trainer, "on_train_batch_end", batch_idx)

    def on_validation_start(self, trainer, module):
        self.at(trainer, "on_validation_start")

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, loader=0):
        self.at(trainer, "on_validation_batch_end", batch_idx)

    def on_validation_end(self, trainer, module):
        self.at(trainer, "on_validation_end")

    def on_train_epoch_end(self, trainer, module):
        self.at(trainer, "on_train_epoch_end")


class SaveAndKill(Kill):
    """Saves first, as a guard against preemption does; nothing after the hook comes to pass."""

    def end(self, trainer):
        file = f"{trainer.log_dir}/checkpoints/autosave.ckpt"
        save_resumable(trainer, trainer.strategy.broadcast(file))
        super().end(trainer)
