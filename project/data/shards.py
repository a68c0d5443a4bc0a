"""Images in tar archives (shards), for more than a disk or a file system carries.

Write them once with ``python -m project.data.write_shards PHOTOS SHARDS``, then train with
``lightning fit --config configs/image_folder.yaml --data project.data.ShardsDataModule
--data.data_dir SHARDS``, a folder or a URL. Why it is made so is said in ``shard_reader.py``.
"""

import os
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from project.data.loading import ImageLoading, check_at_least
from project.data.padding import blank
from project.data.reading.file_dataset import FileDataset, UnreadableFile, centre
from project.data.reading.image_file import MAX_PIXELS, BadImage, read_image
from project.data.reading.shard_reader import Names, ShardReader, read_index, read_table
from project.data.split import split_by_content
from project.mistakes import UserError

_MAX_WORKERS = 8


class ShardDataset(FileDataset):
    """A split whose images lie in shards; those of a batch are fetched at the same time.

    Args:
        reader: Of the shards.
        labels: Of all samples of the reader, ``(N,)``.
        rows: Samples of this split, int64 ``(M,)``.
        kwargs: See :class:`FileDataset`.
    """

    def __init__(self, reader: ShardReader, labels: Tensor, rows: Tensor, **kwargs: Any) -> None:
        super().__init__(Path(), Names(reader), labels, rows, **kwargs)
        self.reader = reader
        self._contents: dict[int, bytes] = {}  # of the samples of the batch that is being made

    def __getitems__(self, indices: list[Any]) -> Any:  # noqa: ANN401
        """Return the batch of ``indices``; -1, a sample that is not there, gets label -100.

        Raises:
            UnreadableFile: If a shard is not what it was when it was indexed.
        """
        wanted = {max(pair[1] if self.wants_epoch else pair, 0) for pair in indices}
        samples = sorted(wanted)
        try:
            found = self.reader.read(self.rows[samples].tolist())
        except UserError as error:
            raise UnreadableFile(str(error)) from None
        self._contents = dict(zip(samples, found, strict=True))
        return super().__getitems__(indices)

    def _image(self, index: int, epoch: int) -> Tensor:
        content = self._contents.pop(index, None) or self.reader.read([int(self.rows[index])])[0]
        try:
            image = read_image(content, self.in_channels, self.max_pixels, self._needed())
        except BadImage as error:
            raise UnreadableFile(f"{self.reader.root}, {self.file(index)}: {error}.") from None
        pixels = self._cut(image, index, epoch)
        if self.change is not None:
            pixels = self.change(pixels[None], torch.tensor([index]), epoch)[0]
        return pixels


