"""A lower learning rate for what comes before the head."""

import functools

import lightning as L
import pytest
from small_nets import MLP, ConvNet
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR, ReduceLROnPlateau

from project.mistakes import UserError
from project.optim import WarmupCosine


class Rates(L.Callback):
    """Learning rate of every group at every step."""

    def __init__(self):
        self.seen = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.seen.append({group["name"]: group["lr"] for group in optimizer.param_groups})


@pytest.mark.parametrize("scheduler", [None, WarmupCosine, ReduceLROnPlateau])
def test_backbone_has_a_lower_learning_rate_all_along(trainer, task, data, scheduler):
    rates = Rates()
    model = task(ConvNet(1, 3), backbone_lr_factor=0.1, scheduler=scheduler)
    trainer(max_epochs=2, callbacks=[rates]).fit(model, data())
    assert len(rates.seen) == 16
    for step in rates.seen:
        names = ["head_decay", "head_no_decay", "backbone_decay", "backbone_no_decay"]
        assert list(step) == names
        head = step["head_decay"]
        assert list(step.values()) == pytest.approx([head, head, head / 10, head / 10])
    assert rates.seen[0]["head_decay"] <= 1e-3


def test_every_parameter_is_in_one_group(trainer, task, data):
    model, run = task(ConvNet(1, 3), backbone_lr_factor=0.1), trainer()
    run.fit(model, data())
    head_decay, head_no_decay, *backbone = run.optimizers[0].param_groups
    assert [len(group["params"]) for group in backbone] == [3, 6]
    assert head_decay["params"] == [model.net.head.weight]
    assert head_no_decay["params"] == [model.net.head.bias]
    assert head_no_decay["weight_decay"] == 0.0


def test_scale_lr_keeps_the_factor(trainer, task, data, capsys):
    rates = Rates()
    model = task(backbone_lr_factor=0.1, scale_lr=4, scheduler=None)
    trainer(callbacks=[rates]).fit(model, data())
    assert rates.seen[0]["head_decay"] == pytest.approx(2e-3)
    assert rates.seen[0]["backbone_decay"] == pytest.approx(2e-4)
    assert "lr 0.001 -> 0.002" in capsys.readouterr().out


def test_head_may_be_named(trainer, task, data):
    net = MLP(1, 4, 3, hidden_dims=[3], dropout=0.0)
    model, run = task(net, backbone_lr_factor=0.1, head="layers.1"), trainer()
    run.fit(model, data())
    assert run.optimizers[0].param_groups[0]["params"] == [net.layers[1].weight]


@pytest.mark.parametrize(
    "scheduler",
    [
        functools.partial(OneCycleLR, max_lr=0.1, total_steps=8),
        functools.partial(CyclicLR, base_lr=0.01, max_lr=0.1, cycle_momentum=False),
    ],
)
def test_a_schedule_that_would_ignore_the_factor_is_refused(trainer, task, data, scheduler):
    with pytest.raises(UserError, match=r"backbone_lr_factor 0.1 would have no effect"):
        trainer().fit(task(backbone_lr_factor=0.1, scheduler=scheduler), data())


@pytest.mark.parametrize(("before", "now"), [(1.0, 0.1), (0.1, 1.0)])
def test_a_resume_with_other_groups_is_refused(trainer, task, data, tmp_path, before, now):
    run = trainer()
    run.fit(task(backbone_lr_factor=before), data())
    run.save_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(UserError, match=f"backbone_lr_factor is {now}, but the run"):
        trainer(max_epochs=2).fit(
            task(backbone_lr_factor=now), data(), ckpt_path=tmp_path / "a.ckpt"
        )
    trainer().test(
        task(backbone_lr_factor=now), data(), ckpt_path=tmp_path / "a.ckpt", verbose=False
    )


def test_another_factor_asked_for_beats_the_checkpoint(trainer, task, data, tmp_path, capsys):
    run, rates = trainer(), Rates()
    run.fit(task(backbone_lr_factor=0.1, scheduler=None), data())
    run.save_checkpoint(tmp_path / "a.ckpt")
    model = task(backbone_lr_factor=0.5, scheduler=None)
    trainer(max_epochs=2, callbacks=[rates]).fit(model, data(), ckpt_path=tmp_path / "a.ckpt")
    assert rates.seen[0]["head_decay"] == pytest.approx(1e-3)
    assert rates.seen[0]["backbone_decay"] == pytest.approx(5e-4)
    assert "lr 0.0001 -> 0.0005" in capsys.readouterr().out


def test_factor_must_be_above_zero(task):
    with pytest.raises(ValueError, match="backbone_lr_factor must be above 0, got 0"):
        task(backbone_lr_factor=0.0)
