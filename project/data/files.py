"""Images in files of any size and kind: found, checked, split, read, normalised."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from project.data.augment.augmentation import check_at_least
from project.data.images import ImageDataset
from project.data.loading import Batch, ImageLoading, Split
from project.data.padding import blank
from project.data.reading.decoded import (
    Constants,
    batches,
    check_constants,
    decode_all,
    default_workers,
    remembered,
    statistics,
)
from project.data.reading.file_dataset import FileDataset, centre
from project.data.reading.file_splits import NEEDED, Demands, FileSplits
from project.data.reading.image_file import MAX_PIXELS
from project.data.reading.sources import OnError, Source, note
from project.data.reading.survey import survey
from project.mistakes import UserError

# Bytes of decoded images that are kept in memory unless in_memory says otherwise.
_ROOM = 2**30


class ImageFilesDataModule(ImageLoading):
    """Base of the data sets whose images are files: a subclass says where they are.

    Classes, channels and size are found in the training files, unless they are given. Every file is
    decoded once before training starts. Small images stay in memory from then on, others are
    decoded anew by worker processes for every batch.

    Args:
        class_names: Names of the classes in the order of their labels; by default those of the
            training files, sorted.
        in_channels: 1 for grey, 3 for colour; by default 1 if a sample of the training files has no
            colours.
        image_size: Height and width to which the images are brought: the shorter side is resized,
            the centre cut out. ``auto`` takes the shorter side of the training files (the median of
            a sample), at most 224. null keeps their sizes: batches are padded and have a mask.
        crop_fraction: Part of the shorter side that is kept, in (0, 1].
        val_fraction: Share of every class of the training images, in (0, 1), that is held out for
            validation if none are given for it. Copies of an image come to the same side.
        test_fraction: The same for the test, in [0, 1], where no split is given at all.
        data_seed: Which images are held out depends on it and on the images only.
        mean: Mean of each channel of images as fractions in [0, 1]; by default that of at most
            10,000 training images.
        std: Deviation of each channel, likewise.
        in_memory: Whether to keep decoded images in memory; by default if they take 1 GiB at most.
        on_error: What files that cannot be used do: ``stop``, or ``skip``, which leaves out up to
            5 % of them.
        max_pixels: A file with more pixels cannot be used.
        cache_dir: Remembers which files were found to be good, so that only new ones are looked at
            again; null remembers nothing.
        num_workers: Processes that decode; by default one for each CPU, at most 8, or none if the
            images are in memory.
        kwargs: See :class:`ImageLoading`.

    Raises:
        ValueError: If an argument is outside its range.
        UserError: If there are no such files.
    """

    # What a run remembers of the training files.
    found: ClassVar[tuple[str, ...]] = ("class_names", "in_channels", "image_size")

    # Sets what `given` and `read` need before it calls this.
    def __init__(
        self,
        class_names: list[str] | None = None,
        in_channels: Literal[1, 3] | None = None,
        image_size: int | Literal["auto"] | None = "auto",
        crop_fraction: float = 1.0,
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        data_seed: int = 0,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        in_memory: bool | None = None,
        on_error: OnError = "stop",
        max_pixels: int = MAX_PIXELS,
        cache_dir: str | None = "logs/.index",
        num_workers: int | None = None,
        **kwargs: Any,
    ) -> None:
        workers = default_workers(1) if num_workers is None else num_workers
        super().__init__(num_workers=workers, **kwargs)
        self.save_hyperparameters(logger=False)
        check_constants(mean, std, in_channels)
        self.crop_fraction, self.max_pixels, self.on_error = crop_fraction, max_pixels, on_error
        self.in_memory, self.cache_dir = in_memory, cache_dir
        self.mean, self.std = mean, std
        if not 0 < crop_fraction <= 1:
            raise ValueError(f"crop_fraction must be in (0, 1], got {crop_fraction}")
        if in_memory and image_size is None:
            raise ValueError("in_memory true needs images of one size: set image_size")
        if mean is not None and std is not None:
            self.normalise_with(mean, std)
            in_channels = in_channels or (1 if len(mean) == 1 else 3)
        self._workers_given, self._decoders = num_workers is not None, workers
        self.splits = FileSplits(self, val_fraction, test_fraction, data_seed)
        self._look(class_names, in_channels, image_size)

    def given(self) -> set[str]:
        """Return which of ``train``, ``val`` and ``test`` there are, or ``all`` to be divided."""
        raise NotImplementedError

    def read(self, name: str) -> Source:
        """List the files of one of these, with labels by ``class_names``."""
        raise NotImplementedError

    def find_class_names(self) -> list[str]:
        """Return the names of the classes that training has, sorted."""
        raise NotImplementedError

    @property
    def has_test(self) -> bool:
        """Whether there are images to test on."""
        return self.splits.has_test

    def prepare_data(self) -> None:
        """Decode every file once; other processes then find that in the cache."""
        stage = None if self.trainer is None else self.trainer.state.fn
        self._choose_storage(self._new(stage))
        if stage not in NEEDED and self.mean is None and not self._keeps:
            self._normalise()  # so that the other processes need not

    def setup(self, stage: str | None = None) -> None:
        """Read what ``stage`` needs, once."""
        new = self._new(stage)
        self._choose_storage(new)
        for split in new:
            setattr(self, f"{split}_set", self._make(split))
        if stage not in NEEDED and self.mean is None:
            self._normalise()
        if "all" in self.splits.sources and new == ["test"]:
            tested, total = len(self.splits.rows["test"]), len(self.splits.sources["all"].rows)
            note(f"Test   {tested:,} of {total:,} images (test_fraction)")

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

    def _eval_dataloader(self, dataset: Split | None) -> DataLoader[Batch]:
        if self.mean is None:  # no checkpoint has said them
            self._normalise()
        return super()._eval_dataloader(dataset)

    def _look(
        self,
        class_names: list[str] | None,
        in_channels: Literal[1, 3] | None,
        image_size: int | Literal["auto"] | None,
    ) -> None:
        """Find what was not given; with everything given, no training file is needed."""
        self.class_names = class_names or self.find_class_names()
        self.num_classes = len(self.class_names)
        grey = False
        if in_channels is None or image_size == "auto":
            seen = survey(self.splits.source("train"))
            grey = in_channels is None and seen.in_channels == 1
            in_channels = in_channels or seen.in_channels
            image_size = seen.image_size if image_size == "auto" else image_size
        self.in_channels, self.image_size = in_channels, image_size
        check_at_least(1, image_size=image_size)
        self.hparams.update({name: getattr(self, name) for name in self.found})
        self._demands = Demands(
            self.class_names,
            in_channels,
            image_size,
            grey,
            self.max_pixels,
            self.cache_dir,
            self.on_error,
        )

    def _new(self, stage: str | None) -> list[str]:
        """Check the files that a stage needs, and return the splits it needs that are not there."""
        return [
            split
            for split in self.splits.read(stage, self._demands)
            if getattr(self, f"{split}_set") is None and (split != "test" or stage != "fit")
        ]

    def _files(self, split: str, random: bool) -> FileDataset:
        source = self.splits.source(split)
        cropped = random and self._crops_files()
        alone = random and self.augments and self.image_size is None
        return FileDataset(
            source.root,
            source.paths,
            source.labels,
            self.splits.rows[split],
            self.image_size,
            self.in_channels,
            self.crop_fraction,
            crop_area=self.random_resized_crop if cropped else None,
            max_pixels=self.max_pixels,
            change=self.augment if alone else None,
        )

    def _crops_files(self) -> bool:
        """Whether random crops are taken from the files, which show more than resized images."""
        wanted = self.random_resized_crop is not None and not self.in_memory
        return wanted and self.splits.larger and self.image_size is not None

    def _make(self, split: str) -> Split:
        files = self._files(split, random=split == "train" and not self._overfits())
        if files.wants_epoch or not self._keeps:
            return files
        every = torch.arange(len(files))
        images = decode_all(batches(files, every, self._decoders), len(files))
        return ImageDataset(images, files.labels[files.rows].long())

    def _choose_storage(self, new: list[str]) -> None:
        """Decide what is kept in memory; from there batches are made faster without workers."""
        if self.image_size is None:
            self._keeps = False
        else:
            count = sum(len(self.splits.rows[split]) for split in new)
            room = count * self.in_channels * self.image_size**2
            self._keeps = room <= _ROOM if self.in_memory is None else self.in_memory
        self._decoders = self.num_workers
        if self._workers_given:
            return
        self._decoders = self.num_workers = default_workers(getattr(self.trainer, "num_devices", 1))
        asked = self.prefetch_factor is not None or self.persistent_workers
        if self._keeps and not self._crops_files() and not asked:
            self.num_workers = 0

    def _normalise(self) -> None:
        """Compute mean and deviation of the training images, or find them in the cache."""
        self.splits.read("fit", self._demands)
        assert self.splits.sample is not None
        contents, picked = self.splits.sample
        how = self.image_size, self.in_channels, self.crop_fraction
        self._take(*remembered(self.cache_dir, contents, how, lambda: self._constants(picked)))

    def _constants(self, picked: Tensor) -> Constants:
        if isinstance(self.train_set, ImageDataset):
            images = self.train_set.images
            return statistics(images[rows] for rows in torch.split(picked, 1000))
        files = self._files("train", random=False)
        return statistics(batch[0] for batch in batches(files, picked, self._decoders))

    def _take(self, mean: list[float], std: list[float]) -> None:
        self.mean, self.std = mean, std
        self.normalise_with(mean, std)
