"""Which classes are taken for which: a picture and a table for every class."""

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from project.callbacks.board import add_picture, class_names, tensorboard_writer
from project.confusion import Counts, draw_confusion_matrix, per_class_table


class ConfusionMatrixPicture(Callback):
    """Log the confusion matrix of every validation and test as a picture and as a table.

    The picture ``<split>/confusion_matrix`` has true classes as rows and predicted ones as columns,
    the table ``<split>/per_class`` (under TEXT) has precision, recall, F1 and the number of samples
    of every class, n/a where a figure is not defined. After the validation or test it reads
    ``confusion_matrix``, counts ``(num_classes, num_classes)`` summed over all processes, and calls
    ``per_class()`` of the LightningModule, leaves out what the module has not, and does nothing
    without a TensorBoard logger.
    """

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the validation's matrix; the module has filled it by now."""
        if not trainer.sanity_checking:
            _log(trainer, pl_module, "val")

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the test's matrix."""
        _log(trainer, pl_module, "test")


def _log(trainer: L.Trainer, pl_module: L.LightningModule, split: str) -> None:
    writer = tensorboard_writer(trainer)
    matrix = getattr(pl_module, "confusion_matrix", None)
    if writer is None or not isinstance(matrix, Tensor):
        return
    counts: Counts = matrix.detach().cpu().numpy().astype(np.int64)
    names = class_names(trainer, len(counts))
    step = trainer.global_step
    add_picture(writer, f"{split}/confusion_matrix", draw_confusion_matrix(counts, names), step)
    per_class = getattr(pl_module, "per_class", None)
    if callable(per_class):
        writer.add_text(f"{split}/per_class", per_class_table(per_class(), names), step)
