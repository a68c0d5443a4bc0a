"""A run stops at its first NaN or Inf, while its weights are still good."""

import math
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import SGD, Adam, AdamW, Optimizer

from project.callbacks.finite_cause import bad_parameters, find_cause, is_finite, local
from project.mistakes import RunFailed

# A loss scale begins at 2**16 and is halved by every step that fp16 skips: 31 in a row. Healthy
# runs stay far above.
_HOPELESS_SCALE = 2.0**-14
# Those that the loss scaler's check takes in every version of torch.
_FAST = (torch.float32, torch.float16, torch.float64)


class NonFiniteError(RunFailed):
    """A loss or a gradient was NaN or Inf; says where it came from and what to try."""


class _Step(NamedTuple):
    """What became part of an optimizer step.

    Args:
        batch_idx: The first of its batches.
        batch: Its last batch, or that of ``bad``.
        losses: One ``()`` for every batch.
        bad: The first of ``losses`` that is known not to be finite.
        statistics: Running statistics of BatchNorm as they were before it.
    """

    batch_idx: int
    batch: object
    losses: list[Tensor]
    bad: int | None
    statistics: list[Tensor]


class _Flag(NamedTuple):
    """1. if a step was bad, else 0.; on its way from the device to the CPU."""

    value: Tensor
    arrived: torch.cuda.Event | None
    step: _Step


