"""Pictures of what the network says about the first validation images."""

import math
from collections.abc import Sequence

import lightning as L
import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import STEP_OUTPUT
from PIL import Image, ImageDraw
from torch import Tensor

from project.callbacks.board import (
    BLACK,
    WHITE,
    add_picture,
    class_names,
    fit_text,
    font,
    tensorboard_writer,
)

Channels = Sequence[float] | Tensor

_RED = (200, 20, 20)
_TEXT = 13
_TILE = 112  # px; wide enough for a short class name below the image
_LARGEST = 224
_GAP = 8


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
        images, labels, preds = (torch.cat(part).cpu() for part in zip(*samples, strict=True))
        if len(images) == 0:
            return
        datamodule = getattr(trainer, "datamodule", None)
        pixels = to_pixels(
            images.float(), getattr(datamodule, "mean", None), getattr(datamodule, "std", None)
        )
        names = class_names(trainer, self._num_classes)
        picture = draw_predictions(pixels, labels.tolist(), preds.tolist(), names)
        add_picture(writer, "val/predictions", picture, trainer.global_step)


def _is_classification(outputs: object, batch: object) -> bool:
    """Whether it is ``(B, num_classes)`` for images ``(B, C, H, W)`` and labels ``(B,)``."""
    if not isinstance(outputs, Tensor) or not isinstance(batch, tuple | list) or len(batch) < 2:
        return False
    images, labels = batch[0], batch[1]
    is_pair = isinstance(images, Tensor) and isinstance(labels, Tensor)
    return is_pair and (images.ndim, labels.ndim, outputs.ndim) == (4, 1, 2)


def to_pixels(
    images: Tensor, mean: Channels | None = None, std: Channels | None = None
) -> npt.NDArray[np.uint8]:
    """Bytes ``(B, H, W, 3)`` for the eye, from normalised images ``(B, C, H, W)``.

    Args:
        images: float32, on the CPU.
        mean: Per channel, what was subtracted; None to stretch each image to its own range.
        std: Per channel, what was divided by.
    """
    if mean is not None and std is not None:
        scale, shift = (torch.as_tensor(value).float().reshape(-1, 1, 1) for value in (std, mean))
        images = images * scale + shift
    else:
        low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
        images = (images - low) / (high - low).clamp_min(1e-8)
    images = images.nan_to_num(0.0)
    # Grey to RGB; of any other number of channels the first one stands for the image.
    images = images if images.shape[1] == 3 else images[:, :1].expand(-1, 3, -1, -1)
    pixels = (images * 255).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return np.asarray(pixels.contiguous().numpy())


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
    width, height = _shown_size(pixels.shape[2], pixels.shape[1])
    tile_width, tile_height = max(width, _TILE), height + 2 * (_TEXT + 4)
    columns = math.ceil(math.sqrt(len(pixels)))
    rows = -(-len(pixels) // columns)
    size = (columns * (tile_width + _GAP) + _GAP, rows * (tile_height + _GAP) + _GAP)
    sheet = Image.new("RGB", size, WHITE)
    draw = ImageDraw.Draw(sheet)
    for index, (label, pred) in enumerate(zip(labels, preds, strict=True)):
        left = _GAP + index % columns * (tile_width + _GAP)
        top = _GAP + index // columns * (tile_height + _GAP)
        image = Image.fromarray(pixels[index]).resize((width, height), Image.Resampling.NEAREST)
        sheet.paste(image, (left + (tile_width - width) // 2, top))
        color = BLACK if label == pred else _RED
        for line, text in enumerate((f"true {_name(names, label)}", f"pred {_name(names, pred)}")):
            where = (left + tile_width // 2, top + height + 2 + line * (_TEXT + 3))
            draw.text(where, fit_text(text, tile_width, _TEXT), color, font(_TEXT), anchor="ma")
    return sheet


def _shown_size(width: int, height: int) -> tuple[int, int]:
    """Small images grow by a whole factor so that pixels stay square; large ones shrink."""
    longest = max(width, height)
    if longest > _LARGEST:
        return max(1, width * _LARGEST // longest), max(1, height * _LARGEST // longest)
    factor = max(1, _TILE // longest)
    return width * factor, height * factor


def _name(names: list[str], index: int) -> str:
    return names[index] if index < len(names) else str(index)
