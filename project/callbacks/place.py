"""Where training is between two batches, and how to tell Lightning to go on exactly there.

Lightning saves the counters of its loops in whatever state they are, and guesses on a restart what
was done. In some hooks it guesses wrong: a file saved in ``on_train_batch_end`` of an epoch's last
batch skips the validation, and with ``max_steps`` one saved at the end of an epoch counts it twice.
So every save writes the counters of a place that Lightning 2.6 reads right, and a restart tells the
loops what the counters cannot say.
"""

from dataclasses import asdict, dataclass
from typing import Any

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn

_COUNTS = ("ready", "started", "processed", "completed")


@dataclass(frozen=True)
class Place:
    """A moment between two batches.

    Args:
        batches: Batches of the epoch that are done.
        steps: Where the step axis of loggers is for what comes next.
        validated: False if a validation comes before the next batch.
        epoch_over: Whether the epoch is done, its metrics are logged, and the next one begins.
        pending: What is logged only after the hook that saves, e.g. the loss of the step.
        pending_step: Where on the step axis it belongs.
    """

    batches: int
    steps: int
    validated: bool
    epoch_over: bool
    pending: dict[str, float]
    pending_step: int

    def state(self) -> dict[str, Any]:
        """Return it in plain values."""
        return asdict(self)


def find_place(trainer: L.Trainer, validated: bool) -> Place | None:
    """Return where training is; None if it has not begun.

    Args:
        trainer: In ``fit``, in any hook.
        validated: Whether the validation that runs is done and logged.
    """
    fit: Any = trainer.fit_loop
    if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
        return None
    if fit._data_fetcher is None or fit.epoch_progress.current.ready == 0:
        return None
    loop, epochs = fit.epoch_loop, fit.epoch_progress.current
    batch, steps = loop.batch_progress.current, loop._batches_that_stepped
    if epochs.processed != epochs.completed:  # in on_train_epoch_end
        return Place(0, steps, True, True, _pending(trainer), steps - 1)
    if epochs.started != epochs.processed + 1:  # in on_train_epoch_start, or at the very end
        return Place(0, steps, True, True, {}, steps)
    stepped = int(not loop._should_accumulate())
    if trainer.validating:
        return Place(batch.completed, steps + stepped, validated, False, {}, steps)
    if batch.processed > batch.completed:  # in on_train_batch_end
        logs = stepped and trainer._logger_connector.should_update_logs
        pending = _pending(trainer) if logs else {}
        due = bool(loop._should_check_val_fx(fit._data_fetcher))
        return Place(batch.processed, steps + stepped, not due, False, pending, steps)
    # A batch has begun; it will be done again.
    return Place(batch.completed, steps, True, False, {}, steps)


def _pending(trainer: L.Trainer) -> dict[str, float]:
    """What Lightning logs right after the callbacks of the current hook."""
    metrics = {**trainer._logger_connector.metrics["log"]}
    found = {name: float(value) for name, value in metrics.items() if not isinstance(value, dict)}
    return {"epoch": float(trainer.current_epoch), **found} if found else {}


def write_place(place: Place, loops: dict[str, Any]) -> None:
    """Change the counters of a checkpoint to those of a place.

    Args:
        place: Where the run is to go on.
        loops: The state of the fit loop.
    """
    batch, epochs = loops["epoch_loop.batch_progress"], loops["epoch_progress"]
    over = place.epoch_over
    begun = batch["current"]["ready"] > place.batches and not over  # it had another batch at hand
    done = batch["total"]["ready"] - (batch["current"]["ready"] - place.batches if begun else 0)
    _set(batch["total"], done)
    _set(batch["current"], place.batches)
    batch["is_last_batch"] = batch["is_last_batch"] and not begun and not over
    if over:
        for counts in epochs.values():
            _set(counts, counts["processed"])
    if (
        not place.validated
    ):  # what Lightning takes for an interrupted validation, done from the start
        counts = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
        validation = {"total": counts, "current": dict(counts), "is_last_batch": False}
        loops["epoch_loop.val_loop.batch_progress"] = validation
    loops["epoch_loop.state_dict"]["_batches_that_stepped"] = place.steps


def _set(counts: dict[str, int], value: int) -> None:
    counts.update(dict.fromkeys(_COUNTS, value))


def go_on(trainer: L.Trainer, place: Place) -> None:
    """Set the restarted loops to a place; call it in ``on_train_start``."""
    fit, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    loop._batches_that_stepped = place.steps
    if place.epoch_over:
        fit._restarting = False  # not by its setter, which says True wherever max_steps is set
        loop.restarting = False
        return
    fetcher = fit._data_fetcher
    assert fetcher is not None
    steps_are_done = 0 <= int(trainer.max_steps) <= trainer.global_step
    validates = loop._should_check_val_fx(fetcher)
    if validates:
        stops = trainer.should_stop and fit._can_stop_early
        # Lightning goes through the end of the batch once more and counts its step.
        if not stops and not loop._should_accumulate():
            loop._batches_that_stepped -= 1
    if steps_are_done or (not validates and loop._num_ready_batches_reached()):
        fetcher.done = True  # else it would fetch a batch too many
