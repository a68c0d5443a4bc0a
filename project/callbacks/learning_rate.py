"""The learning rate's curve."""

from typing import Any

from lightning.pytorch import callbacks
from torch.optim import Optimizer


class LearningRateMonitor(callbacks.LearningRateMonitor):
    """Lightning's LearningRateMonitor, with one curve for groups of parameters that share a rate.

    An optimizer whose groups all have one rate has the curve ``lr-AdamW``; of several rates each
    has a curve under the name of its first group, ``lr-AdamW/backbone_decay``. Settings: see
    ``lightning.pytorch.callbacks.LearningRateMonitor``.
    """

    def _get_optimizer_stats(self, optimizer: Optimizer, names: list[str]) -> dict[str, Any]:
        stats = super()._get_optimizer_stats(optimizer, names)
        groups = optimizer.param_groups
        curves: dict[tuple[float, float | None], str] = {}
        for group, name in zip(groups, names, strict=True):
            # Rates that warm up from 0 together are two all the same.
            curves.setdefault((group["lr"], group.get("initial_lr")), name)
            stats.pop(name)
        if len(curves) == 1:
            own = groups[0].get("name", "pg1")
            curves = {rate: name.removesuffix(f"/{own}") for rate, name in curves.items()}
        return {name: lr for (lr, _), name in curves.items()} | stats
