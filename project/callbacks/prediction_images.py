"""Pictures of what the network says about the first validation images."""

from collections.abc import Sequence

import lightning as L
import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import STEP_OUTPUT
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from project.callbacks.board import add_picture, class_names, tensorboard_writer
from project.callbacks.sheet import draw_sheet, name_of, to_pixels
from project.drawing import BLACK

_RED = (200, 20, 20)


class PredictionImages(Callback):
    """Log ``val/predictions``: validation images with the true and the predicted class below each.

    The first ``num_images`` of the validation set (those of this process), wrong ones in red.
    Expects batches ``(images, labels, ...)`` with images ``(B, C, H, W)`` and logits
    ``(B, num_classes)`` from ``validation_step``; does nothing with others, or without a
    TensorBoard logger. Images are shown un-normalised with the data module's ``mean`` and ``std``
    where it has them, else each is stretched from its darkest to its brightest value. Samples with
    a negative label are padding and left out.

    Args:
        num_images: Number of images in the picture.
        every_n_epochs: Log after every n-th epoch only.

    Raises:
        ValueError: If ``num_images`` or ``every_n_epochs`` is below 1.
    """

    def __init__(self, num_images: int = 16, every_n_epochs: int = 1) -> None:
        if num_images < 1:
            raise ValueError(f"num_images must be at least 1, got {num_images}")
        if every_n_epochs < 1:
            raise ValueError(f"every_n_epochs must be at least 1, got {every_n_epochs}")
        self.num_images = num_images
        self.every_n_epochs = every_n_epochs
        self._wanted = 0
        self._samples: list[tuple[Tensor, Tensor, Tensor]] = []  # images, labels, preds
        self._num_classes = 0

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget the last validation and see whether this one is to be shown."""
        due = not trainer.sanity_checking and (trainer.current_epoch + 1) % self.every_n_epochs == 0
        self._wanted = self.num_images if due and tensorboard_writer(trainer) is not None else 0
        self._samples = []

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: STEP_OUTPUT,
        batch: Sequence[Tensor],
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the first images and what was said about them."""
        if self._wanted == 0 or not _is_classification(outputs, batch):
            return
        assert isinstance(outputs, Tensor)
        images, labels, *_ = batch
        keep = (labels >= 0).nonzero()[: self._wanted, 0]
        # Indexing copies, so that the rest of the batch can be freed.
        self._samples.append((images[keep], labels[keep], outputs[keep].argmax(dim=1)))
        self._wanted -= len(keep)
        self._num_classes = outputs.shape[1]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Draw and log the picture."""
        samples, self._samples = self._samples, []
        writer = tensorboard_writer(trainer)
        if writer is None or not samples:
            return
        parts, *numbers = zip(*samples, strict=True)
        images = _together(parts).cpu()
        labels, preds = (torch.cat(part).cpu() for part in numbers)
        if len(images) == 0:
            return
        datamodule = getattr(trainer, "datamodule", None)
        pixels = to_pixels(
            images.float(), getattr(datamodule, "mean", None), getattr(datamodule, "std", None)
        )
        names = class_names(trainer, self._num_classes)
        picture = draw_predictions(pixels, labels.tolist(), preds.tolist(), names)
        add_picture(writer, "val/predictions", picture, trainer.global_step)


def _together(parts: Sequence[Tensor]) -> Tensor:
    """Join images ``(B, C, H, W)`` of batches that may have been padded to different sizes."""
    height, width = (max(part.shape[axis] for part in parts) for axis in (2, 3))
    gaps = [(0, width - part.shape[3], 0, height - part.shape[2]) for part in parts]
    return torch.cat([F.pad(part, gap) for part, gap in zip(parts, gaps, strict=True)])


def _is_classification(outputs: object, batch: object) -> bool:
    """Whether it is ``(B, num_classes)`` for images ``(B, C, H, W)`` and labels ``(B,)``."""
    if not isinstance(outputs, Tensor) or not isinstance(batch, tuple | list) or len(batch) < 2:
        return False
    images, labels = batch[0], batch[1]
    is_pair = isinstance(images, Tensor) and isinstance(labels, Tensor)
    return is_pair and (images.ndim, labels.ndim, outputs.ndim) == (4, 1, 2)


def draw_predictions(
    pixels: npt.NDArray[np.uint8], labels: list[int], preds: list[int], names: list[str]
) -> Image.Image:
    """A grid of images, the true class and the predicted one below each, wrong ones in red.

    Args:
        pixels: ``(B, H, W, 3)``.
        labels: True class of each image.
        preds: Predicted class of each image.
        names: Name of each class.
    """
    captions = [
        (f"true {name_of(names, label)}", f"pred {name_of(names, pred)}")
        for label, pred in zip(labels, preds, strict=True)
    ]
    right = [label == pred for label, pred in zip(labels, preds, strict=True)]
    return draw_sheet(pixels, captions, [BLACK if correct else _RED for correct in right])
