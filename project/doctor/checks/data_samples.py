"""Single samples of the splits, small and in their own order: what the checks of data compare."""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import IterableDataset, default_collate

from project.doctor import Skip, Subject
from project.doctor.loop import of_the_user
from project.doctor.once import once
from project.doctor.structures import clone, pair

SIDE = 16  # of a thumbnail, pixels
SECONDS = {"train": 2.5, "val": 1.2, "test": 1.2}
# Numbers of thumbnails that are kept of a split: 80 MB.
ROOM = 20_000_000
# Images that are enough to look for one of them in another split.
QUERIES = 5_000
CHUNK = 64


@dataclass
class Samples:
    """Samples of a split.

    Args:
        indices: Their places in the dataset.
        labels: int64 ``(N,)``, or None if targets are no class indices.
        hashes: Of all bytes of an input, int64 ``(N,)``.
        thumbs: ``(N, C, SIDE, SIDE)`` for images, ``(N, D)`` for other numbers.
        finite: Whether inputs and targets are, ``(N,)``.
        total: Samples that there are.
        file: Gives the file of a sample by its place, where that is known.
    """

    indices: Tensor
    labels: Tensor | None
    hashes: Tensor
    thumbs: Tensor
    finite: Tensor
    total: int
    file: Callable[[int], str | None]

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def are_images(self) -> bool:
        """Whether inputs are images."""
        return self.thumbs.dim() == 4

    @property
    def complete(self) -> bool:
        """Whether these are all samples."""
        return len(self) == self.total

    def head(self, most: int) -> "Samples":
        """Return the first of them, which are drawn at random."""
        labels = None if self.labels is None else self.labels[:most]
        parts = (self.hashes[:most], self.thumbs[:most], self.finite[:most])
        return Samples(self.indices[:most], labels, *parts, self.total, self.file)

    def name(self, row: int) -> str:
        """Return the file of a sample if the dataset knows it, else its place."""
        index = int(self.indices[row])
        return self.file(index) or str(index)


def samples(subject: Subject, split: str) -> Samples:
    """Return samples of a split, drawn without augmentation where that can be left out.

    Raises:
        Skip: If there are none, or none that can be taken one by one.
    """
    return once(subject, f"samples of {split}", lambda: _draw(subject, split))


def batch_of(loader: Any, dataset: Any, indices: list[int]) -> Any:  # noqa: ANN401
    """Fetch and collate samples as the loader does."""
    with of_the_user():
        if hasattr(dataset, "__getitems__"):
            wants_epoch = getattr(dataset, "wants_epoch", False)
            items = dataset.__getitems__([(0, i) for i in indices] if wants_epoch else indices)
        else:
            items = [dataset[index] for index in indices]
        return (getattr(loader, "collate_fn", None) or default_collate)(items)


