"""Decoded images in one file that processes map into memory, kept as long as their sources stay."""

import errno
import hashlib
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import PIL
import torch
from PIL import features
from torch import Tensor

from project.data.augment.basic import sample_keys
from project.data.augment.crop import Box, random_resized_box
from project.data.hashing import run_seed
from project.data.loading import Split
from project.data.reading.alone import bar, lock
from project.data.reading.decoded import batches
from project.data.reading.file_dataset import FileDataset
from project.data.reading.image_file import BadImage
from project.data.reading.index import content_hash
from project.data.reading.pixel_store import ROW, Store
from project.data.reading.reader import cut, read_crop, read_middle, stacked
from project.data.reading.sources import Source, note
from project.mistakes import UserError

_CHUNK = 256  # images that are copied at once
# Longest sides are cut to so many times the side that a random crop gets, to spare the disk.
_WHOLE = 2


def cached(
    files: FileDataset, source: Source, rows: Tensor, folder: str | Path, workers: int
) -> "CachedImages":
    """Return a split whose images are in a cache, which is made or completed if they are not.

    Images are found by the hash of their files' bytes: those of changed and new files are decoded,
    all others are kept. What is made of a file depends on the name of the cache. Of several
    processes, one works and the others wait.

    Args:
        files: The split as it is in its files.
        source: Where they come from, checked.
        rows: Its files of all splits that this cache is for, ``(M,)``.
        folder: Of the cache; it need not exist.
        workers: Processes to decode with.

    Raises:
        UserError: If the cache cannot be written; what was there stays.
        UnreadableFile: If a file is not what it was when it was checked.
    """
    assert source.contents is not None
    side = _side(files, source.largest)
    shape = (files.in_channels, side, side)
    if files.crop_area is not None:
        shape = (side, side, files.in_channels)  # faster to cut out of
    again = Path(folder, f"{_name(files, source, side)}.pixels"), *shape
    store = Store(*again)
    wanted = source.contents[rows]
    if not store.has(wanted):
        with lock(folder, store.path.stem) as fault:
            if fault is not None:
                raise _unwritable(store.path, fault, len(wanted) * store.image_bytes)
            store = Store(*again)  # somebody else may have written it meanwhile
            if not store.has(wanted):
                store = _complete(store, files, rows, source.contents, workers)
    kind = CachedImages if files.crop_area is None else CachedCrops
    return kind(store, source.contents[files.rows], files)


