"""What Lightning does in every step for nobody, taken out of the path of a run.

A default run has twenty callbacks, and Lightning calls each of them six times a step, most often to
do nothing, every call in a context manager for a profiler that is not there. Of a small network's
step that is a third (``tests/benchmarks/train_step.py``).
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loops import training_epoch_loop
from lightning.pytorch.profilers import PassThroughProfiler

# What is called for every batch.
_HOOKS = [name for name in vars(Callback) if "_batch_" in name or name.startswith("on_before_")]
_HOOKS += ["on_after_backward"]
_NOTHING: nullcontext[None] = nullcontext()
_loop: Any = training_epoch_loop
_has_param: Callable[..., bool] = cache(_loop.is_param_in_hook_signature)


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
    if not torch.cuda.is_available():
        # Lightning has torch ask the driver's library, which is then looked for at every step.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"
    # A step has a dozen hooks, and each looks through the signature of training_step.
    _loop.is_param_in_hook_signature = _has_param_of
    kind: Any = type(module)
    _note_quickly(kind)
    whole: Trainer = trainer
    return whole


def _has_param_of(hook: Any, *args: Any, **kwargs: Any) -> bool:  # noqa: ANN401
    """Remember the answer by the function: by the bound method, every module would live on."""
    return _has_param(getattr(hook, "__func__", hook), *args, **kwargs)


@cache
def _note_quickly(kind: Any) -> None:  # noqa: ANN401
    """Let a module note which hook runs, forty times a step, without looking for a parameter."""
    usual = kind.__setattr__

    def note(self: LightningModule, name: str, value: Any) -> None:  # noqa: ANN401
        if name == "_current_fx_name":
            vars(self)[name] = value
        else:
            usual(self, name, value)

    kind.__setattr__ = note
