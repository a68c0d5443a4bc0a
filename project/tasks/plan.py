"""Optimizer and schedule of one run: built from the user's choice, checked when it begins."""

import math
from collections.abc import Iterable
from typing import Any, Literal, cast

from lightning.pytorch import Trainer
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.types import LRSchedulerConfigType
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from project.backbone import backbone_parameters, find_head
from project.mistakes import UserError
from project.optim import (
    BACKBONE,
    WarmupCosine,
    linear_scale,
    parameter_groups,
    restore_settings,
    set_horizon,
    snapshot,
    step_quickly,
    use_fused,
)
from project.tasks.fit_check import small_batch_norm

Scheduler = LRScheduler | ReduceLROnPlateau
# Defined over optimizer steps rather than epochs.
PER_STEP = (WarmupCosine, OneCycleLR, CyclicLR)
# The trainer's number of steps is asked for in `begin`, not when the schedule is built: asking
# loads the data, and Lightning then does not restore a stateful loader's position on a resume.
PLACEHOLDER = 1000


def per_device_batch(trainer: Trainer) -> int | None:
    """Images per process and forward pass in training, from the data module or its loader."""
    loader: Any = trainer.train_dataloader
    samplers = (getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None))
    for owner in (getattr(trainer, "datamodule", None), loader, *samplers):
        size = getattr(owner, "batch_size", None)
        if isinstance(size, int):
            return size
    return None


def for_accumulation(loss: Tensor, trainer: Trainer, batch_idx: int) -> Tensor:
    """Scale a loss so that the gradient is a mean over the batches really accumulated.

    Lightning divides by ``accumulate_grad_batches`` also where an epoch ends earlier.
    """
    accumulate = trainer.accumulate_grad_batches
    if accumulate == 1:
        return loss
    begin = batch_idx - batch_idx % accumulate
    return loss * (accumulate / min(accumulate, trainer.num_training_batches - begin))


def check_groups(checkpoint: dict[str, Any], backbone_lr_factor: float) -> None:
    """Refuse to go on with an optimizer whose parameters were grouped otherwise.

    Raises:
        UserError: If only one of the two has groups for the backbone.
    """
    optimizers = checkpoint.get("optimizer_states") or [{"param_groups": []}]
    names = [str(group.get("name", "")) for group in optimizers[0]["param_groups"]]
    had = any(name.startswith(BACKBONE) for name in names)
    if names and had != (backbone_lr_factor != 1):
        raise UserError(
            f"backbone_lr_factor is {backbone_lr_factor}, but the run to go on with had "
            f"{'another' if had else '1.0'}, and its optimizer has other groups of parameters.\n"
            "Keep it, or begin a new run with its weights: --init_from RUN"
        )


