"""A run is spared the calls that do nothing, and only those."""

from collections import Counter
from pathlib import Path
from typing import ClassVar

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import PassThroughProfiler, SimpleProfiler
from torch.utils._python_dispatch import TorchDispatchMode

from project import lean
from project.cli import main

# What waits for the device and gives its numbers to Python, or whose size depends on them.
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "is_nonzero"}


class Counting(Callback):
    """Counts what a stranger's callback is called for."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def on_train_batch_start(self, *_: object) -> None:
        self.seen["start"] += 1

    def on_after_backward(self, *_: object) -> None:
        self.seen["backward"] += 1


class Waits(TorchDispatchMode):
    """Counts operations that a GPU would have to be waited for."""

    seen: ClassVar[Counter[str]] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if (name := func.overloadpacket.__name__) in WAITS:
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))


class InTraining(Callback):
    """Counts them while steps are trained, from the second epoch on."""

    def on_train_epoch_start(self, trainer: L.Trainer, *_: object) -> None:
        if trainer.current_epoch == 1:
            Waits.seen.clear()
            self.mode = Waits()
            self.mode.__enter__()

    def on_validation_start(self, trainer: L.Trainer, *_: object) -> None:
        if trainer.current_epoch == 1 and not trainer.sanity_checking:
            self.mode.__exit__(None, None, None)


class NoSync(Callback):
    """Makes whatever waits for the GPU an error, in all but the first and last step of an epoch."""

    def on_train_batch_end(self, trainer: L.Trainer, *args: object) -> None:
        inner = args[-1] < trainer.num_training_batches - 2
        torch.cuda.set_sync_debug_mode("error" if inner else "default")


def trainer_and_module(
    *callbacks: Callback, **options: object
) -> tuple[L.Trainer, L.LightningModule]:
    class Module(L.LightningModule):
        pass

    options = {"logger": False, "enable_checkpointing": False, **options}
    return L.Trainer(callbacks=list(callbacks), **options), Module()


def test_a_callback_keeps_the_hooks_it_has_and_loses_those_it_has_not() -> None:
    callback = Counting()
    lean.trim(*trainer_and_module(callback))
    assert callable(callback.on_train_batch_start)
    assert callable(callback.on_after_backward)
    assert callback.on_train_batch_end is None
    assert callable(callback.on_train_epoch_start)


def test_a_hook_that_was_put_on_the_object_stays() -> None:
    callback, hook = Counting(), lambda *_: None
    callback.on_train_batch_end = hook
    lean.trim(*trainer_and_module(callback))
    assert callback.on_train_batch_end is hook


def test_a_profiler_that_was_asked_for_stays_and_none_costs_nothing() -> None:
    trainer, module = trainer_and_module(profiler=SimpleProfiler())
    assert isinstance(lean.trim(trainer, module).profiler, SimpleProfiler)
    trainer, module = trainer_and_module()
    profiler = lean.trim(trainer, module).profiler
    assert isinstance(profiler, PassThroughProfiler)
    assert profiler.profile("a step") is profiler.profile("another")


def test_a_module_notes_hooks_quickly_and_keeps_its_parameters() -> None:
    trainer, module = trainer_and_module()
    lean.trim(trainer, module)
    module._current_fx_name = "training_step"
    module.weight = torch.nn.Parameter(torch.ones(1))
    assert module._current_fx_name == "training_step"
    assert dict(module.named_parameters()).keys() == {"weight"}


@pytest.mark.slow
def test_the_command_calls_a_callback_of_ones_own_for_every_batch(tmp_path: Path) -> None:
    made: list[Counting] = []
    kept, Counting.setup = Callback.setup, lambda self, *_, **__: made.append(self)
    own = f"--trainer.callbacks+={__name__}.Counting"
    assert main(["fit", own, "--trainer.max_epochs", "1", "--trainer.limit_test_batches", "0"]) == 0
    Counting.setup = kept
    assert made[0].seen == {"start": 40, "backward": 40}


def fit(*settings: str) -> int:
    own = f"--trainer.callbacks+={__name__}.InTraining"
    quick = ["--trainer.max_epochs", "2", "--trainer.limit_test_batches", "0"]
    assert main(["fit", *quick, own, *settings]) == 0
    return Waits.seen.total()


# Without the finite guard: on a CPU it may look at its flag, and does in every step.
@pytest.mark.slow
def test_no_step_waits_for_the_device() -> None:
    few, many = (
        fit("--finite_guard", "null", "--data.batch_size", size, "--trainer.log_every_n_steps", log)
        for size, log in (("32", "20"), ("16", "40"))  # two points of the curves in each
    )
    assert few == many <= 30  # what is written and said once an epoch


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of NVIDIA's")
def test_no_step_waits_for_the_gpu() -> None:
    own = f"--trainer.callbacks+={__name__}.NoSync"
    quick = ["--trainer.max_epochs", "2", "--trainer.log_every_n_steps", "1000"]
    assert main(["fit", *quick, own, "--trainer.accelerator", "gpu", "--trainer.devices", "1"]) == 0