class CachedImages(Split):
    """A split whose images are in a cache.

    Args:
        store: The cache.
        contents: Hashes of the split's files, int64 ``(M,)``.
        files: The split as it is in its files.
    """

    def __init__(self, store: Store, contents: Tensor, files: FileDataset) -> None:
        self.store, self.contents, self.files = store, contents, files
        self.labels, self.rows = files.labels, files.rows
        self.places = store.places(contents)

    def __len__(self) -> int:
        return len(self.rows)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Find the images again: another run may have written the cache anew."""
        self.__dict__.update(state)
        if not self.store.has(self.contents):
            raise UserError(f"{self.store.path} was deleted or replaced.\nStart again.")
        self.places = self.store.places(self.contents)

    def __getitems__(self, indices: list[Any]) -> Any:  # noqa: ANN401
        """Return the batch of ``indices``; -1, a sample that is not there, gets label -100."""
        index = torch.tensor(indices)
        images = self.store.images.index_select(0, self.places[index.clamp(min=0)])
        return images, self._labels(index), index

    def pieces(self, samples: Tensor) -> list[Tensor]:
        """Return images of samples ``(M,)``, a thousand at most in each piece."""
        rows = self.places[samples]
        return [self.store.images[some] for some in torch.split(rows, 1000)]

    def _labels(self, index: Tensor) -> Tensor:
        return self.labels[self.rows[index.clamp(min=0)]].long().where(index >= 0, -100)


class CachedCrops(CachedImages):
    """A split whose images are in a cache as a whole, squeezed to a square, for random crops.

    The boxes are those that are cut out of the files; what is in them differs by the resampling.
    """

    wants_epoch = True

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        """Return one sample, without the dimension of the batch, as it is in epoch 0."""
        return tuple(part[0] for part in self.__getitems__([(0, index)]))

    def __getitems__(self, indices: list[Any]) -> Any:  # noqa: ANN401
        """Return the batch of ``(epoch, index)`` pairs; see :class:`CachedImages`."""
        index = torch.tensor([at for _, at in indices])
        images = (self._crop(max(at, 0), epoch) for epoch, at in indices)
        return stacked(images, len(indices)), self._labels(index), index

    def _crop(self, index: int, epoch: int) -> Tensor:
        """Cut a random box out of an image, uint8 ``(C, size, size)``."""
        place, area, size = int(self.places[index]), self.files.crop_area, self.files.size
        _, rows, columns = self.store.rows[place].tolist()
        assert area is not None
        assert size is not None
        box = random_resized_box(sample_keys(run_seed(), epoch, index), rows, columns, area)
        image = self.store.images[place].permute(2, 0, 1)
        return cut(image, box, (rows, columns), size, (image.shape[1], image.shape[2]))


class _Fresh(FileDataset):
    """Files to decode for the cache.

    Args:
        files: The split that they are of.
        rows: Which files.
        contents: Hashes of all files that ``rows`` are of.
        side: Height and width that they get.
    """

    def __init__(self, files: FileDataset, rows: Tensor, contents: Tensor, side: int) -> None:
        super().__init__(
            *(files.root, files.paths, files.labels, rows, files.size, files.in_channels),
            *(files.crop_fraction, files.crop_area, files.max_pixels),
        )
        self.contents, self.side = contents, side

    def __getitems__(self, indices: list[int]) -> Any:  # noqa: ANN401
        """Return images as they are in the cache, and heights and widths of their files ``(B, 2)``.

        These are 0 without random crops, which alone ask for them.
        """
        made = [self._make(index) for index in indices]
        return torch.stack([pixels for pixels, _ in made]), torch.tensor([size for _, size in made])

    def _make(self, index: int) -> tuple[Tensor, list[int]]:
        if self.crop_area is None:
            return self._decoded(index, read_middle, self.side, self.crop_fraction), [0, 0]
        size: list[int] = []  # as the file has it, which may be decoded smaller

        def whole(height: int, width: int) -> Box:
            size[:] = height, width
            return Box(0, 0, height, width)

        return self._decoded(index, read_crop, self.side, whole).permute(1, 2, 0), size

    def _bytes(self, index: int) -> bytes:
        data = super()._bytes(index)
        if content_hash(data) != int(self.contents[self.rows[index]]):
            raise BadImage("it has changed since it was checked")
        return data


def _complete(
    store: Store, files: FileDataset, rows: Tensor, contents: Tensor, workers: int
) -> Store:
    """Write the cache anew: what it has of the source, and what is missing of ``rows``."""
    known, wanted = store.rows["content"], contents[rows].numpy()
    kept = np.flatnonzero(np.isin(known, contents.numpy()))
    missing = np.unique(wanted, return_index=True)[1]  # of copies, the first one
    missing = np.sort(missing[~np.isin(wanted[missing], known)])
    fresh = _Fresh(files, rows[torch.from_numpy(missing)], contents, store.shape[1])
    table = np.concatenate([store.rows[kept], np.zeros(len(missing), ROW)])
    table["content"][len(kept) :] = wanted[missing]
    size = store.begin(len(table)) + len(table) * store.image_bytes
    draft = store.path.with_suffix(".draft")  # nobody else writes it: there is the lock
    try:
        with open(draft, "wb") as out:
            _reserve(out.fileno(), size)
            out.seek(store.begin(len(table)))
            for some in np.split(kept, range(_CHUNK, len(kept), _CHUNK)):
                out.write(store.images[torch.from_numpy(some)].numpy().tobytes())
            _decode(fresh, table[len(kept) :], out, workers)
            out.seek(0)
            out.write(store.head(table))
            out.flush()
            os.fsync(out.fileno())
        os.replace(draft, store.path)
    except OSError as error:
        raise _unwritable(draft, error.strerror or str(error), size) from None
    finally:
        with suppress(OSError):
            draft.unlink()
    note(f"Cache  {len(table):,} images in {store.path}, {_size(size)}; it may be deleted any time")
    return Store(store.path, *store.shape)


def _decode(fresh: _Fresh, table: npt.NDArray[np.void], out: BinaryIO, workers: int) -> None:
    """Write the pixels of files, and note the sizes of their images in ``table``."""
    at = 0
    with bar("Decoding images", len(fresh)) as watch:
        for images, sizes in batches(fresh, torch.arange(len(fresh)), workers):
            out.write(images.numpy().tobytes())
            table["height"][at : at + len(images)] = sizes[:, 0]
            table["width"][at : at + len(images)] = sizes[:, 1]
            at += len(images)
            watch(at)


def _reserve(file: int, size: int) -> None:
    """Take the room at once, so that a full disk is known before hours of work."""
    try:
        os.posix_fallocate(file, 0, size)
    except AttributeError:  # Windows, macOS
        return
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise


def _unwritable(path: Path, reason: str, size: int) -> UserError:
    return UserError(
        f"The cache of decoded images, {_size(size)}, cannot be written: {path} ({reason}).\n"
        "Set --data.cache to a folder with more room, or false."
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _side(files: FileDataset, largest: int) -> int:
    """Return the side of the images in the cache."""
    assert files.size is not None
    if files.crop_area is None:
        return files.size
    needed = round(files.size / math.sqrt(min(files.crop_area)))
    return min(needed, _WHOLE * files.size, max(largest, files.size))


def _name(files: FileDataset, source: Source, side: int) -> str:
    """Name a cache by where its images come from and by all that makes them what they are."""
    kinds = ("libjpeg_turbo", "jpg", "webp", "libtiff", "zlib")
    read = files.in_channels, files.max_pixels, files.crop_fraction, files.crop_area, files.size
    made = read, side, PIL.__version__, [features.version(kind) for kind in kinds]
    text = os.fsencode(os.path.abspath(source.name)) + repr(made).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()
