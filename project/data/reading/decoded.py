"""What is computed once from decoded files: all images in memory, mean and deviation."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from project.data.loading import as_is
from project.data.reading.file_dataset import FileDataset

# Fewer files than this are decoded sooner than processes are started.
_FEW = 1000
# Images that a worker hands over at once.
_CHUNK = 64

Constants = tuple[list[float], list[float]]  # mean and deviation of every channel


def batches(dataset: FileDataset, rows: Tensor, workers: int) -> Iterator[Any]:
    """Yield the images of some of a data set's samples, in order, decoded by workers if many.

    Args:
        dataset: Without anything random.
        rows: Its samples, ``(M,)``.
        workers: Processes to decode with.
    """
    yield from DataLoader(
        dataset,
        batch_size=_CHUNK if dataset.size is not None else 1,
        sampler=rows.tolist(),
        num_workers=workers if len(rows) >= _FEW else 0,
        collate_fn=as_is,  # type: ignore[arg-type]
        generator=torch.Generator(),  # the global one is that of the run
    )


def decode_all(found: Iterable[Any], count: int) -> Tensor:
    """Put the images of batches into one tensor, uint8 ``(count, C, H, W)``."""
    whole: Tensor | None = None
    at = 0
    for images, *_ in found:
        whole = images.new_empty(count, *images.shape[1:]) if whole is None else whole
        whole[at : at + len(images)] = images
        at += len(images)
    assert whole is not None
    return whole


def statistics(images: Iterable[Tensor]) -> tuple[list[float], list[float]]:
    """Mean and deviation per channel of all pixels, as fractions in [0, 1].

    Args:
        images: uint8 ``(B, C, H, W)`` each.

    Returns:
        Both to four digits, the deviation at least one level of 255.
    """
    # Counts of the 256 levels are exact, in whatever order the images come.
    counts: Tensor | None = None
    for batch in images:
        channels = batch.transpose(0, 1).flatten(1)
        found = torch.stack([torch.bincount(levels, minlength=256) for levels in channels])
        counts = found if counts is None else counts + found
    assert counts is not None
    share = counts.double() / counts.sum(1, keepdim=True)
    levels = torch.linspace(0, 1, 256, dtype=torch.float64)
    mean = share @ levels
    variance = (share * (levels - mean[:, None]) ** 2).sum(1)
    std = variance.sqrt().clamp(min=1 / 255)
    return [round(float(m), 4) for m in mean], [round(float(s), 4) for s in std]


def remembered(
    cache_dir: str | None, contents: Tensor, how: object, compute: Callable[[], Constants]
) -> Constants:
    """Return constants from the cache, or compute them and leave them there.

    Args:
        cache_dir: Folder of the cache, or None.
        contents: Hashes of the images that they depend on, int64.
        how: What else they depend on.
        compute: Is called if they are not there.
    """
    name = hashlib.blake2b(contents.sort()[0].numpy().tobytes(), digest_size=16)
    name.update(repr(how).encode())
    file = None if cache_dir is None else Path(cache_dir, f"constants-{name.hexdigest()}.json")
    if file is not None:
        with contextlib.suppress(OSError, ValueError, TypeError):
            mean, std = json.loads(file.read_text())
            return [float(value) for value in mean], [float(value) for value in std]
    found = compute()
    if file is not None:
        with contextlib.suppress(OSError):  # a folder that cannot be written to: next time again
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(found))
            os.replace(draft, file)
    return found


def check_constants(
    mean: list[float] | None, std: list[float] | None, in_channels: int | None
) -> None:
    """Raise ValueError for a mean and a deviation that do not fit together or the channels."""
    if (mean is None) != (std is None):
        raise ValueError("mean and std go together: set both or none")
    if mean is not None and std is not None:
        lengths = {len(mean), len(std), in_channels or len(mean)}
        if len(lengths) > 1 or not lengths < {1, 3}:
            raise ValueError(
                f"mean and std need one number for each of 1 or 3 channels, got {mean} and {std}"
            )
        if min(std) <= 0:
            raise ValueError(f"std must be above 0, got {std}")
