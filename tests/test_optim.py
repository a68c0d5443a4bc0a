import functools
import math

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from project.optim import (
    WarmupCosine,
    linear_scale,
    parameter_groups,
    set_horizon,
    step_quickly,
    use_fused,
)


def optimizer(lr: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)


def lrs(scheduler, steps: int) -> list[float]:
    values = []
    for _ in range(steps):
        values.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return values


def test_schedule_has_its_reference_values():
    got = lrs(WarmupCosine(optimizer(2.0), 4, 14, final_lr_fraction=0.1), 14)
    fall = [2 * (0.1 + 0.9 * (1 + math.cos(math.pi * k / 10)) / 2) for k in range(1, 11)]
    assert got == pytest.approx([0.5, 1.0, 1.5, 2.0, *fall])
    assert got[-1] == pytest.approx(0.2)


def test_schedule_stays_at_its_end():
    assert lrs(WarmupCosine(optimizer(), 0, 5), 8)[4:] == pytest.approx([0.01] * 4)


def test_warmup_may_be_a_fraction_of_all_steps():
    assert lrs(WarmupCosine(optimizer(), 0.1, 40), 40) == lrs(WarmupCosine(optimizer(), 4, 40), 40)


@pytest.mark.parametrize("total", [1, 2, 3, 10])
def test_schedule_starts_above_zero_and_a_long_warmup_leaves_room_for_the_end(total):
    values = lrs(WarmupCosine(optimizer(), 500, total), total)
    assert min(values) > 0
    assert total == 1 or values[-1] == pytest.approx(0.01)


