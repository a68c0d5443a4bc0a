"""The idx files of MNIST and its relatives (http://yann.lecun.com/exdb/mnist, FILE FORMATS)."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchvision.datasets import MNIST  # type: ignore[import-untyped]

from project.data.download import download, missing
from project.mistakes import UserError

# Images and labels.
_TRAIN = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_TEST = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def fetch(kind: type[MNIST], data_dir: str) -> None:
    """Download the files of a data set that are not there.

    Args:
        kind: torchvision's class, which knows from where; its name is that of the folder.
        data_dir: Where they belong.
    """
    if _find(data_dir, kind.__name__) is None:
        files = _describe(data_dir, kind.__name__)
        download(kind.__name__, files, lambda: kind(data_dir, download=True))


def load(kind: type[MNIST], data_dir: str, train: bool) -> tuple[Tensor, Tensor]:
    """Read the training or the test set.

    Args:
        kind: As for :func:`fetch`.
        data_dir: The files lie in ``data_dir/name/raw``, where torchvision puts them, or in
            ``data_dir`` itself, plain or as .gz.
        train: Which of the two.

    Returns:
        Images uint8 ``(N, 1, H, W)`` and labels int64 ``(N,)``.

    Raises:
        UserError: If a file is not there or damaged, or they do not belong together.
    """
    folder = _find(data_dir, kind.__name__)
    if folder is None:
        raise missing(kind.__name__, "no files", _describe(data_dir, kind.__name__))
    return _read(folder, train)


def _describe(data_dir: str, name: str) -> str:
    return f"{', '.join(_TRAIN + _TEST)} (or the same .gz) into {Path(data_dir, name, 'raw')}"


def _find(data_dir: str, name: str) -> Path | None:
    """Return the folder that has all four files."""
    for folder in (Path(data_dir, name, "raw"), Path(data_dir)):
        if all(_locate(folder, stem) for stem in _TRAIN + _TEST):
            return folder
    return None


def _read(folder: Path, train: bool) -> tuple[Tensor, Tensor]:
    image_file, label_file = (_locate(folder, stem) for stem in (_TRAIN if train else _TEST))
    assert image_file is not None
    assert label_file is not None
    images, labels = _parse(image_file, 3), _parse(label_file, 1)
    if len(images) != len(labels):
        raise UserError(
            f"{image_file} has {len(images)} images, {label_file} has {len(labels)} labels.\n"
            "Delete both and get them again."
        )
    return images[:, None], labels.long()


def _locate(folder: Path, stem: str) -> Path | None:
    files = folder / stem, folder / f"{stem}.gz"
    return next((file for file in files if file.is_file()), None)


def _parse(file: Path, dims: int) -> Tensor:
    """Read an idx file of unsigned bytes: magic number 0x08 and rank, big-endian sizes, bytes."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            data = stream.read()
        magic, *shape = struct.unpack(f">{dims + 1}I", data[: 4 * (dims + 1)])
    except (EOFError, gzip.BadGzipFile, struct.error, zlib.error):
        magic, shape = 0, []
    if magic != 0x800 + dims or len(data) != 4 * (dims + 1) + math.prod(shape):
        raise UserError(f"{file} is damaged or no idx file.\nDelete it and get it again.")
    # A copy, since torch wants memory that it may write to.
    return torch.from_numpy(
        np.frombuffer(data, np.uint8, offset=4 * (dims + 1)).reshape(shape).copy()
    )
