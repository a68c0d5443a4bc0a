"""A run that is resumed goes on as if it had never stopped, to the last bit."""

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from project.callbacks.place import Place, find_place, go_on, write_place
from project.callbacks.rank_state import State, gather, load_rank_state, rank_state, set_rng_state

_KEY = "exact_resume"


class ExactResume(Callback):
    """Add to every checkpoint what Lightning leaves out, and bring it back.

    That is, of every process: the state of the random number generators and the metrics that the
    epoch has added up so far; and of the run: where exactly it is (see ``place.py``), which metrics
    callbacks saw last, gradients that an optimizer step still waits for, and what TensorBoard has.

    Settings of now beat those of a checkpoint (``patience``), and paths of checkpoints follow a run
    that was moved.
    """

    def __init__(self) -> None:
        self._loaded: State | None = None
        self._at_validation: State | None = None  # this process before the validation that runs
        self._rng_of_validation: State | None = None
        self._validated = True
        self._resumed_epoch = False

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Remember the state from which this validation can be done again."""
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        if self._rng_of_validation is not None:  # a loader may have drawn numbers since the restart
            set_rng_state(self._rng_of_validation, trainer.strategy.root_device)
            self._rng_of_validation = None
        self._validated, self._at_validation = False, rank_state(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """See that there is nothing left of the validation to do."""
        self._validated, self._at_validation = True, None

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the state of all processes, and say where the run is."""
        place = find_place(trainer, self._validated)
        if place is None:
            return
        write_place(place, checkpoint["loops"]["fit_loop"])
        metrics = {key: value.detach().clone() for key, value in trainer.callback_metrics.items()}
        checkpoint[_KEY] = {
            "place": place.state(),
            "in_validation": self._at_validation is not None,
            "ranks": gather(self._at_validation or rank_state(trainer)),
            "callback_metrics": metrics,
            "checkpoints": _flags(trainer),
            "gradients": _gradients(trainer, pl_module),
            "logs": [logger.written() for logger in _boards(trainer)],
        }

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the settings of now, and find the checkpoints where they are now."""
        states = checkpoint.get("callbacks", {})
        for callback in _callbacks(trainer):
            state = states.get(callback.state_key)
            if state and isinstance(callback, EarlyStopping):
                state["patience"] = callback.patience
            elif state and isinstance(callback, ModelCheckpoint):
                _follow(state, callback)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        self._loaded = checkpoint.get(_KEY)
        if self._loaded is None:
            return
        trainer.num_sanity_val_steps = 0  # the run has had one
        if 0 <= trainer.max_steps <= checkpoint["global_step"] and not self._place().epoch_over:
            # Else Lightning would not enter the epoch, whose end is still to come.
            trainer.fit_loop.epoch_loop.max_steps = _Unreached(trainer.max_steps)

    def _place(self) -> Place:
        assert self._loaded is not None
        return Place(**self._loaded["place"])

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Bring everything back, after all that draws random numbers at the start has done so."""
        self._validated, self._at_validation = True, None
        if self._loaded is None:
            return
        loaded, place = self._loaded, self._place()
        self._loaded, self._resumed_epoch = None, True
        trainer.ckpt_path = None  # ModelCheckpoint would keep that file for ever
        metrics: dict[str, Tensor] = loaded["callback_metrics"]
        trainer.callback_metrics.update(
            {key: value.to(trainer.strategy.root_device) for key, value in metrics.items()}
        )
        _set_flags(trainer, loaded["checkpoints"])
        trainer.should_stop = any(_has_stopped(callback) for callback in _callbacks(trainer))
        go_on(trainer, place)
        _set_gradients(pl_module, loaded["gradients"])
        for logger, written in zip(_boards(trainer), loaded["logs"], strict=False):
            logger.rewind(place.steps, written)
            logger.log_metrics(place.pending, place.pending_step)
        if len(loaded["ranks"]) != trainer.world_size:
            return  # another number of processes: the random numbers are others anyway
        own = loaded["ranks"][trainer.global_rank]
        load_rank_state(trainer, own)
        if loaded["in_validation"]:
            self._rng_of_validation = own["rng"]

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """End the restart, so that ``ReduceLROnPlateau`` sees the metric of this epoch too."""
        if self._resumed_epoch:
            trainer.fit_loop._restarting = False
            trainer.fit_loop.epoch_loop.max_steps = int(trainer.max_steps)
            self._resumed_epoch = False