class Plan:
    """Optimizer and schedule of one ``fit``.

    Args:
        trainer: Knows steps, processes, accumulation and precision.
        make_scheduler: The user's schedule, or None.
        backbone_lr_factor: Learning rate of the backbone over that of the head.
    """

    def __init__(
        self,
        trainer: Trainer,
        make_scheduler: LRSchedulerCallable | None,
        backbone_lr_factor: float = 1.0,
    ) -> None:
        self.trainer = trainer
        self.make_scheduler = make_scheduler
        self.backbone_lr_factor = backbone_lr_factor
        self.optimizer: Optimizer | None = None
        self.scheduler: Scheduler | None = None
        self.own_end: int | None = None
        self.asked: dict[str, Any] = {}

    def steps(self) -> int | None:
        """Optimizer steps of the whole run, done and to come; None for training without an end."""
        trainer = self.trainer
        steps = trainer.estimated_stepping_batches
        if not 0 < steps < math.inf:
            return None
        batches, epochs = trainer.num_training_batches, trainer.max_epochs or -1
        if epochs < 0 or batches == math.inf:
            return int(steps)
        # Steps done may have been of another batch size, of which an epoch had more or fewer.
        accumulate, loop = trainer.accumulate_grad_batches, cast("Any", trainer.fit_loop)
        epoch, counts = math.ceil(batches / accumulate), loop.epoch_progress.current
        done = loop.epoch_loop.batch_progress
        begun = epoch if done.is_last_batch else done.current.ready // accumulate
        into = min(begun, epoch) if counts.ready > counts.processed else 0  # the epoch at hand
        total = trainer.global_step + int(max(epoch * (epochs - counts.processed) - into, 0))
        return total if trainer.max_steps < 0 else min(total, trainer.max_steps)

    def backbone(
        self, net: nn.Module, num_classes: int, head: str | None
    ) -> Iterable[nn.Parameter]:
        """Find the parameters that have a learning rate of their own."""
        if self.backbone_lr_factor == 1:
            return ()
        return backbone_parameters(net, find_head(net, num_classes, head))

    def build_optimizer(
        self,
        net: nn.Module,
        make_optimizer: OptimizerCallable,
        scale_lr: int | None,
        backbone: Iterable[nn.Parameter] = (),
    ) -> Optimizer:
        """Group the parameters, scale lr, choose the fused kernel."""
        groups = parameter_groups(net, backbone)
        if not groups:
            raise UserError(
                f"Nothing to train: every parameter of {type(net).__name__} is frozen.\n"
                "Leave some of them with requires_grad, or use `validate` or `test`."
            )
        try:
            optimizer = make_optimizer(groups)
        except ValueError as error:  # e.g. a learning rate below zero
            raise UserError(f"--model.optimizer: {error}") from error
        for group in optimizer.param_groups:
            if group.get("name", "").startswith(BACKBONE):
                group["lr"] = group["lr"] * self.backbone_lr_factor
        if scale_lr is not None:
            self._scale(optimizer, scale_lr)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        # A fused optimizer unscales gradients itself, and Lightning cannot clip them then.
        if self.trainer.precision != "16-mixed":
            use_fused(optimizer)
        step_quickly(optimizer)
        self.optimizer = optimizer
        return optimizer

    def _scale(self, optimizer: Optimizer, reference: int) -> None:
        batch, trainer = per_device_batch(self.trainer) or self._load_batch(), self.trainer
        world, accumulate = trainer.world_size, trainer.accumulate_grad_batches
        factor = linear_scale(batch * world * accumulate, reference)
        before = optimizer.param_groups[0]["lr"]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor
        rank_zero_only(print)(
            f"scale_lr: lr {before:.3g} -> {before * factor:.3g} for a global batch of "
            f"{batch * world * accumulate} ({batch} x {world} processes x {accumulate} batches) "
            f"instead of {reference}."
        )

    def _load_batch(self) -> int:
        self.steps()  # loads the data; a data module with batch_size spares that
        if batch := per_device_batch(self.trainer):
            return batch
        raise UserError(
            "scale_lr needs a batch size, but neither data module nor loader has `batch_size`.\n"
            "Give one of them that attribute, or set the lr yourself and leave out scale_lr."
        )

    def build_scheduler(self, optimizer: Optimizer) -> Scheduler | None:
        """Build the schedule; one that leaves its ``total_steps`` open ends with the run."""
        make = self.make_scheduler
        if make is None:
            self.asked = snapshot(optimizer, None)
            return None
        # The command line hands over a functools.partial with every argument, defaults included.
        given: dict[str, Any] = getattr(make, "keywords", {})
        is_open = "total_steps" in given and not (given["total_steps"] or given.get("epochs"))
        try:
            scheduler = self._try(make, optimizer, is_open)
        except ValueError as error:
            raise UserError(f"--model.scheduler: {error}") from error
        self._check_factor(scheduler)
        self.own_end = None if is_open else getattr(scheduler, "total_steps", None)
        self.scheduler = scheduler
        self.asked = snapshot(optimizer, scheduler)
        return scheduler

    def _check_factor(self, scheduler: Scheduler) -> None:
        rates = getattr(scheduler, "base_lrs", None)  # the head's first, the backbone's last
        factor = self.backbone_lr_factor
        if factor != 1 and rates and not math.isclose(rates[-1], rates[0] * factor):
            raise UserError(
                f"{type(scheduler).__name__} sets the learning rate of the backbone itself, so "
                f"backbone_lr_factor {factor} would have no effect.\n"
                "Leave it out, or use --model.scheduler project.optim.WarmupCosine."
            )

    def _try(self, make: LRSchedulerCallable, optimizer: Optimizer, is_open: bool) -> Scheduler:
        try:
            return make(optimizer)
        except ValueError:
            if not is_open:
                raise
            # OneCycleLR must have a length, one that `begin` will change.
            return make(optimizer, **{"total_steps": PLACEHOLDER})

    def config(
        self, scheduler: Scheduler, interval: Literal["step", "epoch"] | None, monitor: str
    ) -> LRSchedulerConfigType:
        """Say to Lightning when the schedule moves."""
        interval = interval or ("step" if isinstance(scheduler, PER_STEP) else "epoch")
        every = self.trainer.check_val_every_n_epoch
        watches = isinstance(scheduler, ReduceLROnPlateau) and monitor.startswith("val/")
        return {
            "scheduler": scheduler,
            "interval": interval,
            # In epochs without validation there is no metric, and Lightning would end the run.
            "frequency": (every or 1) if watches and interval == "epoch" else 1,
            "monitor": monitor,
            # Validation counted in steps over epochs: the first epochs may have no metric yet.
            "strict": every is not None,
        }

    def batch_norm_warning(self, net: nn.Module) -> str | None:
        """Why BatchNorm will hurt at this batch size, if it will."""
        size, trainer = per_device_batch(self.trainer), self.trainer
        if size is None:
            return None
        return small_batch_norm(net, size, trainer.world_size, trainer.accumulate_grad_batches)

    def begin(self) -> list[str]:
        """Bring a restored schedule to what is asked for now; return what to print."""
        lines = []
        assert self.optimizer is not None
        if changes := restore_settings(self.optimizer, self.scheduler, self.asked):
            lines.append(f"Other than in the checkpoint, as asked for now: {', '.join(changes)}.")
        if self.scheduler is not None and (end := self._end()):
            line = set_horizon(self.scheduler, end)
            # Nothing was lived through yet, and the user named no end: nothing to tell.
            is_news = self.scheduler.last_epoch > 0 or self.own_end is not None
            lines += [line] if line and is_news else []
        accumulate, batches = (
            self.trainer.accumulate_grad_batches,
            self.trainer.num_training_batches,
        )
        if accumulate > batches:
            lines.append(
                f"accumulate_grad_batches {accumulate} is more than an epoch has: the optimizer "
                f"steps at the end of every epoch, over {batches} batches."
            )
        return lines

    def _end(self) -> int | None:
        steps = self.steps()
        if isinstance(self.scheduler, WarmupCosine):
            return self.own_end or steps
        if not isinstance(self.scheduler, OneCycleLR):
            return None
        if steps is None:
            raise UserError(
                "OneCycleLR needs an end: set --trainer.max_epochs or --trainer.max_steps."
            )
        # One step past its end it raises; a longer one is the user's choice.
        return max(self.own_end or 0, steps)
