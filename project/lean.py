"""What Lightning does in every step for nobody, taken out of the path of a run.

A default run has twenty callbacks, and Lightning calls each of them six times a step, most often to
do nothing, every call with a name and in a context for a profiler that is not there. Of a small
network's step that is a third (``tests/benchmarks/train_step.py``).
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.core import hooks
from lightning.pytorch.loops import training_epoch_loop
from lightning.pytorch.loops.optimization.automatic import ClosureResult, _AutomaticOptimization
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors import data_connector
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import (
    _LoggerConnector,
)
from torch import Tensor
from torch.optim import Optimizer

# What is called for every batch.
_HOOKS = [name for name in vars(Callback) if "_batch_" in name or name.startswith("on_before_")]
_HOOKS += ["on_after_backward"]
_NOTHING: nullcontext[None] = nullcontext()
_ZERO_GRAD: list[Any] = [LightningModule.optimizer_zero_grad, Optimizer.zero_grad]


class NoProfiler(PassThroughProfiler):
    """Where nothing is profiled: not even a context for it is made."""

    def profile(self, action_name: str) -> AbstractContextManager[Any]:  # type: ignore[override]
        """Return a context that does nothing."""
        return _NOTHING


def trim(trainer: Any, module: LightningModule) -> Trainer:  # noqa: ANN401
    """Spare a run the calls that do nothing; all that does something stays.

    Hooks that a callback has not got become None on it: Lightning looks whether they can be called.
    """
    if type(trainer.profiler) is PassThroughProfiler:
        trainer.profiler = NoProfiler()
    for callback in trainer.callbacks:
        for hook in _HOOKS:
            if getattr(type(callback), hook) is getattr(Callback, hook):
                vars(callback).setdefault(hook, None)
        if isinstance(callback, ModelCheckpoint) and _saves_no_steps(callback):
            vars(callback).setdefault("on_train_batch_end", None)
    if not torch.cuda.is_available():
        # Lightning has torch ask the driver's library, which is then looked for at every step.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"
    optimization = trainer.fit_loop.epoch_loop.automatic_optimization
    if type(optimization) is _AutomaticOptimization:
        optimization.__class__ = _Optimization
    if type(trainer._logger_connector) is _LoggerConnector:
        trainer._logger_connector.__class__ = _Connector
    _quicken()
    whole: Trainer = trainer
    return whole


def _saves_no_steps(callback: Any) -> bool:  # noqa: ANN401
    own = type(callback).on_train_batch_end is not ModelCheckpoint.on_train_batch_end
    by_time = callback._train_time_interval is not None
    return not (own or by_time or callback._every_n_train_steps)


class _Loss(ClosureResult):
    """The loss as it is: dividing it by one accumulated batch is a step for autograd, too."""

    @classmethod
    def from_training_step_output(cls, output: Any, normalize: int = 1) -> ClosureResult:  # noqa: ANN401
        if normalize == 1 and isinstance(output, Tensor):
            return cls(output)
        return super().from_training_step_output(output, normalize)


class _Optimization(_AutomaticOptimization):
    output_result_cls = _Loss

    def _optimizer_zero_grad(self, batch_idx: int, optimizer: Optimizer) -> None:
        """Let the gradients go as torch does, but without a region for its profiler."""
        trainer: Any = self.trainer
        ways: Any = trainer.lightning_module.optimizer_zero_grad, optimizer.zero_grad
        one_has_its_own = [getattr(way, "__func__", None) for way in ways] != _ZERO_GRAD
        if one_has_its_own or type(trainer.profiler) is not NoProfiler:
            super()._optimizer_zero_grad(batch_idx, optimizer)
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        self.optim_progress.optimizer.zero_grad.increment_completed()


class _Connector(_LoggerConnector):
    """Collects what was logged after those batches in which something was."""

    _fx: str | None = None
    _fresh = True

    @property
    def _current_fx(self) -> str | None:
        return self._fx

    @_current_fx.setter
    def _current_fx(self, fx: str | None) -> None:  # by every call of `log`
        self._fx, self._fresh = fx, True

    def on_batch_end(self) -> None:
        if self._fresh:
            self._fresh = False
            super().on_batch_end()
            return
        results: Any = self.trainer._results
        results.batch = results.batch_size = None


# What follows shortens the way to a hook, of which a step has some forty. Lightning makes a name
# for every call, notes the hook through the module's ``__setattr__``, and looks again every time
# which hooks a class has and what their parameters are. It holds for all trainers of the process;
# one with a profiler goes the old way.

_call: Any = call
_connector: Any = data_connector
_loop: Any = training_epoch_loop
_transfers: Any = hooks
_usual_move = _transfers.move_data_to_device
_usual_callbacks, _usual_module = _call._call_callback_hooks, _call._call_lightning_module_hook
_usual_strategy = _call._call_strategy_hook
_is_overridden = _connector.is_overridden
_has_param: Callable[..., bool] = lru_cache(256)(_loop.is_param_in_hook_signature)


@cache
def _quicken() -> None:
    _call._call_callback_hooks = _call_callbacks
    _call._call_lightning_module_hook = _call_module
    _call._call_strategy_hook = _call_strategy
    _connector.is_overridden = _overrides
    _loop.is_param_in_hook_signature = _has_param_of
    _transfers.move_data_to_device = _move


def _call_callbacks(trainer: Any, hook: str, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
    module = trainer.lightning_module
    if type(trainer.profiler) is not NoProfiler or module is None or kwargs:
        _usual_callbacks(trainer, hook, *args, **kwargs)
        return
    noted = vars(module)
    before, noted["_current_fx_name"] = noted["_current_fx_name"], hook
    for callback in trainer.callbacks:
        if (fn := getattr(callback, hook)) is not None:
            fn(trainer, module, *args)
    noted["_current_fx_name"] = before


def _call_module(trainer: Any, hook: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    module = trainer.lightning_module
    if type(trainer.profiler) is not NoProfiler or module is None or "pl_module" in kwargs:
        return _usual_module(trainer, hook, *args, **kwargs)
    return _noting(module, hook, getattr(module, hook), args, kwargs)


def _call_strategy(trainer: Any, hook: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    if type(trainer.profiler) is not NoProfiler:
        return _usual_strategy(trainer, hook, *args, **kwargs)
    return _noting(trainer.lightning_module, hook, getattr(trainer.strategy, hook), args, kwargs)


def _noting(module: Any, hook: str, fn: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Call a hook while the module, which logs under its name, knows that it runs."""
    if not callable(fn):
        return None
    noted = vars(module)
    before, noted["_current_fx_name"] = noted["_current_fx_name"], hook
    output = fn(*args, **kwargs)
    noted["_current_fx_name"] = before
    return output


def _has_param_of(hook: Any, *args: Any, **kwargs: Any) -> bool:  # noqa: ANN401
    """Remember the answer by the function: by the bound method, every module would live on."""
    return _has_param(getattr(hook, "__func__", hook), *args, **kwargs)


def _overrides(name: str, instance: Any = None, parent: Any = None) -> bool:  # noqa: ANN401
    """Look at the class, unless the object has a hook of its own."""
    if parent is None and name not in getattr(instance, "__dict__", {}):
        kind: Any = type(instance)
        for base in (LightningModule, LightningDataModule):
            if issubclass(kind, base):
                return getattr(kind, name) is not getattr(base, name)
    overrides: bool = _is_overridden(name, instance, parent)
    return overrides


def _move(batch: Any, device: Any) -> Any:  # noqa: ANN401
    """Leave on a CPU what is there."""
    there = getattr(device, "type", device) == "cpu" and type(batch) is tuple
    if there and all(type(part) is Tensor and part.is_cpu for part in batch):
        return batch
    return _usual_move(batch, device)
