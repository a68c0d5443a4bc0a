"""A run that is told to stop saves a checkpoint first, and can go on from there."""

import os
import signal
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor, distributed

from project import endings
from project.callbacks.resumable import save_resumable
from project.endings import Preempted

Vote = tuple[Tensor, "distributed.Work"]


class PreemptionGuard(Checkpoint):  # and so it comes after all others, with what they have noted
    """Stop at the end of a batch when a signal asks for it, with a checkpoint and exit code 75.

    SIGTERM, SIGINT (Ctrl-C), SIGHUP and SIGUSR1 count, sent to one process or to all, while the run
    trains, validates or, at its end, tests. A signal only makes a note. After every batch the
    processes compare notes, on the CPU and while they compute the next batch, so that the device
    never waits; all stop after the same batch, and one checkpoint is written. In the sanity check
    the run waits for its end, and in the test there is nothing left to save. A second SIGINT ends
    everything at once.

    Workers of a data loader are left out: what is sent to the whole process group does not end
    them before their work is done.

    Takes the place of Lightning's own handling of SIGTERM, and of SIGUSR1 under SLURM.

    Args:
        run_dir: The run's folder.
    """

    def __init__(self, run_dir: str) -> None:
        self.run_dir = run_dir
        self._signal = 0  # the number of the one that has come
        self._old: dict[signal.Signals, endings.Handler] = {}
        self._group: Any = None  # of torch.distributed, on the CPU; None for one process
        self._vote: Vote | None = None
        self._fits = False
        self._even = True

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Keep Lightning from setting handlers: in them it waits for other processes."""
        if stage == "fit":
            self._fits = not getattr(trainer, "fast_dev_run", False)
            self._signal, self._vote = 0, None
        if self._fits:
            endings.keep_lightning_out(trainer)
            if trainer.world_size > 1 and distributed.is_initialized() and self._group is None:
                # Longer than anything one process may do while the others wait.
                self._group = distributed.new_group(backend="gloo", timeout=timedelta(days=2))
        if stage == "test":  # of a run, not of `lightning test`, which has nothing to lose
            self._take_signals()

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the signals over, once everything is loaded."""
        self._take_signals()

    def _take_signals(self) -> None:
        if not self._fits or self._old or not endings.is_main_thread():
            return
        pid = os.getpid()

        def note(number: int, frame: FrameType | None) -> None:
            if os.getpid() != pid:  # a worker that was forked from the run
                return
            old = self._old.get(signal.Signals(number))
            if self._signal and number == signal.SIGINT:  # jobs in the background begin ignoring it
                (old if callable(old) else signal.default_int_handler)(number, frame)
            self._signal = self._signal or number

        _shield_workers()
        self._old = {number: signal.signal(number, note) for number in endings.numbers()}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop here if the signal came in the sanity check."""
        self._stop_if_asked(trainer)

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Stop here if a signal has come."""
        self._stop_if_asked(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """See whether all processes have equally many batches, and so can compare notes."""
        self._count(trainer.num_val_batches)

    def on_validation_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Stop here if a signal has come."""
        if self._even and not trainer.sanity_checking:
            self._stop_if_asked(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop here if the signal came in the last batch."""
        self._stop_if_asked(trainer)

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """See whether all processes have equally many batches, and so can compare notes."""
        self._count(trainer.num_test_batches)

    def on_test_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Stop here if a signal has come; the weights are those of a checkpoint."""
        if self._even:
            self._stop_if_asked(trainer, saves=False)

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop here if the signal came in the last batch."""
        self._stop_if_asked(trainer, saves=False)

    def _count(self, batches: list[int | float]) -> None:
        if self._group is None:
            return
        counts: list[Any] = [None] * distributed.get_world_size(self._group)
        distributed.all_gather_object(counts, batches, group=self._group)
        finite = all(count != float("inf") for count in batches)
        self._even = finite and all(count == batches for count in counts)

    def _stop_if_asked(self, trainer: L.Trainer, saves: bool = True) -> None:
        if not self._fits or not (number := self._agree()):
            return
        endings.leave()
        file = None
        if saves:
            folder = trainer.strategy.broadcast(self.run_dir)  # only rank zero knows it
            file = Path(folder) / "checkpoints" / "autosave.ckpt"
            save_resumable(trainer, file)
        where = f"at step {trainer.global_step}, epoch {trainer.current_epoch}"
        what = f"saved {file}" if saves else "in the test at the end, all is saved"
        raise Preempted(
            f"Stopped by {signal.Signals(number).name} {where}; {what}.\n"
            f"Go on with: lightning fit --resume {self.run_dir}",
            str(file) if file else None,
        )

    def _agree(self) -> int:
        """Return the signal that any process had when the batch before this one ended."""
        if self._group is None:
            return self._signal
        answer = 0
        if self._vote is not None:
            notes, work = self._vote
            work.wait()
            answer = int(notes)
        notes = torch.tensor(self._signal)
        work = distributed.all_reduce(
            notes, distributed.ReduceOp.MAX, group=self._group, async_op=True
        )
        self._vote = notes, work
        return answer

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Give the signals back."""
        self._give_back()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the signals back."""
        self._give_back()

    def _give_back(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}
        _shielding.discard(os.getpid())


_shielding: set[int] = set()  # the process whose forks are shielded


def _shield_workers() -> None:
    """Keep a SIGTERM to the whole process group from the workers that are forked from now on.

    A worker that dies takes the run with it, in the middle of a batch. One that ignored SIGTERM
    would not end when its own parent asks for it, so who has sent it must be known.
    """
    if hasattr(os, "register_at_fork") and hasattr(signal, "sigwaitinfo"):
        _shield_forks()
        _shielding.add(os.getpid())


@cache
def _shield_forks() -> None:
    os.register_at_fork(after_in_child=_shield)


def _shield() -> None:
    if os.getppid() in _shielding:
        # Blocked in all threads that come later, too; torch's handler stays, and is never asked.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        endings.start(_end_with_parent, os.getppid())


def _end_with_parent(parent: int) -> None:
    while True:
        sent = signal.sigwaitinfo({signal.SIGTERM})
        if sent.si_pid == parent or os.getppid() != parent:
            os._exit(0)
