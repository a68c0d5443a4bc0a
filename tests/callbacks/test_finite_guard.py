import copy
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn

from project.callbacks import FiniteGuard, finite_guard
from project.callbacks.finite_guard import NonFiniteError
from project.cli import main
from project.mistakes import RunFailed

NAN, INF = math.nan, math.inf


@pytest.fixture
def spoil(data):
    """Data whose training images (32, in batches of 8, in order) have ``value`` in ``samples``."""

    def make(samples, value=NAN):
        loader = data.train_dataloader()
        loader.dataset.tensors[0][samples, 0, 3, 3] = value
        data.train_dataloader = lambda: loader
        return data

    return make


@pytest.fixture
def fit(make_trainer):
    """Train with the guard; return the error it stops with and the weights of every step."""

    def run(module, data, *callbacks, guard=True, **options):
        states = []

        class Watch(ModelCheckpoint):  # a checkpoint callback comes after all others
            def __init__(self):
                super().__init__(save_top_k=0)

            def on_train_batch_start(self, trainer, pl_module, *_):
                states.append(copy.deepcopy(pl_module.state_dict()))

        settings = {"max_epochs": 1, "limit_val_batches": 0, "logger": False}
        settings |= {"enable_checkpointing": True}
        guards = [FiniteGuard()] if guard else []
        trainer = make_trainer(*guards, *callbacks, Watch(), **settings | options)
        try:
            trainer.fit(module, data)
        except NonFiniteError as error:
            return error, states
        return None, states

    return run


def equal(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[key], other[key]) for key in one)


def test_a_healthy_run_is_not_changed_by_a_bit(fit, make_module, data):
    modules = []
    for guard in (True, False):
        torch.manual_seed(0)
        modules.append(make_module())
        assert fit(modules[-1], data, guard=guard, max_epochs=3)[0] is None
    assert equal(modules[0].state_dict(), modules[1].state_dict())


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_bad_input_is_blamed_by_sample(fit, make_module, spoil, value):
    error, _ = fit(make_module(), spoil([17, 21], value))
    first, *rest = str(error).splitlines()
    assert first == (
        "Stopped at step 2 (epoch 0, batch 2): the input is not finite in 2 of 8 samples: "
        "17, 21 of the training split."
    )
    assert len(rest) == 2
    assert "--finite_guard null" in rest[-1]
    assert isinstance(error, RunFailed)


@pytest.mark.parametrize("attribute", ["paths", "files"])
def test_bad_input_is_blamed_by_file_where_there_are_files(fit, make_module, spoil, attribute):
    data = spoil([17])
    names = [Path(f"img{i}.png") for i in range(32)]
    setattr(data.train_dataloader().dataset, attribute, names)
    assert "of 8 samples: 17 (img17.png)." in str(fit(make_module(), data)[0])


def test_bad_input_is_blamed_by_place_where_the_data_says_no_index(fit, make_module, spoil):
    data = spoil([17])
    dataset = data.train_dataloader().dataset
    dataset.tensors = dataset.tensors[:2]
    assert "samples: 1 of the batch, counted from 0." in str(fit(make_module(), data)[0])


def test_a_bad_parameter_is_blamed_by_name(fit, make_module, data):
    module = make_module()
    module.net[2].bias.data[1] = INF
    error, _ = fit(module, data)
    assert "step 0" in str(error)
    assert "1 of 2 parameters are not finite: net.2.bias." in str(error)


def test_an_update_that_overflows_is_blamed_on_parameters(fit, make_module, data):
    error, _ = fit(make_module(lr=INF), data)
    assert "step 1 " in str(error)
    assert "parameters are not finite: net.2.weight, net.2.bias." in str(error)


def test_a_batch_without_labels_is_named(fit, make_module, spoil):
    data = spoil([])
    data.train_dataloader().dataset.tensors[1][8:16] = -100
    error, _ = fit(make_module(), data)
    assert "batch 1): no sample of the batch has a label" in str(error)


def broken(base, value=NAN, at=2, part="loss"):
    """A module whose loss, or the gradient of whose bias alone, is bad in batch ``at``."""

    class Broken(base):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            if batch_idx == at and part == "loss":
                return loss * value
            if batch_idx == at:  # the root of 0 has no finite derivative
                return loss + (self.net[2].bias * 0).pow(0.5).sum()
            return loss

    return Broken()


@pytest.mark.parametrize("value", [NAN, INF])
def test_the_loss_is_blamed_where_all_it_is_made_of_is_finite(fit, make_module, data, value):
    error, _ = fit(broken(make_module, value), data)
    assert f"batch 2): the loss is {value}, parameters and input are finite." in str(error)
    assert "a lower lr" in str(error)
    assert "bf16" not in str(error)


def test_a_loss_that_leaves_gradients_finite_stops_too(fit, make_module, data):
    class Broken(make_module):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) + (NAN if batch_idx == 1 else 0)

    error, states = fit(Broken(), data)
    assert "step 1 (epoch 0, batch 1): the loss is nan" in str(error)
    assert len(states) == 2