class ShardsDataModule(ImageLoading):
    """Images of a folder or URL with shards and their index.

    Samples are read where they lie, in an order that is as random as if each had a file of its own.
    Nothing is copied to a disk; an index takes 20 bytes a sample on the disk or, over the network,
    in memory. There every sample is a request, those of a batch at the same time.

    Args:
        data_dir: A folder, or a URL such as ``https://host/shards``; ``s3://bucket/shards`` needs
            the package s3fs, ``gs://bucket/shards`` gcsfs.
        class_names: Names of the classes in the order of their labels; by default those of the
            index.
        in_channels: 1 for grey, 3 for colour; by default 1 if no image has colours.
        image_size: Height and width to which the images are brought: the shorter side is resized,
            the centre cut out. ``auto`` takes the shorter side of the median training image, at
            most 224. null keeps their sizes: batches are padded and have a mask.
        crop_fraction: Part of the shorter side that is kept, in (0, 1].
        val_fraction: Share of every class of the training images, in (0, 1), that is held out for
            validation if there are no shards for it. Copies of an image come to the same side.
        data_seed: Which images are held out depends on it and on the images only.
        mean: Mean of each channel of images as fractions in [0, 1]; by default that of the index.
        std: Deviation of each channel, likewise.
        max_pixels: An image with more is refused.
        num_workers: Processes that read and decode; by default one for each CPU, at most 8.
        kwargs: See :class:`ImageLoading`.

    Raises:
        ValueError: If an argument is outside its range.
        UserError: If there are no such shards.
    """

    # What a run remembers of the index.
    found: ClassVar[tuple[str, ...]] = ("class_names", "in_channels", "image_size")

    def __init__(
        self,
        data_dir: str = "data/shards",
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
        super().__init__(
            num_workers=_default_workers() if num_workers is None else num_workers, **kwargs
        )
        self.save_hyperparameters(logger=False)
        if not 0 < crop_fraction <= 1:
            raise ValueError(f"crop_fraction must be in (0, 1], got {crop_fraction}")
        if not 0 < val_fraction < 1:
            raise ValueError(f"val_fraction must be in (0, 1), got {val_fraction}")
        self.data_dir, self.crop_fraction, self.max_pixels = data_dir, crop_fraction, max_pixels
        self.val_fraction, self.data_seed = val_fraction, data_seed
        self.index = read_index(data_dir)
        self.class_names = class_names or self.index.class_names
        self.num_classes = len(self.class_names)
        self.in_channels = in_channels or self.index.in_channels
        self.image_size = self.index.image_size if image_size == "auto" else image_size
        check_at_least(1, image_size=self.image_size)
        self.hparams.update({name: getattr(self, name) for name in self.found})
        self._labels = self._numbers()
        self._take_constants(mean, std)

    def _numbers(self) -> Tensor:
        """Return the label of every class of the index, ``(K,)``."""
        strange = [name for name in self.index.class_names if name not in self.class_names]
        if strange:
            raise UserError(
                f"{self.data_dir} has classes that are not among --data.class_names, or were not "
                f"trained on: {', '.join(strange[:10])}"
            )
        numbers = [self.class_names.index(name) for name in self.index.class_names]
        return torch.tensor(numbers, dtype=torch.int32)

    def _take_constants(self, mean: list[float] | None, std: list[float] | None) -> None:
        self.mean = _for_channels(mean or self.index.mean, self.in_channels)
        self.std = _for_channels(std or self.index.std, self.in_channels)
        self.normalise_with(self.mean, self.std)

    @property
    def has_test(self) -> bool:
        """Whether there are images to test on."""
        return "test" in self.index.shards

    @property
    def class_counts(self) -> list[int]:
        """Number of training images of every class; known after ``setup``."""
        assert isinstance(self.train_set, ShardDataset)
        labels = self.train_set.labels[self.train_set.rows]
        counts: list[int] = torch.bincount(labels, minlength=self.num_classes).tolist()
        return counts

    def setup(self, stage: str | None = None) -> None:
        """Read the index of what ``stage`` needs, once.

        Raises:
            UserError: If the shards are not those of the index, or there is no such split.
        """
        if stage in (None, "fit", "validate") and self.val_set is None:
            if "val" in self.index.shards:
                self.val_set = self._split("val")
                self.train_set = self._split("train") if stage != "validate" else None
            else:
                self._hold_out()
        elif stage in (None, "fit") and self.train_set is None:
            self.train_set = self._split("train")
        if stage in ("test", "predict") and not self.has_test:
            raise UserError(f"{self.data_dir} has no test split, whose shards begin with test.")
        if self.has_test and stage != "validate" and self.test_set is None:
            self.test_set = self._split("test")  # in fit too: not after hours of training

    def _hold_out(self) -> None:
        """Split the training images by their contents, of which the table has a hash."""
        reader, labels = self._read("train")
        contents = reader.table["size"].astype(np.int64) << 32 | reader.table["crc"]
        kept, held_out = split_by_content(
            labels.long(), torch.from_numpy(contents), self.val_fraction, self.data_seed
        )
        if len(held_out) == 0:
            raise UserError(
                f"{self.data_dir}: no class has two images, one to train and one to validate on."
            )
        self.train_set = self._split("train", (reader, labels), kept)
        self.val_set = self._split("val", (reader, labels), held_out)

    def _read(self, split: str) -> tuple[ShardReader, Tensor]:
        """Return a split's samples and labels, int32 ``(N,)``."""
        table = read_table(self.data_dir, split)
        reader = ShardReader(self.data_dir, self.index.shards[split], table)
        return reader, self._labels[torch.from_numpy(table["label"].astype(np.int64))]

    def _split(
        self,
        name: str,
        samples: tuple[ShardReader, Tensor] | None = None,
        rows: Tensor | None = None,
    ) -> ShardDataset:
        reader, labels = samples or self._read(name)
        random = name == "train" and self.augments and not self._overfits()
        padded = self.image_size is None
        return ShardDataset(
            reader,
            labels,
            torch.arange(len(reader)) if rows is None else rows,
            size=self.image_size,
            in_channels=self.in_channels,
            crop_fraction=self.crop_fraction,
            crop_area=self.random_resized_crop if random and not padded else None,
            max_pixels=self.max_pixels,
            change=self.augment if random and padded else None,
        )

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

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:  # noqa: ANN401
        """Augment in training only, and normalise, on the device; padding becomes 0."""
        if len(batch) == 3:
            return super().on_after_batch_transfer(batch, dataloader_idx)
        images, labels, index, mask = batch  # augmented one by one, before they were padded
        images = blank(self.preprocess(images), mask)
        if self.trainer is not None:
            images = self.trainer.precision_plugin.convert_input(images)
        return images, labels, index, mask

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
        if self.hparams.get("mean") is None:
            self._take_constants(state_dict["mean"], state_dict["std"])


def _for_channels(values: list[float], channels: int) -> list[float]:
    """Repeat the constant of grey, or average those of colours that are read as grey."""
    if len(values) not in (1, 3):
        raise ValueError(f"mean and std have one value for each channel, got {values}")
    return [sum(values) / len(values)] * channels if len(values) != channels else values


def _default_workers() -> int:
    affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    return min(_MAX_WORKERS, cores)
