"""Can the network learn a few batches by heart? If not, something is broken."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from torch.nn import functional as F

from project.mistakes import RunFailed, UserError

_CHANCE = 0.05


class OverfitCheck(Callback):
    """Fail the run unless it has learned its few training batches by heart.

    For runs with ``trainer.overfit_batches``: a network that works comes to a loss of about zero on
    them. The measure is the cross-entropy of ``forward`` in evaluation mode on the batches of the
    last epoch: dropout and label smoothing keep the logged training loss above zero even where all
    is well.

    Args:
        max_loss: Largest loss that counts as learned, in nats per image; 5 % of that of guessing,
            ``ln(num_classes)``, where it is None.

    Raises:
        ValueError: If ``max_loss`` is not positive.
    """

    def __init__(self, max_loss: float | None = None) -> None:
        if max_loss is not None and not max_loss > 0:
            raise ValueError(f"max_loss must be above 0, got {max_loss}")
        self.max_loss = max_loss
        self._first: Tensor | None = None
        self._batches: list[Any] = []
        self._losses: list[Tensor] = []

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuse a run over the whole training set, whose batches would all be kept in memory."""
        if not getattr(trainer, "overfit_batches", 0):
            raise UserError(
                "OverfitCheck is for runs over a few batches, but trainer.overfit_batches is 0. "
                "Set --trainer.overfit_batches 1 (or more), or remove the callback."
            )
        self._first = None

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget the batches of the epoch before."""
        self._batches, self._losses = [], []

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: STEP_OUTPUT,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Keep the batch as the network saw it, and its loss."""
        if outputs is None:
            return
        loss = (outputs if isinstance(outputs, Tensor) else outputs["loss"]).detach()
        self._first = loss if self._first is None else self._first
        self._batches.append(batch)
        self._losses.append(loss)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Measure, and raise unless the loss is about zero."""
        batches, self._batches = self._batches, []
        if not batches or self._first is None:
            return
        with _eval_mode(pl_module), trainer.precision_plugin.forward_context():
            mean, num_classes = _cross_entropy(pl_module, batches)
        loss = float(trainer.strategy.reduce(mean.to(pl_module.device), reduce_op="mean"))
        chance = math.log(max(num_classes, 2))
        limit = _CHANCE * chance if self.max_loss is None else self.max_loss
        last = float(torch.stack(self._losses).mean())
        story = (
            f"{len(batches)} batch{'es' * (len(batches) > 1)} in {trainer.global_step} "
            f"steps: training loss from {float(self._first):.4g} to {last:.4g}, in evaluation mode "
            f"{loss:.4g} (at most {limit:.3g}; guessing gives {chance:.3g})"
        )
        # Also false for a loss that is not a number.
        if not loss <= limit:
            raise RunFailed(_advice(story, last <= limit))
        pl_module.print(f"overfit check passed: the network memorised {story}")


@contextmanager
def _eval_mode(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every submodule gets its own mode back."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def _cross_entropy(module: torch.nn.Module, batches: list[Any]) -> tuple[Tensor, int]:
    """Mean loss over all images in nats, and the number of classes."""
    total, count, num_classes = torch.tensor(0.0), 0, 0
    for images, labels, *rest in batches:
        masked = len(rest) > 1 and getattr(module, "takes_mask", False)
        logits = module(images, rest[1]) if masked else module(images)  # (B, num_classes)
        total = total + F.cross_entropy(logits.float(), labels, reduction="sum").to(total.device)
        count += int((labels >= 0).sum()) if labels.ndim == 1 else len(labels)
        num_classes = logits.shape[1]
    return total / max(count, 1), num_classes


def _advice(story: str, learned_in_training_mode: bool) -> str:
    causes = (
        "The training loss is fine, so look at what differs in evaluation: BatchNorm statistics "
        "(more steps, larger batches), dropout, code that depends on self.training."
        if learned_in_training_mode
        else "Look at: labels (do they belong to the images?), lr (too small, too large), too few "
        "steps, the loss, frozen parameters,\nregularisation (dropout, augmentation, weight decay, "
        "label smoothing)."
    )
    return f"OVERFIT CHECK FAILED: the network cannot memorise {story}.\n{causes}"