def test_gradients_are_blamed_by_name_as_they_were_before_clipping(fit, make_module, data):
    module = broken(make_module, part="gradient")
    error, _ = fit(module, data, gradient_clip_val=1.0)
    assert "the loss is finite, but 1 of 2 gradients are not finite: net.2.bias." in str(error)


def test_finite_gradients_whose_sum_overflows_are_no_fault(fit, make_module, data):
    module = make_module()
    module.on_after_backward = lambda: [p.grad.fill_(3e38) for p in module.parameters()]
    assert max(parameter.numel() for parameter in module.parameters()) > 1
    assert fit(module, data, max_steps=1)[0] is None


@pytest.mark.parametrize("value", [1.0, NAN])
def test_complex_gradients_are_looked_at_too(fit, make_module, data, value):
    class Waves(make_module):
        def __init__(self):
            super().__init__()
            self.wave = nn.Parameter(torch.ones(2, dtype=torch.complex64))

        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) + self.wave.real.sum()

        def on_after_backward(self):
            self.wave.grad.fill_(value)

    error, _ = fit(Waves(), data, max_steps=1)
    assert (error is None) == (value == 1)
    assert error is None or "1 of 3 gradients are not finite: wave." in str(error)


def with_batch_norm(base, **settings):
    module = base(**settings)
    module.net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3))
    return module


def test_weights_and_statistics_stay_as_they_were_before_the_step(fit, make_module, spoil):
    module = with_batch_norm(make_module)
    error, states = fit(module, spoil([17]))
    assert error
    assert len(states) == 3  # that of the bad batch is the last
    assert equal(module.state_dict(), states[-1])
    assert not equal(module.state_dict(), states[-2])


def test_checkpoints_stay_finite(fit, make_module, spoil, tmp_path):
    always = ModelCheckpoint(
        dirpath=tmp_path / "c",
        save_top_k=-1,
        save_last=True,
        every_n_train_steps=1,
        save_on_exception=True,
    )
    error, _ = fit(with_batch_norm(make_module), spoil([17]), always)
    assert error
    files = list((tmp_path / "c").glob("*.ckpt"))
    assert {"last.ckpt"} < {file.name for file in files}
    for file in files:
        content = torch.load(file)
        moments = [m for s in content["optimizer_states"][0]["state"].values() for m in s.values()]
        for tensor in [*content["state_dict"].values(), *moments]:
            assert tensor.isfinite().all()
        assert content["global_step"] <= 2


def test_weights_that_overflowed_are_not_saved(fit, make_module, data, tmp_path):
    each = ModelCheckpoint(dirpath=tmp_path / "c", save_top_k=-1, every_n_train_steps=1)
    error, _ = fit(make_module(lr=INF), data, each)
    assert str(error).startswith("Not saved at step 1 (epoch 0): 2 of 2 parameters")
    assert not list(tmp_path.glob("c/*"))


@pytest.mark.parametrize(("sample", "batch"), [(2, 0), (10, 1)])
def test_an_accumulated_batch_is_blamed_when_its_step_is_due(
    fit, make_module, spoil, sample, batch
):
    module = with_batch_norm(make_module)
    error, states = fit(module, spoil([sample]), accumulate_grad_batches=2)
    assert f"step 0 (epoch 0, batch {batch}): the input" in str(error)
    assert f"1 of 8 samples: {sample} of the training split" in str(error)
    assert len(states) == 2
    assert equal(module.state_dict(), states[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_watched_too(fit, make_module, data, dtype):
    class Mixed(make_module):
        def __init__(self):
            super().__init__()
            self.extra = nn.Parameter(torch.ones((), dtype=dtype))
            self.empty = nn.Parameter(torch.ones(0, dtype=dtype))

        def training_step(self, batch, batch_idx):
            extra = self.extra * 0 if batch_idx == 2 else self.extra
            loss = super().training_step(batch, batch_idx)
            return loss + extra.sqrt().float() + self.empty.sum().float()

    error, _ = fit(Mixed(), data)
    assert "batch 2): the loss is finite, but 1 of 4 gradients are not finite: extra." in str(error)


def fp16(**settings):
    scaler = torch.amp.GradScaler("cpu", **settings)
    return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler=scaler)]}


def test_the_scaler_of_fp16_skips_its_own_steps(fit, make_module, spoil):
    module = make_module()
    error, states = fit(module, spoil([9]), max_epochs=2, **fp16())
    assert error is None
    assert equal(states[1], states[2])  # skipped
    assert not equal(states[2], states[3])
    assert all(value.isfinite().all() for value in module.state_dict().values())


def test_a_scaler_that_skips_for_ever_stops_the_run(fit, make_module, spoil):
    error, states = fit(make_module(), spoil(slice(0, 32)), max_epochs=20, **fp16())
    assert "the input is not finite in 8 of 8 samples" in str(error)
    assert len(states) == 32
    assert equal(states[0], states[-1])