def test_schedule_of_unknown_length_stays_at_the_peak():
    assert lrs(WarmupCosine(optimizer(), 2), 5) == [0.5, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "arguments",
    [
        {"warmup_steps": -1},
        {"warmup_steps": 1.5},
        {"total_steps": 0},
        {"final_lr_fraction": 1.1},
    ],
)
def test_schedule_refuses_wrong_arguments(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        WarmupCosine(optimizer(), **arguments)


def test_schedule_goes_on_from_a_safely_loaded_state(tmp_path):
    whole = lrs(WarmupCosine(optimizer(), 3, 12), 12)
    first = WarmupCosine(optimizer(), 3, 12)
    lrs(first, 5)
    torch.save(
        {"o": first.optimizer.state_dict(), "s": first.state_dict()}, tmp_path / "state.ckpt"
    )
    state = torch.load(tmp_path / "state.ckpt", weights_only=True)
    second = WarmupCosine(optimizer(), 3, 12)
    second.optimizer.load_state_dict(state["o"])
    second.load_state_dict(state["s"])
    assert lrs(second, 7) == whole[5:]


def test_longer_horizon_stretches_without_a_second_warmup():
    scheduler = WarmupCosine(optimizer(), 0.25, 12)
    lrs(scheduler, 4)
    line = set_horizon(scheduler, 100)
    values = lrs(scheduler, 96)
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(0.01)
    assert line is not None
    assert "stretched to 100" in line


@pytest.mark.parametrize("three_phase", [False, True])
def test_one_cycle_can_be_lengthened_past_its_end(three_phase):
    scheduler = OneCycleLR(optimizer(), 1.0, total_steps=10, three_phase=three_phase)
    lrs(scheduler, 10)
    assert "stretched to 40" in str(set_horizon(scheduler, 40))
    values = lrs(scheduler, 30)
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(1 / 25 / 1e4)


@pytest.mark.parametrize("three_phase", [False, True])
def test_one_cycle_lengthened_before_its_first_step_equals_the_longer_one(three_phase):
    make = [OneCycleLR(optimizer(), 1.0, total_steps=n, three_phase=three_phase) for n in (10, 40)]
    set_horizon(make[0], 40)
    assert lrs(make[0], 40) == pytest.approx(lrs(make[1], 40))


def test_groups_hold_every_trainable_parameter_once_and_decay_only_weights():
    blocks = [(nn.Conv2d(1, 1, 3, bias=False), nn.BatchNorm2d(1)) for _ in range(3)]
    layers = [layer for block in blocks for layer in block]
    net = nn.Sequential(*layers, nn.Linear(4, 10))
    net[0].weight.requires_grad_(False)
    decay, no_decay = parameter_groups(net)
    members = [id(p) for group in (decay, no_decay) for p in group["params"]]
    assert sorted(members) == sorted(id(p) for p in net.parameters() if p.requires_grad)
    assert all(p.ndim >= 2 for p in decay["params"])
    assert no_decay["weight_decay"] == 0
    assert len(no_decay["params"]) == 7  # 3 BatchNorms with 2 each, 1 bias


def test_norms_of_several_dimensions_are_not_decayed_and_shared_parameters_appear_once():
    net = nn.Sequential(nn.LayerNorm([4, 4]), nn.Linear(4, 4), nn.Linear(4, 4))
    net[2].weight = net[1].weight
    decay, no_decay = parameter_groups(net)
    assert [len(decay["params"]), len(no_decay["params"])] == [1, 4]


@pytest.mark.parametrize(
    ("make", "fused"),
    [
        (torch.optim.AdamW, True),
        (torch.optim.SGD, True),
        (lambda p: torch.optim.SGD(p, fused=False), False),
        (lambda p: torch.optim.AdamW(p, foreach=True), False),
        (torch.optim.RMSprop, False),
    ],
)
def test_fused_only_where_supported_and_left_open(make, fused):
    weight = nn.Parameter(torch.ones(3))
    built = make([weight])
    assert use_fused(built) is fused
    weight.grad = torch.ones(3)
    built.step()
    assert weight.max() < 1


def test_fused_adam_steps_like_the_plain_one():
    after = []
    for choose in (False, True):
        weight = nn.Parameter(torch.linspace(-1, 1, 7))
        built = torch.optim.AdamW([weight], lr=0.1)
        _ = choose and use_fused(built)
        for _ in range(5):
            weight.grad = weight.detach() ** 2
            built.step()
        after.append(weight.detach())
    # Order of float32 operations differs.
    torch.testing.assert_close(after[0], after[1], rtol=1e-5, atol=1e-6)


def test_a_step_opens_a_region_only_for_a_profiler_that_listens():
    def regions() -> list[str]:
        with torch.profiler.profile() as profiler:
            quick.step()
        return [event.name for event in profiler.events() if "Optimizer.step" in event.name]

    quick = optimizer()
    quick.param_groups[0]["params"][0].grad = torch.ones(1)
    assert len(regions()) == 1
    step_quickly(quick)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd.profiler, "record_function", None)
        quick.step()
    assert len(regions()) == 1
    assert quick.param_groups[0]["params"][0].item() == -3


def test_hooks_on_steps_and_a_closure_are_called_as_ever():
    quick, seen = optimizer(), []
    step_quickly(quick)
    quick.param_groups[0]["params"][0].grad = torch.ones(1)
    with quick.register_step_pre_hook(lambda *_: seen.append("before")):
        quick.step()
    with quick.register_step_post_hook(lambda *_: seen.append("after")):
        assert quick.step(lambda: 7) == 7
    with register_optimizer_step_post_hook(lambda *_: seen.append("global")):
        quick.step()
    assert seen == ["before", "after", "global"]
    schedule = WarmupCosine(quick, 0, 5)
    quick.step()
    schedule.step()
    assert quick.state_dict()["param_groups"][0]["lr"] < 1


def test_a_step_of_ones_own_stays():
    class Around(torch.optim.SGD):
        @functools.wraps(torch.optim.SGD.step)
        def step(self, closure=None):
            seen.append("class")
            return super().step(closure)

    around, patched, seen = Around(optimizer().param_groups), optimizer(), []
    patched.step = lambda: seen.append("object")
    for own in (around, patched):
        step_quickly(own)
        own.step()
    assert seen == ["class", "object"]


def test_linear_scale():
    assert linear_scale(1024, 256) == 4
