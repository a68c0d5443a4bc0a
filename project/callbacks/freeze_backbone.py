"""Fine-tuning in two stages: the head alone first, then the whole network."""

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from project.backbone import backbone_parameters, find_head
from project.mistakes import UserError


class FreezeBackbone(Callback):
    """Train the head of a network alone until an epoch begins, then everything.

    A new head sends large gradients into pretrained layers, which lose what they know before the
    head has learnt anything (https://arxiv.org/abs/2202.10054). While it is frozen, nothing of the
    backbone changes, the running statistics of BatchNorm included, and its gradients are not
    computed. What is frozen follows from the epoch alone, so that a resumed run goes on exactly.

    The task has ``net`` and ``num_classes``, and ``head_name`` where the head cannot be found: it
    is the last layer with one output a class.

    Args:
        until_epoch: First epoch, counted from 0, in which the backbone is trained too; at least 1.

    Raises:
        ValueError: If ``until_epoch`` is below 1.
        UserError: If the head is not found, or under FSDP or DeepSpeed.
    """

    def __init__(self, until_epoch: int = 1) -> None:
        if until_epoch < 1:
            raise ValueError(f"until_epoch must be at least 1, got {until_epoch}")
        self.until_epoch = until_epoch
        self._backbone: list[nn.Parameter] = []
        self._norms: list[nn.Module] = []
        self._is_frozen = self._just_thawed = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """See that there is a head, before anything is trained."""
        if stage != "fit":
            return
        if not isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy):
            raise UserError(
                f"FreezeBackbone works on one device or with --trainer.strategy ddp, not with "
                f"{type(trainer.strategy).__name__}."
            )
        backbone_parameters(_net(pl_module), _head(pl_module))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Freeze; only now, so that the optimizer has all parameters from the start."""
        net, head = _net(pl_module), _head(pl_module)
        self._backbone, self._is_frozen = backbone_parameters(net, head), False
        self._norms = [
            module
            for name, module in net.named_modules()
            if isinstance(module, _NormBase) and not f"{name}.".startswith(f"{head}.")
        ]
        self._follow(trainer)
        if self._is_frozen:
            until = self.until_epoch
            count = sum(parameter.numel() for parameter in self._backbone)
            last = (trainer.max_epochs or 0) - 1  # negative for a training without an end
            never = f"; to the end, as epoch {last} is the last" if 0 <= last < until else ""
            pl_module.print(
                f"Frozen until epoch {until}: {count:,} parameters, all but {head}{never}"
            )

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Thaw when it is time."""
        self._just_thawed = self._follow(trainer)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Keep running statistics as they are, whoever has set the network's mode meanwhile."""
        if self._is_frozen:
            for norm in self._norms:
                norm.training = False
        elif self._just_thawed:  # only now, after the progress bar's line of the epoch before
            self._just_thawed = False
            pl_module.print(f"Epoch {trainer.current_epoch}: the backbone is trained too from here")

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leave the network as it was given."""
        self._set(frozen=False)

    def _follow(self, trainer: L.Trainer) -> bool:
        """Do what the epoch asks for; return whether that was another state."""
        frozen = trainer.current_epoch < self.until_epoch
        if frozen == self._is_frozen:
            return False
        self._set(frozen)
        strategy = trainer.strategy
        if isinstance(strategy, DDPStrategy):
            # Its reducer waits for the parameters that were trainable when it was made.
            strategy.model = strategy.lightning_module
            strategy.configure_ddp()
        return True

    def _set(self, frozen: bool) -> None:
        if frozen != self._is_frozen:
            for parameter in self._backbone:
                parameter.requires_grad_(not frozen)
            for norm in self._norms:
                norm.training = not frozen
        self._is_frozen = frozen


def _net(module: L.LightningModule) -> nn.Module:
    net: nn.Module = getattr(module, "net", module)
    return net


def _head(module: L.LightningModule) -> str:
    num_classes, name = getattr(module, "num_classes", 0), getattr(module, "head_name", None)
    return find_head(_net(module), num_classes, name)