class FiniteGuard(Callback):
    """Stop a training at the first loss or gradient that is NaN or Inf, before weights change.

    Weights, optimizer and the running statistics of BatchNorm are those before the bad step, and no
    checkpoint is written that has NaN or Inf in a parameter. Looks once an optimizer step, at the
    losses and the gradients of all its batches, before they are clipped. With ``precision:
    16-mixed`` the loss scaler skips bad steps itself, and the run stops only when more than 30 in a
    row were bad.

    Costs one pass over the gradients. On CUDA the fused Adam, AdamW and SGD leave out a bad step on
    the device, and the run stops in the step that follows, so that the GPU never waits; any other
    optimizer waits for the GPU once a step. Processes of DDP stop together. Where a loss is bad on
    one process and all gradients are finite, and under FSDP, that process stops and its launcher
    ends the others. Under DeepSpeed, which keeps gradients to itself, losses alone are watched.

    Raises:
        NonFiniteError: In training. Says whether input (which samples), parameters, loss or
            gradients are to blame, and what to try.
    """

    def __init__(self) -> None:
        # Of the step in the making: see _Step. Plain attributes, since every microsecond counts.
        self._batch_idx = 0
        self._batch: object = None
        self._losses: list[Tensor] = []
        self._bad: int | None = None
        self._before: list[Tensor] = []
        self._flag: _Flag | None = None  # of the step before
        self._statistics: list[Tensor] = []
        self._scaler: torch.amp.GradScaler | None = None
        # Made once: a small network's check would take half as long again.
        self._found = self._one = torch.zeros(())

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Find the running statistics, which change before there is a loss to look at."""
        self._losses, self._bad, self._flag = [], None, None
        self._statistics = _running_statistics(pl_module)
        self._scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._found = torch.zeros((), device=pl_module.device)
        self._one = torch.ones_like(self._found)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Remember the batch, and the statistics before the first one of a step."""
        if not self._losses:
            self._batch_idx = batch_idx
            if self._statistics:
                self._before = _copy(self._statistics)
        if self._bad is None:
            self._batch = batch

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        """Note the loss; to stop here would leave other processes waiting for the gradients."""
        self._losses.append(loss.detach())
        if self._bad is None and trainer.accumulate_grad_batches > 1 and loss.device.type == "cpu":
            # Elsewhere asking would make the device wait for every batch.
            self._bad = None if is_finite(loss) else len(self._losses) - 1

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        """Stop if a loss or a gradient is bad, or have the optimizer leave out its step."""
        self._look(trainer, pl_module)
        step = _Step(self._batch_idx, self._batch, self._losses, self._bad, self._before)
        self._losses, self._bad = [], None
        # fp16's scaler skips such steps itself.
        if self._scaler is not None and self._scaler.get_scale() >= _HOPELESS_SCALE:
            return
        found = self._search(_gradients(optimizer), step.losses)
        if self._scaler is None and _skips_on_device(optimizer, found.device):
            optimizer.found_inf = found  # type: ignore[attr-defined]
            self._flag = _send(found, step)
        elif found.item():
            self._stop(trainer, pl_module, step, trainer.global_step)

    def on_before_zero_grad(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        """See how the last step went; the device is busy with the next forward pass meanwhile."""
        self._look(trainer, pl_module)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """See how the last step went, before its statistics are used."""
        self._look(trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """See how the last step of the epoch went."""
        self._look(trainer, pl_module)

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """See how the last step went, and that its update has not overflowed, before it is written.

        An update can: with finite gradients and a huge lr.
        """
        self._look(trainer, pl_module)
        if cause := bad_parameters(trainer, pl_module):
            raise NonFiniteError(
                f"Not saved at step {trainer.global_step} (epoch {trainer.current_epoch}): "
                f"{cause.what}.\n{cause.advice}"
            )

    def _search(self, gradients: list[Tensor], losses: list[Tensor]) -> Tensor:
        """1. if any value is not finite, else 0., float32 ``()`` on the device, without waiting."""
        tensors, found, device = gradients + losses, self._found.zero_(), self._found.device
        if device.type == "cpu":  # where looking makes nobody wait
            return found.fill_(not all(map(is_finite, tensors)))
        kind = tensors[0].dtype if tensors else None
        others = [t for t in tensors if t.dtype is not kind or t.device != device]
        if not others and kind in _FAST and device.type == "cuda":
            # What the loss scaler calls, here with a scale of 1: exact, and faster than any norm.
            torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, self._one)
            return found
        filled = [[t for t in group if t.numel()] for group in (gradients, losses)]
        norms = [norm for group in filled if group for norm in torch._foreach_norm(group, math.inf)]
        finite = [norm.to(device).isfinite() for norm in norms]
        return found.copy_(~torch.stack(finite).all()) if finite else found

    def _look(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self._flag is None:
            return
        (value, arrived, step), self._flag = self._flag, None
        if arrived is not None:
            arrived.synchronize()
        if value.item():
            self._stop(trainer, module, step, trainer.global_step - 1)

    def _stop(
        self, trainer: L.Trainer, module: L.LightningModule, step: _Step, number: int
    ) -> None:
        for statistic, before in zip(self._statistics, step.statistics, strict=True):
            statistic.copy_(before)
        bad, last = step.bad, len(step.losses) - 1
        if bad is None:
            bad = next((i for i, loss in enumerate(step.losses) if not is_finite(loss)), None)
        is_kept = step.bad is not None or bad in (None, last)
        loss = None if bad is None else step.losses[bad]
        cause = find_cause(trainer, module, step.batch if is_kept else None, loss)
        batch_idx = step.batch_idx + (last if bad is None else bad)
        raise NonFiniteError(
            f"Stopped at step {number} (epoch {trainer.current_epoch}, batch {batch_idx}): "
            f"{cause.what}.\n{cause.advice}\nNothing of this step is in the weights or in a "
            "checkpoint. To train on regardless: --finite_guard null"
        )


def _gradients(optimizer: Optimizer) -> list[Tensor]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [local(gradient) for p in parameters if (gradient := p.grad) is not None]


def _running_statistics(module: nn.Module) -> list[Tensor]:
    norms = [part for part in module.modules() if isinstance(part, _NormBase)]
    return [buffer for norm in norms for buffer in norm.buffers(recurse=False)]


def _copy(tensors: list[Tensor]) -> list[Tensor]:
    """Copy many small tensors with few kernels."""
    copies = [torch.empty_like(tensor) for tensor in tensors]
    torch._foreach_copy_(copies, tensors)
    return copies


def _skips_on_device(optimizer: Optimizer, device: torch.device) -> bool:
    """Whether a kernel there leaves out the step where ``optimizer.found_inf`` is 1."""
    return (
        device.type == "cuda"
        and type(optimizer) in (Adam, AdamW, SGD)
        and all(group.get("fused") for group in optimizer.param_groups)
        # Not the first step: SGD would keep a momentum that no kernel has filled.
        and len(optimizer.state) > 0
    )


def _send(found: Tensor, step: _Step) -> _Flag:
    """Start the flag on its way to the CPU."""
    value = found.to("cpu", non_blocking=True)
    if found.device.type != "cuda":
        return _Flag(value, None, step)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return _Flag(value, arrived, step)
