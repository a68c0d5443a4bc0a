"""Predictions in a program: what ``load_run(...).predict(images)`` returns."""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from project.loaded_run import LoadedRun
from project.mistakes import UserError
from project.named_images import find_images
from project.predicting import GivenImages, prediction_step
from project.probs import check_probs


class Row(NamedTuple):
    """What is predicted of one image.

    Args:
        path: Its file; empty for one in memory.
        prediction: The class; empty if the image cannot be read.
        probability: Of this class; nan if the image cannot be read.
        error: Why it cannot be read; else empty.
        top: The ``top_k`` most probable classes with their probabilities.
    """

    path: str
    prediction: str
    probability: float
    error: str
    top: list[tuple[str, float]]


@dataclass(frozen=True)
class Predictions:
    """Predictions in the order of the images; iterate over them for one ``Row`` an image.

    Args:
        classes: Names of the classes.
        probs: float32 ``(N, K)`` on the CPU, nan for an image that cannot be read.
        paths: File of every image, empty for one in memory.
        errors: Why an image cannot be read, by its position.
        top_k: How many classes a row names.
    """

    classes: list[str]
    probs: Tensor
    paths: Sequence[str]
    errors: Mapping[int, str]
    top_k: int = 1

    def __len__(self) -> int:
        return len(self.probs)

    def __iter__(self) -> Iterator[Row]:
        values, labels = self.probs.sort(dim=1, descending=True, stable=True)
        for at, path in enumerate(self.paths):
            if at in self.errors:
                yield Row(path, "", float("nan"), self.errors[at], [])
                continue
            named = [self.classes[label] for label in labels[at, : self.top_k].tolist()]
            top = list(zip(named, values[at, : self.top_k].tolist(), strict=True))
            yield Row(path, *top[0], "", top)


def predict(
    run: LoadedRun, images: object, top_k: int, batch_size: int | None, tta: str | None
) -> Predictions:
    """Do what :meth:`LoadedRun.predict` says."""
    if batch_size is not None and batch_size < 1:
        raise UserError(f"batch_size must be at least 1, got {batch_size}.")
    sources, reasons = _sources(images)
    data = GivenImages(run.datamodule, sources, reasons, batch_size)
    step = prediction_step(run.task, data, tta)
    found: list[tuple[Tensor, Tensor]] = []
    errors: dict[int, str] = {}
    with torch.inference_mode():
        for number, batch in enumerate(data.predict_dataloader()):
            batch = data.on_before_batch_transfer(batch, 0)
            batch = data.transfer_batch_to_device(batch, run.task.device, 0)
            batch = data.on_after_batch_transfer(batch, 0)
            found.append((batch[2].cpu(), check_probs(step(batch, number), batch).float()))
            errors |= data.errors
    names = data.class_names
    width = max((probs.shape[1] for _, probs in found), default=len(names or ()))
    if width and not 1 <= top_k <= width:
        raise UserError(f"top_k must be from 1 to {width}, the number of classes, got {top_k}.")
    whole = torch.full((len(sources), width), float("nan"))
    for index, probs in found:
        whole[index] = probs
    paths = [data.predict_path(at) for at in range(len(sources))]
    return Predictions([str(name) for name in names or range(width)], whole, paths, errors, top_k)


def _sources(images: object) -> tuple[Sequence[Any], dict[str, str]]:
    """Return the images that are meant, files as paths, and why some of these cannot be read."""
    single = isinstance(images, str | bytes | bytearray | os.PathLike | io.IOBase)
    single |= not hasattr(images, "__iter__")
    dimensions = getattr(images, "ndim", 4)  # of an array or a tensor; with four, it is a batch
    sources: list[Any] = []
    reasons: dict[str, str] = {}
    for image in [images] if single or dimensions < 4 else list(images):  # type: ignore[call-overload]
        if isinstance(image, str | os.PathLike):
            found = find_images([os.fspath(image)])
            sources += found.paths
            reasons |= found.reasons
        else:
            sources.append(image)
    return sources, reasons