@pytest.fixture
def on_device(monkeypatch):
    """Let a CPU's fused optimizer do what CUDA's does: leave out the step by itself."""

    def skips(optimizer, device):
        return bool(optimizer.param_groups[0]["fused"] and optimizer.state)

    monkeypatch.setattr(finite_guard, "_skips_on_device", skips)


def fused(module):
    module.configure_optimizers = lambda: torch.optim.AdamW(
        module.parameters(), lr=0.1, weight_decay=0.1, fused=True
    )
    return module


@pytest.mark.usefixtures("on_device")
def test_a_step_left_out_on_the_device_stops_the_run_in_the_next(fit, make_module, spoil):
    module = fused(with_batch_norm(make_module))
    error, states = fit(module, spoil([9]))
    assert "step 1 (epoch 0, batch 1): the input is not finite in 1 of 8 samples: 9" in str(error)
    assert len(states) == 3
    assert equal(module.state_dict(), states[1])


@pytest.mark.usefixtures("on_device")
def test_a_step_left_out_on_the_device_is_not_saved(fit, make_module, spoil, tmp_path):
    each = ModelCheckpoint(dirpath=tmp_path / "c", save_top_k=-1, every_n_train_steps=1)
    error, states = fit(fused(with_batch_norm(make_module)), spoil([9]), each)
    assert "step 1 (epoch 0, batch 1)" in str(error)
    assert len(states) == 2
    [file] = tmp_path.glob("c/*")
    assert torch.load(file)["global_step"] == 1


@pytest.mark.usefixtures("on_device")
def test_gradients_of_a_step_left_out_are_blamed_by_name(fit, make_module, data):
    module = fused(broken(make_module, at=1, part="gradient"))
    error, _ = fit(module, data)
    assert "batch 1): the loss is finite, but 1 of 2 gradients are not finite: net.2.bias." in str(
        error
    )


@pytest.mark.usefixtures("on_device")
def test_the_last_step_of_a_run_is_looked_at_on_the_device_too(fit, make_module, spoil):
    error, _ = fit(fused(make_module()), spoil([31]))
    assert "step 3 (epoch 0, batch 3)" in str(error)


@pytest.mark.usefixtures("on_device")
def test_a_healthy_run_on_the_device_is_not_changed_by_a_bit(fit, make_module, data):
    modules = []
    for guard in (True, False):
        torch.manual_seed(0)
        modules.append(fused(make_module()))
        assert fit(modules[-1], data, guard=guard, max_epochs=3)[0] is None
    assert equal(modules[0].state_dict(), modules[1].state_dict())


DIVERGES = ["fit", "--trainer.max_epochs", "1", "--model.optimizer.lr", "1e38"]


@pytest.mark.filterwarnings("ignore")  # numbers that are not finite upset what draws them
def test_the_command_has_it_on_by_default(capsys):
    assert main(DIVERGES) == 1
    said = capsys.readouterr().err
    assert re.search(r"Stopped at step \d+ \(epoch 0", said)
    assert "Traceback" not in said
    assert not list(Path("logs").rglob("*.ckpt"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_one_setting_switches_it_off():
    # Early stopping has its own look at val/loss.
    assert main([*DIVERGES, "--finite_guard", "null", "--early_stopping", "null"]) == 0


SCRIPT = """
import pathlib, sys, torch
import lightning as L
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from project.callbacks import FiniteGuard
from project.data.loader import EvalSampler

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        loss = self.net(batch[0]).pow(2).mean()
        if batch_idx == 2:
            pathlib.Path("bad_step").touch()
        alone = sys.argv[1] == "loss" and self.global_rank == 1 and batch_idx == 2
        return loss + float("nan") if alone else loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

if __name__ == "__main__":
    images = torch.randn(64, 4)
    if sys.argv[1] == "input":
        images[33] = float("nan")
    data = TensorDataset(images, torch.zeros(64).long(), torch.arange(64))
    loader = DataLoader(data, batch_size=8, sampler=EvalSampler(64))
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, callbacks=[FiniteGuard()])
    try:
        trainer.fit(Module(), loader)
    finally:  # else gloo's threads may outlive the interpreter, which aborts it
        torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", ["input", "loss", "fine"])
def test_all_processes_stop(case):
    Path("script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py", case], capture_output=True, text=True, timeout=120
    )
    seconds = time.time() - Path("bad_step").stat().st_mtime
    assert (done.returncode == 0) == (case == "fine"), done.stderr
    if case == "input":
        # Rank 0 says what rank 1 has seen.
        said = re.findall(r"NonFiniteError: (Stopped at step 2 .*)", done.stderr)
        assert said
        assert "on process 1 of 2, the input is not finite in 1 of 8 samples: 33" in said[0]
    assert seconds < 10
