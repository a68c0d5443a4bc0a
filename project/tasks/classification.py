"""Image classification: cross-entropy, counted metrics, one optimizer and one schedule."""

from typing import Any, ClassVar, Literal, Self

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from project.optim import WarmupCosine
from project.pretrained import left_out
from project.tasks import fit_check
from project.tasks.arguments import check_arguments, check_monitor, plain_arguments
from project.tasks.losses import balanced_weights, label_check, to_labels, training_loss
from project.tasks.mask import inputs, takes_mask
from project.tasks.plan import Plan, Scheduler, check_groups, for_accumulation
from project.tasks.recompute import recompute_blocks
from project.tasks.tally import PerClass, Tally, per_class, worst_first

Batch = tuple[Tensor, ...] | list[Tensor]


class ClassificationTask(L.LightningModule):
    """Assign every image to one of ``num_classes`` classes.

    Logs ``<split>/loss`` (cross-entropy, nats per image) and ``<split>/acc`` (fraction in [0, 1])
    for train, val and test, and ``<split>/f1`` (macro mean over the classes that have samples) for
    val and test. Train figures are means over the steps since they were last logged.

    Args:
        net: Maps images ``(B, C, H, W)`` to logits ``(B, num_classes)``. If its ``forward`` takes a
            ``mask``, it gets that of padded images, bool ``(B, H, W)``, True where there is image.
        num_classes: Number of classes; labels run from 0 to ``num_classes - 1``, -100 is ignored.
        class_names: Name of every class, in the order of the labels.
        optimizer: Its weight decay leaves out biases and normalisation layers.
        scheduler: Learning rate over time; null keeps it constant.
        scheduler_monitor: What ``ReduceLROnPlateau`` watches, one of ``logged``.
        scheduler_interval: When the schedule moves; null means every optimizer step for schedules
            defined over steps (``WarmupCosine``, ``OneCycleLR``, ``CyclicLR``), else every epoch.
        label_smoothing: Probability mass spread over all classes, in [0, 1); training loss only, so
            that ``val/loss`` stays comparable across runs.
        class_weights: Weight of every class in the training loss. ``balanced`` makes all classes
            count alike: with ``n`` of the ``N`` training images, a class gets ``N / (K * n)``.
        scale_lr: Batch size that the learning rate was tuned for: lr is multiplied by the global
            batch (batch_size x processes x accumulated batches) over this; null leaves lr as given.
        backbone_lr_factor: Learning rate of everything before the head, as a multiple of the
            optimizer's; 0.1 is usual for pretrained networks.
        head: The part of the network that gives the logits, e.g. ``net.fc``, for what treats it
            apart; null finds the last layer with ``num_classes`` outputs.
        checkpoint_activations: Compute every block of the network a second time for its gradients
            instead of keeping its activations: less memory, a third more time, the same numbers.
        compile: Compile the network: minutes at the start, faster steps on a GPU, slower on a CPU.
        channels_last: Keep images and convolutions as ``(B, H, W, C)`` in memory: faster
            convolutions on a CPU, and in half precision on a GPU.

    Raises:
        ValueError: If an argument is out of range or a list has not ``num_classes`` entries.
    """

    logged: ClassVar[tuple[str, ...]] = ("train/loss", "train/acc", "val/loss", "val/acc", "val/f1")
    class_weights: Tensor | None
    confusion_matrix: Tensor | None = None
    _metric_is_new = False
    _checked = False
    _plan: Plan | None = None

    # Under the command line Lightning stores the plain configuration, network included, so that
    # load_from_checkpoint(path) works. From Python net, optimizer and scheduler are objects that no
    # weights_only load accepts: load_from_checkpoint(path, net=net) then needs the network again.
    def __init__(
        self,
        net: nn.Module,
        num_classes: int,
        class_names: list[str] | None = None,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        scheduler: LRSchedulerCallable | None = WarmupCosine,
        scheduler_monitor: str = "val/loss",
        scheduler_interval: Literal["step", "epoch"] | None = None,
        label_smoothing: float = 0.0,
        class_weights: list[float] | Literal["balanced"] | None = None,
        scale_lr: int | None = None,
        backbone_lr_factor: float = 1.0,
        head: str | None = None,
        checkpoint_activations: bool = False,
        compile: bool = False,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        check_arguments(
            num_classes, class_names, class_weights, label_smoothing, scale_lr, backbone_lr_factor
        )
        check_monitor(scheduler_monitor, self.logged)
        self.save_hyperparameters(logger=False, ignore=["net", "optimizer", "scheduler"])
        if "_instantiator" in self.hparams:  # under the command line, where they are plain
            self.save_hyperparameters(logger=False)
        self.num_classes = num_classes
        self.class_names = class_names or [str(label) for label in range(num_classes)]
        self.make_optimizer, self.make_scheduler = optimizer, scheduler
        self.scheduler_monitor, self.scheduler_interval = scheduler_monitor, scheduler_interval
        self.label_smoothing, self.scale_lr = label_smoothing, scale_lr
        self.backbone_lr_factor, self.head_name = backbone_lr_factor, head
        self.checkpoint_activations, self.compile_net = checkpoint_activations, compile
        self.channels_last = channels_last
        self._take(net, class_weights)

    def _take(self, net: nn.Module, class_weights: list[float] | str | None) -> None:
        self.net = net.to(memory_format=torch.channels_last) if self.channels_last else net
        if self.checkpoint_activations:
            recompute_blocks(self.net)
        self._expects_rgb = fit_check.first_conv_channels(net) == 3
        self.takes_mask = takes_mask(net)
        self._balance = class_weights == "balanced"
        given = None if isinstance(class_weights, str) else class_weights
        weights = None if given is None else torch.tensor(given)
        self.register_buffer("class_weights", weights, persistent=False)
        self._train_tally = Tally(self.num_classes, mean=True)
        self._eval_tally = Tally(self.num_classes)

    @_restricted_classmethod
    def load_from_checkpoint(cls, *args: Any, **kwargs: Any) -> Self:
        """Load as Lightning does; pretrained weights are left out, the checkpoint has all."""
        with left_out():
            return super().load_from_checkpoint(*args, **kwargs)

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map images ``(B, C, H, W)`` to logits ``(B, num_classes)``, float32 in half precision.

        Grey images are repeated to three channels for a network that expects RGB.
        """
        if self._expects_rgb and images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        logits: Tensor = self.net(images) if mask is None else self.net(images, mask=mask)
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the mean loss of ``(images, labels, ...)``; log every ``log_every_n_steps``.

        Mixed images have the probabilities of their classes ``(B, num_classes)`` for labels.
        """
        logits, targets = self(*inputs(batch, self.takes_mask)), batch[1]
        loss = training_loss(logits, targets, self.class_weights, self.label_smoothing)
        self._train_tally.add(loss.detach(), logits.detach(), to_labels(targets))
        self._log_train(batch_idx)
        return for_accumulation(loss, self.trainer, batch_idx)

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Count ``(images, labels, ...)`` and return logits ``(B, num_classes)``."""
        logits: Tensor = self(*inputs(batch, self.takes_mask))
        labels = batch[1]
        with label_check(labels, self.num_classes):
            loss = F.cross_entropy(logits, labels, reduction="sum")
        self._eval_tally.add(loss, logits, labels)
        return logits

    def test_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Count ``(images, labels, ...)`` and return logits ``(B, num_classes)``."""
        return self.validation_step(batch, batch_idx)

    def predict_step(self, batch: Batch | Tensor, batch_idx: int) -> Tensor:
        """Return probs ``(B, num_classes)``, float32, of ``(images, ...)`` or of images alone."""
        logits: Tensor = self(*inputs(batch, self.takes_mask))
        return logits.float().softmax(dim=1)

    def _log_train(self, batch_idx: int) -> None:
        every: int = getattr(self.trainer, "log_every_n_steps")  # noqa: B009
        last = batch_idx + 1 == self.trainer.num_training_batches or self.trainer.is_last_batch
        stepping = last or (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0
        if every and stepping and (self.trainer.global_step + 1) % every == 0:
            self._log("train", self._train_tally, on_step=True)
            self._train_tally.reset()

    def _log(self, split: str, tally: Tally, on_step: bool) -> None:
        """Log the figures of all processes."""
        tally.reduce(self.trainer.strategy)
        figures = {f"{split}/{name}": value for name, value in tally.scalars().items()}
        figures.pop("train/f1", None)
        # They are already the same on all processes: max leaves them so, to the last bit.
        self.log_dict(
            figures,
            prog_bar=not on_step,  # else a bar's numbers are read back in every step that follows
            on_step=on_step,
            on_epoch=not on_step,
            sync_dist=not on_step,
            reduce_fx="max",
        )

    def on_train_epoch_end(self) -> None:
        """Log the steps since the last logging."""
        if self._train_tally.batches:
            self._log("train", self._train_tally, on_step=False)
            self._train_tally.reset()

    def on_validation_epoch_start(self) -> None:
        """Forget what an earlier or interrupted evaluation counted."""
        self._eval_tally.reset()

    on_test_epoch_start = on_validation_epoch_start

    def on_validation_epoch_end(self) -> None:
        """Log the figures of the whole split and keep its confusion matrix."""
        self._log("val", self._eval_tally, on_step=False)
        self.confusion_matrix = self._eval_tally.confusion_matrix
        self._metric_is_new = not self.trainer.sanity_checking

    def on_test_epoch_end(self) -> None:
        """Log the figures of the whole split and keep its confusion matrix."""
        self._log("test", self._eval_tally, on_step=False)
        self.confusion_matrix = self._eval_tally.confusion_matrix

    def per_class(self) -> PerClass:
        """Precision, recall, F1 and support ``(num_classes,)`` of the last evaluation.

        Raises:
            RuntimeError: If nothing was evaluated yet.
        """
        if self.confusion_matrix is None:
            raise RuntimeError(
                "per_class() needs an evaluation: call trainer.validate or trainer.test"
            )
        return per_class(self.confusion_matrix)

    def worst_classes(self, count: int) -> list[int]:
        """Labels of the classes with the lowest recall in the last evaluation, lowest first."""
        return worst_first(self.per_class())[:count]

    def setup(self, stage: str) -> None:
        """Check that network and data fit, weigh classes, then compile.

        Raises:
            UserError: If they do not.
        """
        data = getattr(self.trainer, "datamodule", None)
        if not self._checked:
            self._checked = fit_check.check_data(self, self.net, self.num_classes, data)
        if stage != "fit":
            return
        self._train_tally.reset()  # of a fit before this one that did not end
        if self._balance:
            self.class_weights = balanced_weights(data, self.num_classes)
        if self.compile_net and self.net._compiled_call_impl is None:
            self.net.compile()  # in place: checkpoints keep their keys

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Build optimizer and schedule.

        Raises:
            UserError: If nothing can be trained, or a setting would have no effect.
        """
        plan = self._plan = Plan(self.trainer, self.make_scheduler, self.backbone_lr_factor)
        backbone = plan.backbone(self.net, self.num_classes, self.head_name)
        optimizer = plan.build_optimizer(self.net, self.make_optimizer, self.scale_lr, backbone)
        scheduler = plan.build_scheduler(optimizer)
        if scheduler is None:
            return {"optimizer": optimizer}
        config = plan.config(scheduler, self.scheduler_interval, self.scheduler_monitor)
        return {"optimizer": optimizer, "lr_scheduler": config}

    def lr_scheduler_step(self, scheduler: Scheduler, metric: Tensor | None) -> None:
        """Move the schedule; a plateau is only counted when its validation metric is new."""
        watches = metric is not None and self.scheduler_monitor.startswith("val/")
        if not watches or self._metric_is_new:
            super().lr_scheduler_step(scheduler, metric)
        if self._metric_is_new:
            self._metric_is_new = False

    def on_train_start(self) -> None:
        """Say what a resume changes, and what the batch size means for BatchNorm."""
        if self._plan is None:
            return
        for line in self._plan.begin():
            self.print(line)
        if warning := self._plan.batch_norm_warning(self.net):
            rank_zero_warn(warning)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the train figures not logged yet; keep only hyperparameters that load safely."""
        checkpoint["classification_task"] = {
            "train": self._train_tally.state_dict(self.trainer.strategy),
            "metric_is_new": self._metric_is_new,
        }
        arguments = checkpoint.get(self.CHECKPOINT_HYPER_PARAMS_KEY, {})
        checkpoint[self.CHECKPOINT_HYPER_PARAMS_KEY] = plain_arguments(arguments)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with the train figures of the checkpoint."""
        if "classification_task" not in checkpoint or self._trainer is None:
            return
        if self.trainer.training:
            check_groups(checkpoint, self.backbone_lr_factor)
        state = checkpoint["classification_task"]
        self._train_tally.load_state_dict(
            state["train"], self.trainer.global_rank, self.trainer.world_size
        )
        self._metric_is_new = state["metric_is_new"]
