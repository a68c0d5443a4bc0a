"""Images in tar archives (shards), for more than a disk or a file system carries.

Write them once with ``python -m project.data.write_shards PHOTOS SHARDS``, then train with
``lightning fit --config configs/image_folder.yaml --data project.data.ShardsDataModule
--data.data_dir SHARDS``, a folder or a URL. Why it is made so is said in ``shard_reader.py``.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from project.data.found_images import FoundImages
from project.data.reading.file_dataset import FileDataset, UnreadableFile
from project.data.reading.image_file import BadImage
from project.data.reading.shard_reader import Names, ShardReader, read_index, read_table
from project.data.split import split_by_content
from project.mistakes import UserError


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

    def _bytes(self, index: int) -> bytes:
        return self._contents.pop(index, None) or self.reader.read([int(self.rows[index])])[0]

    def _unreadable(self, index: int, error: BadImage) -> UnreadableFile:
        return UnreadableFile(f"{self.reader.root}, {self.file(index)}: {error}.")


class ShardsDataModule(FoundImages):
    """Images of a folder or URL with shards and their index.

    Samples are read where they lie, in an order that is as random as if each had a file of its own.
    Nothing is copied to a disk; an index takes 20 bytes a sample on the disk or, over the network,
    in memory. There every sample is a request, those of a batch at the same time. Classes,
    channels, size, mean and deviation stand in the index.

    Args:
        data_dir: A folder, or a URL such as ``https://host/shards``; ``s3://bucket/shards`` needs
            the package s3fs, ``gs://bucket/shards`` gcsfs.
        kwargs: See :class:`FoundImages`.

    Raises:
        ValueError: If an argument is outside its range.
        UserError: If there are no such shards.
    """

    def __init__(self, data_dir: str = "data/shards", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_dir, self.index = data_dir, read_index(data_dir)
        names, channels, size = (self.hparams[name] for name in self.found)
        self._find(
            names or self.index.class_names,
            channels or self.index.in_channels,
            self.index.image_size if size == "auto" else size,
        )
        self._labels = self._numbers()
        if self.mean is None:
            constants = self.index.mean, self.index.std
            self._take(*(_for_channels(values, self.in_channels) for values in constants))

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

    @property
    def has_test(self) -> bool:
        """Whether there are images to test on."""
        return "test" in self.index.shards

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
        random = name == "train" and not self._overfits()
        rows = torch.arange(len(reader)) if rows is None else rows
        return ShardDataset(reader, labels, rows, **self._reading(random, crops=True))


def _for_channels(values: list[float], channels: int) -> list[float]:
    """Repeat the constant of grey, or average those of colours that are read as grey."""
    return [sum(values) / len(values)] * channels if len(values) != channels else values
