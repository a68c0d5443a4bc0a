"""What images in JPEG files cost, in samples per CPU second, against PIL with torchvision.

``python tests/benchmarks/image_files.py`` writes files like photographs to a temporary folder and
takes a few minutes of one CPU core. Both sides read the same files with one thread, make batches of
64, flip half of the images and end with normalised float32 on the CPU. Theirs is
``ImageFolder`` and ``DataLoader`` with Resize or RandomResizedCrop, RandomHorizontalFlip, ToTensor
and Normalize; ours is ``ImageFolderDataModule``, from the files and from ``--data.cache``. Each has
a process of its own, and they take turns; the table has medians over the rounds, of ratios, too.
"""

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from project import heap
from project.data import ImageFolderDataModule

Area = tuple[float, float] | None

WAYS = "torchvision", "files", "cache"
BATCH = 64
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# Width and height of the files, side of the batch, share of the area of random crops.
CASES = [
    ((256, 256), 64, None),
    ((500, 375), 64, None),
    ((500, 375), 224, None),
    ((1600, 1200), 224, None),
    ((256, 256), 64, (0.35, 1.0)),
    ((500, 375), 224, (0.35, 1.0)),
]


def photo(random: np.random.Generator, width: int, height: int) -> Image.Image:
    """Draw an image with the spectrum of photographs: amplitude falls with the frequency."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf
    phases = random.random((4, *frequency.shape))
    waves = np.fft.irfft2(frequency**-1.2 * np.exp(2j * np.pi * phases), (height, width))
    waves /= waves.std((1, 2), keepdims=True)
    pixels = 128 + 50 * (waves[:1] + 0.3 * waves[1:])  # colours differ less than light and dark
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))


def write_photos(folder: Path, count: int, size: tuple[int, int]) -> int:
    """Write a folder with two classes, and return the number of bytes of a file."""
    random, sizes = np.random.default_rng(0), []
    for split, share in (("train", count), ("val", 2)):
        for number in range(share):
            path = folder / split / "ab"[number % 2] / f"{number:04}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            photo(random, *size).save(path, quality=90)
            sizes.append(path.stat().st_size)
    return sum(sizes) // len(sizes)


def theirs(folder: Path, side: int, area: Area) -> Callable[[], Iterator[Tensor]]:
    """Return what iterates over an epoch of PIL and torchvision's transforms."""
    middle = [transforms.Resize(side), transforms.CenterCrop(side)]
    cut = middle if area is None else [transforms.RandomResizedCrop(side, area)]
    ends = transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize(MEAN, STD)
    dataset = ImageFolder(str(folder / "train"), transforms.Compose([*cut, *ends]))
    loader = DataLoader(dataset, BATCH, shuffle=True)
    return lambda: (images for images, _ in loader)


def ours(folder: Path, side: int, area: Area, cache: bool) -> Callable[[], Iterator[Tensor]]:
    """Return what iterates over an epoch of our data module."""
    data = ImageFolderDataModule(
        str(folder),
        **{"image_size": side, "batch_size": BATCH, "num_workers": 0, "drop_last": False},
        **{"mean": MEAN, "std": STD, "flip": True, "random_resized_crop": area},
        # What small data sets get, by far the fastest, is not what is measured here.
        **{"in_memory": False, "cache": cache},
        cache_dir=str(folder / "cache"),
    )
    with contextlib.redirect_stdout(None):
        data.setup("fit")
    loader = data.train_dataloader()
    epochs = iter(range(1_000_000))

    def epoch() -> Iterator[Tensor]:
        number = next(epochs)
        loader.sampler.set_epoch(number)
        for images, _, index in loader:
            yield data.preprocess(data.augment(images, index, number, crop=False))

    return epoch


def rate(epoch: Callable[[], Iterator[Tensor]]) -> float:
    """Samples per CPU second of one epoch."""
    before = time.process_time()
    count = sum(len(images) for images in epoch())
    return count / (time.process_time() - before)


def measure(turns: Connection, way: str, folder: Path, side: int, area: Area) -> None:
    """Measure an epoch whenever it is this process's turn."""
    torch.set_num_threads(1)
    if way == "torchvision":
        epoch = theirs(folder, side, area)
    else:
        heap.keep()  # as `lightning` does
        epoch = ours(folder, side, area, cache=way == "cache")
    with contextlib.suppress(EOFError):
        while True:
            turns.recv()
            turns.send(rate(epoch))


def start(*how: Any) -> Connection:
    """Start a process that measures, and return how to tell it that it is its turn."""
    context = get_context("spawn")
    ours, its = context.Pipe()
    context.Process(target=measure, args=(its, *how), daemon=True).start()
    return ours


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=256, help="files of each size")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    title = "Samples per CPU second, in brackets the ratio to torchvision's transforms"
    table = Table("JPEG", "KB", "image_size", *WAYS, title=title)
    for size, side, area in CASES:
        with tempfile.TemporaryDirectory() as name:
            weight = write_photos(Path(name), args.count, size)
            turns = [start(way, Path(name), side, area) for way in WAYS]
            rounds = []
            for _ in range(args.rounds + 1):  # the first one warms up
                rounds.append([])
                for turn in turns:
                    turn.send(None)
                    rounds[-1].append(turn.recv())
            del rounds[0]
        first, *rest = (f"{median(column):,.0f}" for column in zip(*rounds, strict=True))
        ratios = [median(r[i] / r[0] for r in rounds) for i in (1, 2)]
        cells = [f"{value} ({ratio:.1f})" for value, ratio in zip(rest, ratios, strict=True)]
        crop = "" if area is None else " random crops"
        files = f"{size[0]} x {size[1]}"
        table.add_row(files, f"{weight / 1e3:.0f}", f"{side}{crop}", first, *cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
