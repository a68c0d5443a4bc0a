"""Images in files of any size and kind: found, checked, split, read, normalised."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from project import cores
from project.data.found_images import FoundImages
from project.data.images import ImageDataset
from project.data.loading import Batch, Split
from project.data.reading.decoded import (
    Constants,
    batches,
    decode_all,
    remembered,
    statistics,
)
from project.data.reading.file_dataset import FileDataset
from project.data.reading.file_splits import NEEDED, Demands, FileSplits
from project.data.reading.pixel_cache import CachedImages, cached
from project.data.reading.sources import OnError, Source, note
from project.data.reading.survey import survey

# Bytes of decoded images that are kept in memory unless in_memory says otherwise.
_ROOM = 2**30


class ImageFilesDataModule(FoundImages):
    """Base of the data sets whose images are files: a subclass says where they are.

    Classes, channels and size are found in a sample of the training files, unless they are given;
    mean and deviation are those of at most 10,000 training images. Every file is decoded once
    before training starts. Small images stay in memory from then on, and need no workers; others
    are decoded anew by worker processes for every batch.

    Args:
        test_fraction: Share of every class, in [0, 1], that is held out for the test where no split
            is given at all.
        in_memory: Whether to keep decoded images in memory; by default if they take 1 GiB at most.
        on_error: What files that cannot be used do: ``stop``, or ``skip``, which leaves out up to
            5 % of them.
        cache_dir: Remembers which files were found to be good, so that only new ones are looked at
            again; null remembers nothing.
        cache: Keep images that do not fit into memory decoded and resized on the disk, where all
            later epochs and runs find them; true in ``cache_dir``, or the path of a folder. It
            takes ``in_channels * image_size ** 2`` bytes an image, for random resized crops up to
            four times that: of an image larger than twice ``image_size``, the smallest crops are
            then less sharp. Off by default, because nobody expects that of a disk.
        kwargs: See :class:`FoundImages`.

    Raises:
        ValueError: If an argument is outside its range.
        UserError: If there are no such files.
    """

    # Sets what `given` and `list_files` need before it calls this.
    def __init__(
        self,
        test_fraction: float = 0.1,
        in_memory: bool | None = None,
        on_error: OnError = "stop",
        cache_dir: str | None = "logs/.index",
        cache: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.on_error, self.in_memory, self.cache_dir = on_error, in_memory, cache_dir
        if in_memory and self.hparams["image_size"] is None:
            raise ValueError("in_memory true needs images of one size: set image_size")
        if cache and self.hparams["image_size"] is None:
            raise ValueError("cache needs images of one size: set image_size")
        if cache is True and cache_dir is None:
            raise ValueError("cache true needs a cache_dir, or give the path of a folder as cache")
        self.cache = cache_dir if cache is True else cache
        self._workers_given = self.hparams["num_workers"] is not None
        self._decoders = self.num_workers
        self.splits = FileSplits(self, self.val_fraction, test_fraction, self.data_seed)
        self._look()

    def given(self) -> set[str]:
        """Return which of ``train``, ``val`` and ``test`` there are, or ``all`` to be divided."""
        raise NotImplementedError

    def list_files(self, name: str) -> Source:
        """List the files of one of these, with labels by ``class_names``."""
        raise NotImplementedError

    def find_class_names(self) -> list[str]:
        """Return the names of the classes that training has, sorted."""
        raise NotImplementedError

    @property
    def has_test(self) -> bool:
        """Whether there are images to test on."""
        return self.splits.has_test

    def predict_path(self, index: int) -> str:
        """Return the file of an image of the predict split."""
        source = self.splits.source("test")
        return str(source.root / source.paths[int(self.splits.rows["test"][index])])

    def prepare_data(self) -> None:
        """Decode every file once; other processes then find that in the cache."""
        stage = None if self.trainer is None else self.trainer.state.fn
        new = self._new(stage)
        self._choose_storage(new)
        if self.cache and (self._crops_files() or not self._keeps):
            for split in new:  # so that the other processes find them in the cache
                self._make(split)
        if stage not in NEEDED and self.mean is None and not self._keeps:
            self._normalise()  # so that the other processes need not

    def setup(self, stage: str | None = None) -> None:
        """Read what ``stage`` needs, once."""
        new = self._new(stage)
        self._choose_storage(new)
        for split in new:
            setattr(self, f"{split}_set", self._make(split))
        if self.cache and new and self._keeps and not self._crops_files():
            note("Cache  not needed: the images are kept in memory")
        if stage not in NEEDED and self.mean is None:
            self._normalise()
        if "all" in self.splits.sources and new == ["test"]:
            tested, total = len(self.splits.rows["test"]), len(self.splits.sources["all"].rows)
            note(f"Test   {tested:,} of {total:,} images, held out by --data.test_fraction")

    def _eval_dataloader(self, dataset: Split | None) -> DataLoader[Batch]:
        if self.mean is None:  # no checkpoint has said them
            self._normalise()
        return super()._eval_dataloader(dataset)

    def _look(self) -> None:
        """Find what was not given; with everything given, no training file is needed."""
        names, channels, size = (self.hparams[name] for name in self.found)
        self.class_names = names or self.find_class_names()  # the survey lists by them
        if channels is None and self.mean is not None:
            channels = len(self.mean)
        grey_only = False
        if channels is None or size == "auto":
            seen = survey(self.splits.source("train"))
            grey_only = channels is None and seen.in_channels == 1
            channels = channels or seen.in_channels
            size = seen.image_size if size == "auto" else size
        self._find(self.class_names, channels, size)
        self._demands = Demands(
            *(self.class_names, channels, size, grey_only),
            *(self.max_pixels, self.cache_dir, self.on_error),
        )

    def _new(self, stage: str | None) -> list[str]:
        """Check the files that a stage needs, and return the splits it needs that are not there."""
        return [
            split
            for split in self.splits.read(stage, self._demands)
            if getattr(self, f"{split}_set") is None and (split != "test" or stage != "fit")
        ]

    def _files(self, split: str, random: bool) -> FileDataset:
        source, rows = self.splits.source(split), self.splits.rows[split]
        how = self._reading(random, crops=self._crops_files())
        return FileDataset(source.root, source.paths, source.labels, rows, **how)

    def _crops_files(self) -> bool:
        """Whether random crops are taken from the files, which show more than resized images."""
        wanted = self.random_resized_crop is not None and not self.in_memory
        return wanted and self.splits.larger and self.image_size is not None

    def _make(self, split: str) -> Split:
        files = self._files(split, random=split == "train" and not self._overfits())
        if files.wants_epoch or not self._keeps:
            return self._cached(split, files) if self.cache else files
        every = torch.arange(len(files))
        images = decode_all(batches(files, every, self._decoders), len(files))
        return ImageDataset(images, files.labels[files.rows].long())

    def _cached(self, split: str, files: FileDataset) -> Split:
        source, together = self.splits.source(split), [files.rows]
        if not files.wants_epoch:  # whole images for random crops are in a cache of their own
            cropped = "train" if self._crops_files() else None
            others = [name for name in self.splits.rows if name not in (split, cropped)]
            alike = [name for name in others if self.splits.source(name) is source]
            together += [self.splits.rows[name] for name in alike]
        return cached(files, source, torch.cat(together), str(self.cache), self._decoders)

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
        self._decoders = self.num_workers = cores.workers(getattr(self.trainer, "num_devices", 1))
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
        if type(self.train_set) is CachedImages:
            return statistics(self.train_set.pieces(picked))
        files = self._files("train", random=False)
        return statistics(batch[0] for batch in batches(files, picked, self._decoders))
