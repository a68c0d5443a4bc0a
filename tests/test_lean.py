"""A run is spared the calls that do nothing, and only those."""

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.profilers import PassThroughProfiler, SimpleProfiler
from torch.utils._python_dispatch import TorchDispatchMode

from project import lean
from project.cli import main
from project.data import DigitsDataModule

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


class Learner(L.LightningModule):
    """One weight whose gradient is known; notes under which hook it logs and what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen: list[object] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.log("loss", 1.0, on_step=True, on_epoch=True)
        self.loss = (self.weight * batch).sum()
        return self.loss

    def on_after_backward(self) -> None:
        self.seen.append((self._current_fx_name, self.weight.grad.item()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def trained(module: L.LightningModule, trim: bool = True, **options: object) -> L.Trainer:
    options = {"logger": False, "enable_checkpointing": False, "max_epochs": 1, **options}
    trainer = L.Trainer(enable_progress_bar=False, enable_model_summary=False, **options)
    if trim:
        lean.trim(trainer, module)
    trainer.fit(module, torch.tensor([[1.0], [2.0], [4.0], [8.0]]))
    return trainer


@pytest.mark.parametrize(("batches", "gradients"), [(1, [1, 2, 4, 8]), (2, [0.5, 1.5, 2, 6])])
def test_gradients_are_those_of_lightning_also_accumulated(batches, gradients) -> None:
    module, usual = Learner(), Learner()
    trainer = trained(module, accumulate_grad_batches=batches)
    trained(usual, trim=False, accumulate_grad_batches=batches)
    assert module.seen == usual.seen == [("on_after_backward", value) for value in gradients]
    assert torch.equal(module.weight, usual.weight)
    assert trainer.callback_metrics["loss_epoch"] == 1
    done = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.zero_grad
    assert done.total.completed == 4 / batches


def test_one_batch_a_step_is_not_divided() -> None:
    class Module(Learner):
        def backward(self, loss: torch.Tensor) -> None:
            self.seen.append(loss.grad_fn is self.loss.grad_fn)
            super().backward(loss)

    module, accumulating = Module(), Module()
    trained(module)
    trained(accumulating, accumulate_grad_batches=2)
    assert module.seen[0] is True
    assert accumulating.seen[0] is False


def test_what_is_logged_now_and_then_is_there_as_soon_as_lightning_has_it() -> None:
    class Module(Learner):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            if batch_idx % 2:
                self.log("odd", float(batch_idx), on_step=True, on_epoch=True, prog_bar=True)
            return (self.weight * batch).sum()

        def on_train_batch_end(self, *_: object) -> None:
            self.log("end", float(self.trainer.global_step), on_step=True)

    class Watch(Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *_: object) -> None:
            known = trainer._logger_connector._callback_metrics
            seen.append({name: float(value) for name, value in known.items()})

    seen: list[dict[str, float]] = []
    for trim in (True, False):
        trained(Module(), trim=trim, callbacks=[Watch()], max_epochs=2)
    assert seen[:8] == seen[8:]
    assert {"odd_step": 3.0, "end": 4.0}.items() <= seen[4].items()


def test_a_way_of_ones_own_to_zero_gradients_is_used() -> None:
    class Module(Learner):
        def optimizer_zero_grad(self, *args: object) -> None:
            self.seen.append("own")

    class Own(torch.optim.SGD):
        def zero_grad(self, set_to_none: bool = True) -> None:
            asked.append(set_to_none)

    asked: list[bool] = []
    module, learner, plain = Module(), Learner(), Learner()
    plain.optimizer_zero_grad = lambda *_: asked.append(False)
    trained(module)
    assert module.seen.count("own") == 4
    learner.configure_optimizers = lambda: Own(learner.parameters(), lr=0.5)
    trained(learner)
    assert asked == [True] * 4
    trained(plain)
    assert asked[4:] == [False] * 4


def test_a_profiler_still_sees_every_hook() -> None:
    module, profiler = Learner(), SimpleProfiler()
    trained(module, profiler=profiler, callbacks=[Counting()])
    assert len(profiler.recorded_durations["[Callback]Counting.on_after_backward"]) == 4
    assert len(profiler.recorded_durations["[LightningModule]Learner.on_after_backward"]) == 4
    assert len(profiler.recorded_durations["[Strategy]SingleDeviceStrategy.training_step"]) == 4
    assert len(profiler.recorded_durations["[LightningModule]Learner.optimizer_zero_grad"]) == 4


def test_hooks_are_looked_up_by_class_unless_an_object_has_its_own() -> None:
    class Data(L.LightningDataModule):
        def train_dataloader(self) -> torch.Tensor:
            return torch.ones(3, 1)

    class Moving(Data):
        def on_after_batch_transfer(self, batch: torch.Tensor, dataloader_idx: int) -> torch.Tensor:
            return 10 * batch

    plain, moving, own, later = Data(), Moving(), Data(), Data()
    own.on_after_batch_transfer = lambda batch, dataloader_idx: 100 * batch
    for data, expected in ((plain, 1), (moving, 10), (own, 100), (plain, 1), (later, 50)):
        if data is later:  # a notebook's class, changed after it was used
            Data.on_after_batch_transfer = lambda _, batch, dataloader_idx: 50 * batch
        module = Learner()
        options = {"logger": False, "enable_checkpointing": False, "max_epochs": 1}
        trainer = L.Trainer(enable_progress_bar=False, enable_model_summary=False, **options)
        lean.trim(trainer, module)
        trainer.fit(module, datamodule=data)
        assert [gradient for _, gradient in module.seen] == [expected] * 3


@pytest.mark.filterwarnings("ignore:You have overridden `transfer_batch_to_device`")
def test_a_batch_is_moved_in_the_way_of_the_task(workdir: Path) -> None:
    class Module(Learner):
        def transfer_batch_to_device(self, batch: object, *_: object) -> object:
            self.seen.append("moved")
            return batch

        def training_step(self, batch: tuple[torch.Tensor, ...], batch_idx: int) -> torch.Tensor:
            return super().training_step(batch[0], batch_idx)

        def validation_step(self, *_: object) -> None: ...

    module = Module()
    trainer, _ = trainer_and_module(max_steps=2, limit_val_batches=0, enable_progress_bar=False)
    lean.trim(trainer, module).fit(module, datamodule=DigitsDataModule())
    assert module.seen.count("moved") == 2


def test_only_what_is_on_the_cpu_stays_as_it_is() -> None:
    lean.trim(*trainer_and_module())
    move = Learner().transfer_batch_to_device
    batch = (torch.ones(2), torch.ones(3))
    assert move(batch, torch.device("cpu"), 0) is batch
    assert [part.device.type for part in move(batch, torch.device("meta"), 0)] == ["meta"] * 2
    assert move((torch.ones(1), {"key": ["a"]}), torch.device("cpu"), 0)[1] == {"key": ["a"]}


def test_checkpoints_by_steps_or_time_are_still_asked_at_every_step(tmp_path: Path) -> None:
    by_epoch = ModelCheckpoint(tmp_path)
    by_step = ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1)
    by_time = ModelCheckpoint(tmp_path, train_time_interval=timedelta(0))
    lean.trim(*trainer_and_module(by_epoch, by_step, by_time, enable_checkpointing=True))
    assert by_epoch.on_train_batch_end is None
    assert callable(by_step.on_train_batch_end)
    assert callable(by_time.on_train_batch_end)


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