class _Unreached(int):
    """A ``max_steps`` like any other, but that loops do not take for reached."""

    def __le__(self, other: int) -> bool:  # what `global_step >= max_steps` asks first
        return False


def _callbacks(trainer: L.Trainer) -> list[Callback]:
    found: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return found


def _boards(trainer: L.Trainer) -> list[Any]:
    """The loggers that can go back to an earlier step."""
    if not trainer.is_global_zero:
        return []
    return [logger for logger in trainer.loggers if hasattr(logger, "rewind")]


def _has_stopped(callback: Callback) -> bool:
    """Whether the settings of now end the run after the validations it has had."""
    if not isinstance(callback, EarlyStopping):
        return False
    if callback.stopping_reason == EarlyStoppingReason.NOT_STOPPED:
        return False
    by_patience = callback.stopping_reason == EarlyStoppingReason.PATIENCE_EXHAUSTED
    return not by_patience or callback.wait_count >= callback.patience


def _follow(state: State, callback: ModelCheckpoint) -> None:
    """Change the paths in a ModelCheckpoint's state to its folder of now; leave out lost files."""
    old, new = Path(state["dirpath"]), Path(str(callback.dirpath))

    def moved(path: str) -> str:
        if not path or old not in Path(path).parents:
            return path
        return str(new / Path(path).relative_to(old))

    state["dirpath"] = callback.dirpath
    for key in ("best_model_path", "kth_best_model_path", "last_model_path"):
        state[key] = moved(state[key])
    last = new / f"{callback.CHECKPOINT_NAME_LAST}{callback.FILE_EXTENSION}"
    if not state["last_model_path"] and last.exists():  # saved after this checkpoint: replaced
        state["last_model_path"] = str(last)
    scores = {moved(path): score for path, score in state["best_k_models"].items()}
    kept = {path: score for path, score in scores.items() if Path(path).is_file()}
    state["best_k_models"] = kept
    if not kept or kept.keys() == scores.keys():
        return
    ranked = sorted(kept, key=lambda path: float(kept[path]), reverse=callback.mode == "max")
    state |= {"best_model_path": ranked[0], "best_model_score": kept[ranked[0]]}
    state |= {"kth_best_model_path": ranked[-1], "kth_value": kept[ranked[-1]]}


def _flags(trainer: L.Trainer) -> State:
    """What ModelCheckpoint remembers between two batches and does not save."""
    return {
        c.state_key: [c._defer_save_until_validation, c._last_global_step_saved]
        for c in trainer.checkpoint_callbacks
        if isinstance(c, ModelCheckpoint)
    }


def _set_flags(trainer: L.Trainer, flags: State) -> None:
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.state_key in flags:
            deferred, step = flags[callback.state_key]
            callback._defer_save_until_validation = deferred
            callback._last_global_step_saved = step
            callback._last_checkpoint_saved = callback.last_model_path


def _gradients(trainer: L.Trainer, module: L.LightningModule) -> dict[str, Tensor]:
    """The gradients of batches whose optimizer step is still to come, averaged over processes.

    Averaging makes an exact restart one up to rounding; with one process it is exact.
    """
    plain = isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy)
    if not plain or not trainer.fit_loop._should_accumulate():
        return {}
    named = [(name, p.grad) for name, p in module.named_parameters() if p.grad is not None]
    reduced = {name: trainer.strategy.reduce(grad.clone()) for name, grad in named}
    return {name: grad for name, grad in reduced.items() if isinstance(grad, Tensor)}


def _set_gradients(module: L.LightningModule, gradients: dict[str, Tensor]) -> None:
    for name, parameter in module.named_parameters():
        if name in gradients:
            parameter.grad = gradients[name].to(parameter.device, copy=True)
