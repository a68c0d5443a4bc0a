"""A first look at a few of the files: have they colours, and how large are they?"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from project.data.reading.image_file import BadImage, read_header
from project.data.reading.sources import Source

_MOST = 224  # what networks pretrained on ImageNet were trained with
_FILES = 200
_PER_CLASS = 4


class Survey(NamedTuple):
    """What a few files have in common."""

    in_channels: Literal[1, 3]
    image_size: int


def survey(source: Source) -> Survey:
    """Look at the headers of a few files of every class, always the same ones.

    What cannot be read is passed over; later every file is looked at.

    Returns:
        1 channel if none has colours; the median of the shorter sides, at most 224.
    """
    sides, grey = [], True
    for row in _sample(source.labels).tolist():
        try:
            header = read_header(source.root / source.paths[row])
        except BadImage:
            continue
        grey &= header.grey
        sides.append(min(header.width, header.height))
    median = sorted(sides)[len(sides) // 2] if sides else _MOST
    return Survey(1 if grey and sides else 3, min(_MOST, median))


def _sample(labels: Tensor) -> Tensor:
    """Return rows of every class, evenly taken."""
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels.long())
    starts = counts.cumsum(0) - counts
    classes = evenly(len(counts), _FILES)
    share = max(1, min(_PER_CLASS, _FILES // max(1, len(counts))))
    picked = [starts[c] + evenly(int(counts[c]), share) for c in classes.tolist()]
    return order[torch.cat(picked)] if picked else order


def evenly(count: int, most: int) -> Tensor:
    """Return at most ``most`` of the numbers below ``count``, int64, evenly spaced."""
    taken = min(count, most)
    return torch.arange(taken) * count // max(1, taken)