def length(dataset: Any) -> int:  # noqa: ANN401
    """Return the number of samples of a dataset that gives them by index.

    Raises:
        Skip: If it does not.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise Skip(f"a {type(dataset).__name__} gives no samples by index")
    with of_the_user():
        return len(dataset)


Part = tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]


def _draw(subject: Subject, split: str) -> Samples:
    dataset = getattr(subject.loader(split), "dataset", None)
    try:
        total = length(dataset)
    except Skip:
        parts = [_part(torch.empty(0), batch) for batch in subject.raw(split, 64)]
        count = sum(len(part[2]) for part in parts)
        parts = [(torch.arange(count), *parts[0][1:]), *parts[1:]] if parts else []
        return _joined(parts, count + 1, split, lambda index: None)
    file = partial(file_of, getattr(subject.datamodule, "splits", None), split, dataset)
    if split == "train":
        dataset = unaugmented(subject, dataset)
    return _joined(list(_parts(subject, split, dataset, total)), total, split, file)


def _parts(subject: Subject, split: str, dataset: Any, total: int) -> Iterator[Part]:  # noqa: ANN401
    """Yield chunks of samples in random order, until time or room is over."""
    loader = subject.loader(split)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(0)).tolist()
    end = time.monotonic() + SECONDS[split]
    taken, most = 0, total if split == "train" else min(total, QUERIES)
    while taken < most and (time.monotonic() < end or taken == 0):
        chunk = order[taken : taken + CHUNK]
        part = _part(torch.tensor(chunk), clone(batch_of(loader, dataset, chunk)))
        if len(part[2]) != len(chunk):
            raise Skip("the first dimension of a batch is not that of its samples")
        yield part
        most = min(most, max(CHUNK, ROOM // part[3][0].numel()))
        taken += len(chunk)


def _joined(
    parts: list[Part], total: int, split: str, file: Callable[[int], str | None]
) -> Samples:
    if not parts:
        raise Skip(f"the {split} split has no sample")
    if len({part[3].shape[1:] for part in parts}) > 1:
        raise Skip(f"{split} inputs have different sizes")
    indices, labels, hashes, thumbs, finite = zip(*parts, strict=True)
    known = None if any(part is None for part in labels) else torch.cat(labels)
    cat = torch.cat
    return Samples(cat(indices), known, cat(hashes), cat(thumbs), cat(finite), total, file)


def _part(indices: Tensor, batch: object) -> Part:
    return indices, *_digest(*pair(batch))


def _digest(inputs: Tensor, targets: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """Return labels, hashes, thumbnails and whether all is finite, of a batch."""
    finite = torch.isfinite(inputs.flatten(1)).all(1)
    if targets.is_floating_point():
        finite &= torch.isfinite(targets.reshape(len(targets), -1)).all(1)
    return class_labels(targets), hashes(inputs), thumbnails(inputs), finite


def class_labels(targets: Tensor) -> Tensor | None:
    """Return targets as class indices ``(N,)``, also from one-hot rows; None if they are none."""
    flat = targets.reshape(len(targets), -1)
    if flat.shape[1] == 1:
        whole = not flat.is_floating_point() or bool((flat == flat.round()).all())
        return flat[:, 0].long() if whole else None
    one_hot = targets.dim() == 2 and bool(((flat == 0) | (flat == 1)).all())
    return flat.argmax(1) if one_hot and bool((flat.sum(1) == 1).all()) else None


def hashes(inputs: Tensor) -> Tensor:
    """Return a number for the bytes of each input, int64 ``(N,)``."""
    flat = inputs.flatten(1).contiguous()
    if flat.is_floating_point():
        # + 0.0: -0.0 and 0.0 are the same.
        flat = (flat.float() + 0.0).view(torch.int32)
    factors = torch.randint(
        -(2**62), 2**62, (flat.shape[1],), generator=torch.Generator().manual_seed(1)
    )
    return (flat.long() * (factors | 1)).sum(1)


def thumbnails(inputs: Tensor) -> Tensor:
    """Return inputs as thumbnails if they are images, else as at most 256 numbers."""
    values = torch.nan_to_num(inputs.float(), posinf=0.0, neginf=0.0)
    if values.dim() == 4 and values.shape[3] in (1, 3) and values.shape[1] > 4:
        values = values.permute(0, 3, 1, 2)  # channels last
    if values.dim() == 3 and min(values.shape[1:]) >= 8:
        values = values[:, None]
    if values.dim() == 4 and values.shape[1] <= 4 and min(values.shape[2:]) >= 4:
        return F.adaptive_avg_pool2d(values, SIDE)
    flat = values.flatten(1)
    if flat.shape[1] <= SIDE**2:
        return flat
    return F.adaptive_avg_pool1d(flat[:, None], SIDE**2)[:, 0]


def unaugmented(subject: Subject, dataset: Any) -> Any:  # noqa: ANN401
    """Return training's dataset, with validation's transform where both have one."""
    other = getattr(subject.loader("val"), "dataset", None) if "val" in subject.splits() else None
    with of_the_user():
        return _with_transform_of(dataset, other)


# What changes images at random in datasets: torchvision's, the house's, and usual names.
CHANGES = ("transform", "transforms", "augment")


def _with_transform_of(dataset: Any, other: Any) -> Any:  # noqa: ANN401
    inner, model = _base(dataset), _base(other)
    if getattr(inner, "wants_epoch", False):
        inner = copy.copy(inner)
        inner.crop_area, inner.change, inner.wants_epoch = None, None, False
        return _with_base(dataset, inner)
    if type(inner) is not type(model) or not hasattr(inner, "__dict__"):
        return dataset
    inner = copy.copy(inner)
    for name in set(CHANGES) & vars(inner).keys() & vars(model).keys():
        setattr(inner, name, getattr(model, name))
    return _with_base(dataset, inner)


def _with_base(dataset: Any, base: Any) -> Any:  # noqa: ANN401
    if not hasattr(dataset, "dataset"):
        return base
    made = copy.copy(dataset)
    made.dataset = _with_base(dataset.dataset, base)
    return made


def _base(dataset: Any) -> Any:  # noqa: ANN401
    """Return what lies below Subset and the like."""
    while hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    return dataset


def base_of(dataset: Any) -> Any:  # noqa: ANN401
    """Return the dataset that a Subset, or a Subset of one, is made of."""
    return _base(dataset)


def file_of(splits: Any, split: str, dataset: Any, index: int) -> str | None:  # noqa: ANN401
    """Return the file of a sample, its last two names, where data module or dataset know it.

    Args:
        splits: The house's lists of files, or None.
        split: Name of the split.
        dataset: Its dataset.
        index: Place of the sample in it.
    """
    file: object = None
    try:
        if hasattr(splits, "source") and split in splits.rows:
            return _short(splits.source(split).file(int(splits.rows[split][index])))
        while hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
            dataset, index = dataset.dataset, int(dataset.indices[index])
        if callable(getattr(dataset, "file", None)):
            file = dataset.file(index)
        for name in ("samples", "imgs", "paths", "files", "filenames", "image_paths"):
            found = getattr(dataset, name, None)
            if file is None and found is not None and len(found) == len(dataset):
                file = found[index][0] if isinstance(found[index], tuple) else found[index]
    except Exception:  # a name is not worth a failure
        return None
    return _short(file)


def _short(file: object) -> str | None:
    return "/".join(Path(file).parts[-2:]) if isinstance(file, str | Path) else None
