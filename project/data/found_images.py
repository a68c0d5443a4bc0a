"""Images of any size and kind, of which classes, channels and size are found out."""

import copy
from typing import Any, ClassVar, Literal

from torch import Tensor

from project import cores
from project.data.augment.augmentation import check_at_least
from project.data.loading import ImageLoading
from project.data.reading.decoded import check_constants
from project.data.reading.file_dataset import centre
from project.data.reading.image_file import MAX_PIXELS
from project.mistakes import UserError


class FoundImages(ImageLoading):
    """What is common to data modules whose images are decoded when a batch is made.

    Args:
        class_names: Names of the classes in the order of their labels; by default those of the
            training images.
        in_channels: 1 for grey, 3 for colour; by default 1 if the training images have no colours.
        image_size: Height and width to which the images are brought: the shorter side is resized,
            the centre cut out. ``auto`` takes the shorter side of the median training image, at
            most 224. null keeps their sizes: batches are padded and have a mask.
        crop_fraction: Part of the shorter side that is kept, in (0, 1].
        val_fraction: Share of every class of the training images, in (0, 1), that is held out for
            validation if none are given for it. Copies of an image come to the same side.
        data_seed: Which images are held out depends on it and on the images only.
        mean: Mean of each channel of images as fractions in [0, 1]; by default that of the training
            images.
        std: Deviation of each channel, likewise.
        max_pixels: An image with more cannot be used.
        num_workers: Processes that decode; by default one for each CPU, at most 8.
        kwargs: See :class:`ImageLoading`.

    Raises:
        ValueError: If an argument is outside its range.
    """

    # What a run remembers of the training images.
    found: ClassVar[tuple[str, ...]] = ("class_names", "in_channels", "image_size")

    def __init__(
        self,
        class_names: list[str] | None = None,
        in_channels: Literal[1, 3] | None = None,
        image_size: int | Literal["auto"] | None = "auto",
        crop_fraction: float = 1.0,
        val_fraction: float = 0.1,
        data_seed: int = 0,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        max_pixels: int = MAX_PIXELS,
        num_workers: int | None = None,
        **kwargs: Any,
    ) -> None:
        workers = cores.workers() if num_workers is None else num_workers
        super().__init__(num_workers=workers, **kwargs)
        self.save_hyperparameters(logger=False)
        check_constants(mean, std, in_channels)
        if not 0 < crop_fraction <= 1:
            raise ValueError(f"crop_fraction must be in (0, 1], got {crop_fraction}")
        if not 0 < val_fraction < 1:
            raise ValueError(f"val_fraction must be in (0, 1), got {val_fraction}")
        check_at_least(1, image_size=None if image_size == "auto" else image_size)
        self.crop_fraction, self.max_pixels = crop_fraction, max_pixels
        self.val_fraction, self.data_seed = val_fraction, data_seed
        self.mean, self.std = mean, std
        if mean is not None and std is not None:
            self.normalise_with(mean, std)

    def preprocess(self, images: Tensor) -> Tensor:
        """Turn images into what a network takes: cut as those of the training set, and normalised.

        Args:
            images: uint8 ``(B, C, H, W)`` from 0 to 255, any height and width, on any device.

        Returns:
            float32 ``(B, C, image_size, image_size)``.
        """
        if self.image_size is not None:
            images = centre(images, self.image_size, self.crop_fraction)
        return super().preprocess(images)

    def state_dict(self) -> dict[str, Any]:
        """Return what the weights of a network belong to."""
        return {"class_names": self.class_names, "mean": self.mean, "std": self.std}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the constants that the weights were trained with.

        Raises:
            UserError: If they were trained for other classes.
        """
        if state_dict["class_names"] != self.class_names:
            raise UserError(
                f"The checkpoint was trained on the classes {', '.join(state_dict['class_names'])}"
                f"\nHere they are {', '.join(self.class_names)}"
            )
        if self.hparams.get("mean") is None and state_dict["mean"] is not None:
            self._take(state_dict["mean"], state_dict["std"])

    def _find(self, class_names: list[str], in_channels: int, image_size: int | None) -> None:
        """Note what was given or found."""
        self.class_names, self.num_classes = class_names, len(class_names)
        self.in_channels, self.image_size = in_channels, image_size
        self.hparams.update({name: getattr(self, name) for name in self.found})

    def _take(self, mean: list[float], std: list[float]) -> None:
        self.mean, self.std = mean, std
        self.normalise_with(mean, std)

    def _reading(self, random: bool, crops: bool) -> dict[str, Any]:
        """Return how the images of a split are read: arguments of ``FileDataset``.

        Args:
            random: Whether they are augmented.
            crops: Whether random crops may be taken from the files.
        """
        padded = self.image_size is None
        return {
            "size": self.image_size,
            "in_channels": self.in_channels,
            "crop_fraction": self.crop_fraction,
            "crop_area": self.random_resized_crop if random and crops and not padded else None,
            "max_pixels": self.max_pixels,
            "change": _Change(self) if random and padded and self.augments else None,
        }


class _Change:
    """The augmentation of a data module, which can go to spawned workers: the trainer cannot.

    Args:
        data: The data module.
    """

    def __init__(self, data: FoundImages) -> None:
        self.data = data

    def __call__(self, images: Tensor, index: Tensor, epoch: int) -> Tensor:
        return self.data.augment(images, index, epoch)

    def __getstate__(self) -> dict[str, Any]:
        alone = copy.copy(self.data)
        for name in ("trainer", "train_set", "val_set", "test_set", "splits"):
            setattr(alone, name, None)
        return {"data": alone}
