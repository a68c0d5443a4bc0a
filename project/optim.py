"""Parameter groups, the default schedule, and what a resume does to optimizer and schedule."""

import inspect
import math
from collections.abc import Iterable
from importlib import import_module
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
BACKBONE = "backbone_"  # how the names of its groups begin
# Settings that stand in an optimizer's groups and that nothing but the user changes.
SETTINGS = (
    *("initial_lr", "max_lr", "min_lr", "weight_decay", "momentum", "betas", "eps"),
    *("dampening", "nesterov", "amsgrad", "alpha"),
)


class WarmupCosine(LRScheduler):
    """Learning rate that rises linearly, then falls along a cosine; one move per optimizer step.

    The first step has ``lr / warmup_steps``, never 0; the last step has ``lr * final_lr_fraction``.
    SGDR, https://arxiv.org/abs/1608.03983, without restarts; warm-up: https://arxiv.org/abs/1706.02677.

    Args:
        optimizer: Its ``lr`` is the peak.
        warmup_steps: Optimizer steps of the rise; below 1, a fraction of all steps.
        total_steps: Optimizer steps of the whole run; null takes it from the trainer. While it is
            unknown (training without an end) the learning rate stays at the peak after a warm-up
            in steps, and a fraction means no warm-up.
        final_lr_fraction: Learning rate of the last step as a fraction of the peak, in [0, 1].

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int | float = 0.05,
        total_steps: int | None = None,
        final_lr_fraction: float = 0.01,
    ) -> None:
        if warmup_steps < 0 or (warmup_steps >= 1 and warmup_steps != int(warmup_steps)):
            raise ValueError(
                f"warmup_steps must be whole steps or a fraction in [0, 1), got {warmup_steps}"
            )
        if total_steps is not None and total_steps < 1:
            raise ValueError(f"total_steps must be at least 1 or null, got {total_steps}")
        if not 0 <= final_lr_fraction <= 1:
            raise ValueError(f"final_lr_fraction must be in [0, 1], got {final_lr_fraction}")
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.final_lr_fraction = final_lr_fraction
        self.warmup = self.count_warmup()
        super().__init__(optimizer)

    def count_warmup(self) -> int:
        """Optimizer steps of the rise, at most all but the last."""
        if self.total_steps is None:
            return int(self.warmup_steps)
        steps = (
            self.warmup_steps if self.warmup_steps >= 1 else self.warmup_steps * self.total_steps
        )
        # Shorter runs than the warm-up (fast_dev_run) still end at the final learning rate.
        return min(round(steps), self.total_steps - 1)

    def get_lr(self) -> list[float | Tensor]:
        """Learning rate of every group for the optimizer step to come."""
        factor = self._factor(self.last_epoch)
        return [lr * factor for lr in self.base_lrs]

    def _factor(self, step: int) -> float:
        """Fraction of the peak at ``step``, counted from 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        peak = max(self.warmup - 1, 0)
        if self.total_steps is None or self.total_steps - 1 <= peak:
            return 1.0
        progress = min((step - peak) / (self.total_steps - 1 - peak), 1.0)
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.final_lr_fraction + (1 - self.final_lr_fraction) * cosine

    def set_total_steps(self, total_steps: int) -> None:
        """Move the end; a warm-up already begun keeps its length: there is no second one."""
        self.total_steps = total_steps
        if self.last_epoch == 0:
            self.warmup = self.count_warmup()
        refresh(self)

    def _get_closed_form_lr(self) -> list[float | Tensor]:
        return self.get_lr()


def refresh(scheduler: LRScheduler) -> None:
    """Compute the learning rate of the current position again and write it to the optimizer."""
    scheduler.last_epoch -= 1
    # _step_count may not pass through 1: torch takes that for a step before the optimizer's.
    count, scheduler._step_count = scheduler._step_count, 2
    scheduler.step()
    scheduler._step_count = count


def parameter_groups(net: nn.Module, backbone: Iterable[nn.Parameter] = ()) -> list[dict[str, Any]]:
    """Split trainable parameters into those with weight decay and those without.

    Biases and normalisation layers are not decayed ("Bag of Tricks", https://arxiv.org/abs/1812.01187,
    section 3.1). Shared parameters appear once, frozen ones not at all, an empty group is left out.

    Args:
        net: The network.
        backbone: Those of its parameters that get groups of their own, after those of the head.
    """
    apart = {id(parameter) for parameter in backbone}
    norms = {
        id(parameter)
        for module in net.modules()
        if isinstance(module, NORMS)
        for parameter in module.parameters(recurse=False)
    }
    # The names are those of the learning rates' curves, e.g. lr-AdamW/backbone_decay.
    groups: dict[str, dict[str, Any]] = {}
    for part in ("head_", BACKBONE) if apart else ("",):
        groups[f"{part}decay"] = {"params": []}
        groups[f"{part}no_decay"] = {"params": [], "weight_decay": 0.0}
    for parameter in net.parameters():
        if parameter.requires_grad:
            part = BACKBONE if id(parameter) in apart else "head_" if apart else ""
            plain = parameter.ndim < 2 or id(parameter) in norms
            groups[f"{part}{'no_decay' if plain else 'decay'}"]["params"].append(parameter)
    return [{**group, "name": name} for name, group in groups.items() if group["params"]]


def linear_scale(global_batch: int, reference: int) -> float:
    """Factor for a learning rate that was tuned at batch size ``reference``.

    Goyal et al. 2017, https://arxiv.org/abs/1706.02677, section 2.1.
    """
    return global_batch / reference


