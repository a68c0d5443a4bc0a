"""A file of many images of one size, which processes map into memory and share."""

import os
import struct
import warnings
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_MAGIC = b"pixels 2"  # to change with the layout, and with what is made of a file
_HEAD = struct.Struct("<8sIqiii")  # magic, checksum of what follows, count, shape of an image
# One for each image: the hash of its file, and its size as the file has it.
ROW = np.dtype([("content", "<i8"), ("height", "<i4"), ("width", "<i4")])
_PAGE = 4096  # what pixels begin at a multiple of


class Store:
    """The file of a cache: mapped, never written to; a process that gets it opens it for itself.

    Args:
        path: Of the file, which need not be there; what is not as it was written counts as empty.
        shape: Of every image.
    """

    def __init__(self, path: Path, *shape: int) -> None:
        self.path, self.shape = path, shape
        # What the images are of, and the images, uint8 (N, *shape), in the same order.
        self.rows, self.images = np.zeros(0, ROW), torch.zeros(0, *self.shape, dtype=torch.uint8)
        with suppress(OSError, struct.error), open(path, "rb") as file:
            self._map(file)
        self._order = np.argsort(self.rows["content"], kind="stable")

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.path, *self.shape)

    def _map(self, file: BinaryIO) -> None:
        magic, checksum, count, *shape = _HEAD.unpack(file.read(_HEAD.size))
        size = self.begin(count) + count * self.image_bytes
        if (magic, *shape) != (_MAGIC, *self.shape) or os.fstat(file.fileno()).st_size != size:
            return
        body = file.read(count * ROW.itemsize)
        if zlib.crc32(body, count) == checksum and count:
            self.rows = np.frombuffer(body, ROW)
            whole = np.memmap(file, np.uint8, "r", self.begin(count), (count, *self.shape))
            with warnings.catch_warnings(action="ignore"):  # it cannot be written to, and need not
                self.images = torch.from_numpy(whole)

    @property
    def image_bytes(self) -> int:
        """What an image takes."""
        return int(np.prod(self.shape))

    def begin(self, count: int) -> int:
        """Return where the pixels begin in a file of ``count`` images."""
        return -(-(_HEAD.size + count * ROW.itemsize) // _PAGE) * _PAGE

    def head(self, rows: npt.NDArray[np.void]) -> bytes:
        """Return what stands before the pixels of these images."""
        body, count = rows.tobytes(), len(rows)
        return _HEAD.pack(_MAGIC, zlib.crc32(body, count), count, *self.shape) + body

    def has(self, contents: Tensor) -> bool:
        """Whether the images of all these files are there."""
        return bool(np.isin(contents.numpy(), self.rows["content"]).all())

    def places(self, contents: Tensor) -> Tensor:
        """Return where the images of files are, int64 ``(M,)``; all have to be there."""
        sorted_contents = self.rows["content"][self._order]
        return torch.from_numpy(self._order[np.searchsorted(sorted_contents, contents.numpy())])
