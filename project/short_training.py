"""Trainings of some steps, to look at or to measure: nothing is said or kept."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers.logger import DummyLogger


class Memory(DummyLogger):
    """A logger that takes every call and keeps the metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, list[float]] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Keep them."""
        for name, value in metrics.items():
            self.history.setdefault(name, []).append(float(value))


# What a short training takes over from the trainer's settings.
CARRIED = (
    "accelerator",
    "precision",
    "max_epochs",
    "max_steps",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "limit_train_batches",
    "overfit_batches",
    "log_every_n_steps",
    "deterministic",
    "reload_dataloaders_every_n_epochs",
)


def quiet_trainer(
    said: Mapping[str, Any],
    folder: Path,
    callbacks: Sequence[Callback],
    **settings: Any,
) -> L.Trainer:
    """Build a Trainer for one process that says nothing and keeps no files.

    Args:
        said: The trainer's settings in the configuration.
        folder: Where it may write.
        callbacks: Its callbacks.
        settings: What is to be otherwise.
    """
    given: dict[str, Any] = {
        "accelerator": "cpu",
        "max_epochs": 10,
        "limit_val_batches": 1,
        "enable_progress_bar": False,
    }
    given |= {name: said[name] for name in CARRIED if said.get(name) is not None}
    if str(given.get("precision")).startswith("16") and not torch.cuda.is_available():
        del given["precision"]
    trainer = L.Trainer(
        devices=1,
        num_sanity_val_steps=0,
        logger=Memory(),
        callbacks=list(callbacks),
        plugins=[LightningEnvironment()],
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        **(given | settings),
    )
    # Signals are the caller's; Lightning would also log that they came.
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    return trainer