def use_fused(optimizer: Optimizer) -> bool:
    """Switch Adam, AdamW and SGD to their fused kernels where the user left the choice open.

    A fused step is one kernel for all parameters: 1.2 times faster training of an MLP on a CPU.
    """
    open_choice = all(
        group.get("fused", False) is None
        and not (group.get("foreach") or group.get("differentiable") or group.get("capturable"))
        for group in optimizer.param_groups
    )
    # A subclass of the user's may compute its step itself.
    supported = type(optimizer) in (Adam, AdamW, SGD) and all(
        parameter.is_floating_point() and parameter.device.type in ("cpu", "cuda", "mps", "xpu")
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
    if open_choice and supported:
        for group in optimizer.param_groups:
            group["fused"] = True
    return open_choice and supported


def step_quickly(optimizer: Optimizer) -> None:
    """Leave out the region that every step opens for torch's profiler, unless one listens.

    Of a small network's step it takes a fiftieth. Hooks on steps are called as ever.
    """
    try:  # private names: a torch that has others steps as it does
        module = import_module("torch.optim.optimizer")
        everywhere = module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks
        listens, region = torch._C._autograd._profiler_enabled, Optimizer.profile_hook_step
        of_torch = region(_nothing).__code__  # around every class's step, with that in __wrapped__
    except AttributeError:
        return
    whole: Any = type(optimizer).step
    if "step" in vars(optimizer) or getattr(whole, "__code__", None) is not of_torch:
        return  # its own, e.g. around that of another class
    bare = whole.__wrapped__

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        hooks = self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks, *everywhere
        return (whole if any(hooks) or listens() else bare)(self, *args, **kwargs)

    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]


def _nothing(optimizer: Optimizer) -> None: ...


def set_horizon(scheduler: LRScheduler, total_steps: int) -> str | None:
    """Let ``WarmupCosine`` or ``OneCycleLR`` end at ``total_steps``; return the line to print."""
    old: int | None = getattr(scheduler, "total_steps", None)
    if old == total_steps or not isinstance(scheduler, WarmupCosine | OneCycleLR):
        return None
    before = scheduler.optimizer.param_groups[0]["lr"]
    if isinstance(scheduler, WarmupCosine):
        scheduler.set_total_steps(total_steps)
    else:
        _stretch_one_cycle(scheduler, total_steps)
    if old is None:
        return None
    after = scheduler.optimizer.param_groups[0]["lr"]
    how = "stretched" if total_steps > old else "shortened"
    return (
        f"{type(scheduler).__name__}: the schedule of {old} optimizer steps is {how} "
        f"to {total_steps}; at step {scheduler.last_epoch} the lr goes from {before:.3g} to "
        f"{after:.3g} and on from there, without a second warm-up."
    )


def _stretch_one_cycle(scheduler: OneCycleLR, total_steps: int) -> None:
    phases = scheduler._schedule_phases
    if scheduler.last_epoch == 0:
        ratio = total_steps / scheduler.total_steps
        for i, phase in enumerate(phases[:-1], start=1):
            phase["end_step"] = (phase["end_step"] + i) * ratio - i  # torch: i * pct * total - i
    # Once under way only the last phase moves, so nothing warms up twice.
    phases[-1]["end_step"] = total_steps - 1
    scheduler.total_steps = total_steps
    refresh(scheduler)


def snapshot(optimizer: Optimizer, scheduler: LRScheduler | None) -> dict[str, Any]:
    """Settings as the user asked for them, before a checkpoint overwrites them."""
    names = set(inspect.signature(type(scheduler)).parameters) if scheduler else set()
    names -= {"optimizer", "last_epoch", "total_steps"}
    return {
        "groups": [{k: g[k] for k in SETTINGS if k in g} for g in optimizer.param_groups],
        "scheduler": {
            key: value
            for key, value in vars(scheduler).items()
            if key in names and isinstance(value, bool | int | float | str)
        }
        if scheduler
        else {},
    }


def restore_settings(
    optimizer: Optimizer, scheduler: LRScheduler | None, wanted: dict[str, Any]
) -> list[str]:
    """Put back what the user asks for now where a checkpoint brought other values.

    Torch restores lr, weight decay and the schedule's numbers from the checkpoint and so ignores
    the command line. Momentum moved by a cyclic schedule stays as restored.

    Returns:
        What changed, for example ``lr 0.001 -> 0.01``.
    """
    changes: dict[str, None] = {}
    cyclic = ("momentum", "betas") if getattr(scheduler, "cycle_momentum", False) else ()
    for i, (group, settings) in enumerate(
        zip(optimizer.param_groups, wanted["groups"], strict=False)
    ):
        for key, new in settings.items():
            old = group.get(key, new)
            if old == new or key in cyclic:
                continue
            group[key] = new
            changes[f"{key.removeprefix('initial_')} {old} -> {new}"] = None
            if key == "initial_lr":
                group["lr"] = group["lr"] * (new / old) if old else new
                if isinstance(scheduler, LRScheduler) and hasattr(scheduler, "base_lrs"):
                    scheduler.base_lrs[i] = new
    return [*changes, *_restore_schedule(scheduler, wanted["scheduler"])]


def _restore_schedule(scheduler: LRScheduler | None, wanted: dict[str, Any]) -> list[str]:
    old = {key: getattr(scheduler, key) for key in wanted if getattr(scheduler, key) != wanted[key]}
    for key in old:
        setattr(scheduler, key, wanted[key])
    if isinstance(scheduler, WarmupCosine) and "warmup_steps" in old:
        scheduler.warmup = scheduler.count_warmup()
    # Torch's schedules compute lr from the last lr; after a change only the closed form holds.
    if old and scheduler is not None and hasattr(scheduler, "_get_closed_form_lr"):
        for group, lr in zip(
            scheduler.optimizer.param_groups, scheduler._get_closed_form_lr(), strict=True
        ):
            group["lr"] = lr
    return [f"{key} {value} -> {wanted[key]}" for key, value in old.items()]
