"""A picture of what the network really sees in training."""

from collections.abc import Sequence

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from project.callbacks.board import add_picture, class_names, tensorboard_writer
from project.callbacks.sheet import draw_sheet, name_of, to_pixels


class TrainingImages(Callback):
    """Log ``train/images`` once, as a run begins: its first images with their labels below.

    As they go into the network, after augmentation. Expects batches ``(images, labels, ...)`` with
    images ``(B, C, H, W)`` and labels ``(B,)``, or ``(B, num_classes)`` where they are
    probabilities; does nothing with others, or without a TensorBoard logger. A resumed run has its
    picture already. Images are shown un-normalised as in ``PredictionImages``.

    Args:
        num_images: Number of images in the picture.

    Raises:
        ValueError: If ``num_images`` is below 1.
    """

    def __init__(self, num_images: int = 16) -> None:
        if num_images < 1:
            raise ValueError(f"num_images must be at least 1, got {num_images}")
        self.num_images = num_images

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Draw and log the first batch of a run."""
        if batch_idx > 0 or trainer.global_step > 0:
            return
        writer = tensorboard_writer(trainer)
        if writer is None or not _has_images(batch):
            return
        assert isinstance(batch, Sequence)
        images, labels = (part[: self.num_images].detach().cpu() for part in batch[:2])
        data = getattr(trainer, "datamodule", None)
        mean, std = getattr(data, "mean", None), getattr(data, "std", None)
        known = len(getattr(data, "class_names", None) or [])
        names = class_names(trainer, labels.shape[1] if labels.ndim == 2 else known)
        captions = [caption(label, names) for label in labels]
        picture = draw_sheet(to_pixels(images.float(), mean, std), captions)
        add_picture(writer, "train/images", picture, 0)


def _has_images(batch: object) -> bool:
    """Whether it begins with images ``(B, C, H, W)`` and their labels."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        return False
    images, labels = batch[0], batch[1]
    if not isinstance(images, Tensor) or not isinstance(labels, Tensor) or images.ndim != 4:
        return False
    is_number = labels.ndim == 1 and not labels.is_floating_point()
    is_share = labels.ndim == 2 and labels.is_floating_point()
    return len(images) > 0 and len(images) == len(labels) and (is_number or is_share)


def caption(label: Tensor, names: list[str]) -> list[str]:
    """The name of a class, or of the two likeliest with their probabilities.

    Args:
        label: A number ``()``, negative for none, or probabilities ``(num_classes,)``.
        names: Name of each class.
    """
    if label.ndim == 0:
        return [name_of(names, int(label)) if label >= 0 else "no label"]
    shares, classes = label.float().topk(min(2, len(label)))
    pairs = [(share, index) for share, index in zip(shares.tolist(), classes.tolist(), strict=True)]
    if pairs[0][0] >= 0.995:
        return [name_of(names, pairs[0][1])]
    shown = [f"{name_of(names, index)} {share:.2f}" for share, index in pairs if share > 0]
    return shown or ["no label"]
