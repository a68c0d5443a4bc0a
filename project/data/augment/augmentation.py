"""What a data module does to its training images, as settings."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import lightning as L
import torch
from torch import Tensor

from project.data.augment.basic import (
    random_erase,
    random_flip,
    random_rotation,
    random_shift,
    sample_keys,
)
from project.data.augment.color import color_jitter
from project.data.augment.crop import random_resized_crop
from project.data.augment.mixing import mix_batch
from project.data.augment.rand_augment import LARGEST, rand_augment
from project.data.hashing import mix, run_seed


class Augmentation(L.LightningDataModule):
    """Changes training images at random, on the device, by (seed, epoch, sample) only.

    In this order: random resized crop, rotation, shift, flips, RandAugment, colour jitter, erase;
    then, on the normalised batch, MixUp or CutMix. Nothing of it is done in validation, test and
    prediction. With ``trainer.overfit_batches`` every image is changed as in epoch 0, always, and
    none are mixed: only what stays can be learned by heart.

    Args:
        shift: Largest random shift of a training image in pixels, along both axes.
        flip: Mirror training images left to right, at random. ``alternating`` does so at random in
            the first epoch and then in every other one, so that two epochs show both sides of all
            (https://arxiv.org/abs/2404.00498, section 3.6).
        vertical_flip: Mirror them upside down, at random; for images without up and down, such as
            those from above or through a microscope.
        rotation: Largest angle in degrees by which training images are turned, either way, in [0,
            180].
        random_resized_crop: Smallest and largest share of the area, in (0, 1], of the random part
            of a training image that is shown at full size, with sides 3:4 to 4:3; [0.08, 1] is
            usual for photographs and many epochs, [0.35, 1] for fewer.
        color_jitter: Strength of random changes of brightness, contrast, saturation (factors 1 -
            strength to 1 + strength) and hue (by up to strength / 4 of the circle), in [0, 1]; 0.4
            is usual.
        erase: Side in pixels of a square that is painted over every training image (cutout), 0 for
            none.
        rand_augment: Magnitude, from 0 to 30, of the two random operations of RandAugment
            (https://arxiv.org/abs/1909.13719); 9 is usual. Null for none.
        mixup: Blend every training image and its label with another one; the weight is drawn from
            Beta(mixup, mixup) for every batch (https://arxiv.org/abs/1710.09412). 0.2 is usual, 0
            for none.
        cutmix: Paste a box of another training image into every one and mix the labels by area,
            drawn from Beta(cutmix, cutmix) (https://arxiv.org/abs/1905.04899). 1 is usual, 0 for
            none. Together with ``mixup`` every batch gets one of the two at random.

    Raises:
        ValueError: If an argument is outside its range, or mirrors images that must not be.
    """

    num_classes: int

    # Whether a mirrored image is still one of its class.
    may_flip: ClassVar[bool] = True
    # Colour of what comes in where images are moved, as fractions per channel; None for their mean.
    fill: ClassVar[tuple[float, ...] | None] = None

    def __init__(
        self,
        shift: int = 0,
        flip: bool | Literal["alternating"] = False,
        vertical_flip: bool = False,
        rotation: float = 0.0,
        random_resized_crop: tuple[float, float] | None = None,
        color_jitter: float = 0.0,
        erase: int = 0,
        rand_augment: int | None = None,
        mixup: float = 0.0,
        cutmix: float = 0.0,
    ) -> None:
        super().__init__()
        check_at_least(0, shift=shift, erase=erase, mixup=mixup, cutmix=cutmix)
        check_between(0, 180, rotation=rotation)
        check_between(0, 1, color_jitter=color_jitter)
        check_between(0, LARGEST, rand_augment=rand_augment)
        if random_resized_crop is not None:
            least, most = random_resized_crop
            if not 0 < least <= most <= 1:
                raise ValueError(
                    "random_resized_crop must be two rising shares of the area in (0, 1], got "
                    f"{list(random_resized_crop)}"
                )
        if (flip or vertical_flip) and not self.may_flip:
            raise ValueError(
                f"{'flip' if flip else 'vertical_flip'} is not for {type(self).__name__}: a "
                "mirrored image is none of its class"
            )
        self.shift, self.flip, self.vertical_flip = shift, flip, vertical_flip
        self.rotation, self.random_resized_crop = rotation, random_resized_crop
        self.color_jitter, self.erase, self.rand_augment = color_jitter, erase, rand_augment
        self.mixup, self.cutmix = mixup, cutmix

    @property
    def augments(self) -> bool:
        """Whether any image is changed, mixing included."""
        moves = self.shift or self.flip or self.vertical_flip or self.rotation or self.mixes
        paints = self.color_jitter or self.erase or self.rand_augment is not None
        return bool(moves or paints or self.random_resized_crop)

    @property
    def mixes(self) -> bool:
        """Whether labels become probabilities in training."""
        return self.mixup > 0 or self.cutmix > 0

    def fill_with(self, mean: Sequence[float]) -> None:
        """Set the mean colour of the images, as fractions per channel."""
        self._colour = torch.tensor(mean).mul(255).round()[:, None, None]  # (C, 1, 1), on the CPU
        known = self.fill
        self._fill = self._colour if known is None else torch.tensor(known)[:, None, None] * 255

    def augment(self, images: Tensor, index: Tensor, epoch: int, crop: bool = True) -> Tensor:
        """Change training images at random, by (seed, epoch, index) only.

        Args:
            images: uint8 ``(B, C, H, W)``; not changed.
            index: Position of each image in the training split, ``(B,)``; best on the CPU, for what
                is random is drawn where it is.
            epoch: Epoch, from 0.
            crop: False if the random resized crop has been done, such as in decoding.

        Returns:
            uint8 ``(B, C, H, W)``.
        """
        if not self.augments:
            return images
        keys = sample_keys(run_seed(), epoch, index)
        if self.random_resized_crop is not None and crop:
            images = random_resized_crop(images, keys, self.random_resized_crop)
        if self.rotation:
            images = random_rotation(images, keys, self.rotation, self._fill)
        if self.shift:
            images = random_shift(images, keys, self.shift, self._fill)
        if self.flip == "alternating":
            images = random_flip(images, sample_keys(run_seed(), 0, index))
            images = images.flip(-1) if epoch % 2 else images
        elif self.flip:
            images = random_flip(images, keys)
        if self.vertical_flip:
            images = random_flip(images, keys, vertical=True)
        if self.rand_augment is not None:
            images = rand_augment(images, keys, self.rand_augment, self._fill)
        if self.color_jitter:
            images = color_jitter(images, keys, self.color_jitter)
        if self.erase:
            images = random_erase(images, keys, self.erase, self._colour)
        return images

    def mix(
        self, images: Tensor, labels: Tensor, index: Tensor, epoch: int
    ) -> tuple[Tensor, Tensor]:
        """Mix the images of a normalised batch, and their labels, if that is asked for.

        Args:
            images: float ``(B, C, H, W)``.
            labels: int64 ``(B,)``; negative where there is none.
            index: As in :meth:`augment`.
            epoch: Epoch, from 0.

        Returns:
            Images and probabilities float32 ``(B, num_classes)``, or both as they were.
        """
        if not self.mixes:
            return images, labels
        batch = int(sample_keys(run_seed(), epoch, index).sum())
        return mix_batch(images, labels, self.num_classes, mix(batch), self.mixup, self.cutmix)


def check_at_least(least: int, **values: float | None) -> None:
    """Raise ValueError, by name, for a setting that is smaller."""
    for name, value in values.items():
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def check_between(least: int, most: int, **values: float | None) -> None:
    """Raise ValueError, by name, for a setting that is smaller or larger."""
    for name, value in values.items():
        if value is not None and not least <= value <= most:
            raise ValueError(f"{name} must be from {least} to {most}, got {value}")
