"""What callbacks share to write to TensorBoard: the writer, class names, a picture."""

from typing import TYPE_CHECKING, Any, cast

import lightning as L
import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def tensorboard_writer(trainer: L.Trainer) -> "SummaryWriter | None":
    """The run's TensorBoard writer; None on other ranks and where no TensorBoard logger is set."""
    if not trainer.is_global_zero:
        return None
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            return cast("SummaryWriter", logger.experiment)
    return None


def class_names(trainer: L.Trainer, num_classes: int) -> list[str]:
    """Names from ``trainer.datamodule.class_names``, or the class numbers where none fit."""
    names: Any = getattr(getattr(trainer, "datamodule", None), "class_names", None)
    if names is None or len(names) != num_classes:
        return [str(index) for index in range(num_classes)]
    return [str(name) for name in names]


def add_picture(writer: "SummaryWriter", tag: str, picture: Image.Image, step: int) -> None:
    """Log ``picture`` under ``tag``."""
    writer.add_image(tag, np.asarray(picture), step, dataformats="HWC")
