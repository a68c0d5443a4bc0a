"""Predictions of images that are in no split: those that a command line or a program names."""

import inspect
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from project.mistakes import UserError
from project.request import Request

Step = Callable[..., Any]


class GivenImages(L.LightningDataModule):
    """A predict split of given images, read and normalised as another data module does it.

    Args:
        datamodule: Has ``read(source)``, which returns uint8 ``(C, H, W)`` or raises ValueError or
            OSError, and maybe ``preprocess(images)``, for a batch on the device. Nothing else of it
            is used: its own data need not be there.
        sources: The images; paths are strings.
        reasons: Why a path cannot be read, where that is known.
        batch_size: Images at a time; by default as many as in an evaluation.

    Raises:
        UserError: If the data module cannot read an image.
    """

    def __init__(
        self,
        datamodule: object,
        sources: Sequence[Any],
        reasons: Mapping[str, str] | None = None,
        batch_size: int | None = None,
    ) -> None:
        super().__init__()
        name = type(datamodule).__name__
        if not callable(getattr(datamodule, "read", None)):
            raise UserError(
                f"{name} has no read(source), which turns a file into an image, uint8 (C, H, W).\n"
                "Add it (project/data/loading.py has one), or leave the images out to predict the "
                "split of its predict_dataloader."
            )
        self.data: Any = datamodule
        self.sources, self.reasons = sources, reasons or {}
        sizes = (getattr(datamodule, key, None) for key in ("eval_batch_size", "batch_size"))
        self.batch_size = batch_size or next(filter(None, sizes), 64)
        if getattr(datamodule, "image_size", 0) is None:
            self.batch_size = 1  # images of different sizes make no batch
        self.class_names = getattr(datamodule, "class_names", None)
        self.errors: dict[int, str] = {}  # of the batch at hand

    def predict_path(self, index: int) -> str:
        """Return the file of an image; empty for one in memory."""
        source = self.sources[index]
        return source if isinstance(source, str) else ""

    def predict_dataloader(self) -> DataLoader[Any]:
        """Return the images in batches ``(images, labels, index, errors)``; all labels are -1."""
        images = _Images(self.sources, self.data.read, self.reasons)
        many = len(self.sources) > self.batch_size and isinstance(self.sources[0], str)
        return DataLoader(
            images,
            batch_size=self.batch_size,
            sampler=_Share(len(self.sources), self.trainer),
            num_workers=getattr(self.data, "num_workers", 0) if many else 0,
            collate_fn=_batch,
        )

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:  # noqa: ANN401
        """Keep the errors, which are for no network."""
        *rest, self.errors = batch
        return tuple(rest)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:  # noqa: ANN401
        """Normalise on the device."""
        images, *rest = batch
        if len(images) and hasattr(self.data, "preprocess"):
            images = self.data.preprocess(images)
        if self.trainer is not None:
            images = self.trainer.precision_plugin.convert_input(images)
        return images, *rest


class _Images(Dataset[tuple[int, Any]]):
    """Positions with their images or, where there is none, with the reason."""

    def __init__(
        self, sources: Sequence[Any], read: Callable[[Any], Tensor], reasons: Mapping[str, str]
    ) -> None:
        self.sources, self.read, self.reasons = sources, read, reasons

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> tuple[int, Tensor | str]:
        source = self.sources[index] if index >= 0 else ""
        if index < 0 or (isinstance(source, str) and source in self.reasons):
            return index, self.reasons.get(source, "")
        try:
            return index, self.read(source)
        except (ValueError, OSError) as error:
            return index, str(error)


class _Share(DistributedSampler[int]):
    """Every image once, dealt out to the processes in turn; -1 fills up, so that all have some."""

    # DistributedSampler's constructor repeats images. Being one keeps Lightning's from doing so.
    def __init__(self, length: int, trainer: L.Trainer | None) -> None:
        world, rank = (1, 0) if trainer is None else (trainer.world_size, trainer.global_rank)
        mine = range(rank, -(-length // world) * world, world)
        self.mine = [index if index < length else -1 for index in mine]

    def __len__(self) -> int:
        return len(self.mine)

    def __iter__(self) -> Iterator[int]:
        return iter(self.mine)


def _batch(samples: list[tuple[int, Any]]) -> tuple[Tensor, Tensor, Tensor, dict[int, str]]:
    good = [(index, image) for index, image in samples if isinstance(image, Tensor)]
    errors = {at: text for at, text in samples if isinstance(text, str) and at >= 0}
    images = torch.stack([image for _, image in good]) if good else torch.zeros(0)
    index = torch.tensor([index for index, _ in good], dtype=torch.int64)
    return images, torch.full_like(index, -1), index, errors


def prepare(request: Request, task: L.LightningModule, data: Any) -> Any:  # noqa: ANN401
    """Return what a command is to predict, and give the task its test-time augmentation.

    Args:
        request: What the command line asks for.
        task: Its ``predict_step`` is changed.
        data: The run's data module.

    Raises:
        UserError: If the data module cannot read images, or they cannot be augmented so.
    """
    if request.images is not None:
        assert request.ckpt_path is not None
        of_file = zipfile.is_zipfile(request.ckpt_path)  # then the weights need not be read
        checkpoint = torch.load(request.ckpt_path, "cpu", weights_only=True, mmap=of_file)
        if state := checkpoint.get(type(data).__qualname__):
            data.load_state_dict(state)  # Lightning does so with the data module that it is given
        data = GivenImages(data, request.images.paths, request.images.reasons)
    if request.images is not None or request.tta:
        setattr(task, "predict_step", prediction_step(task, data, request.tta))  # noqa: B010
    return data


def prediction_step(task: L.LightningModule, data: object, tta: str | None) -> Step:
    """Return the ``predict_step`` of a task, also for no image, and with test-time augmentation.

    Args:
        task: Its ``predict_step`` returns probabilities ``(B, num_classes)``.
        data: The data module.
        tta: ``flip`` averages the probabilities of an image and its mirror image, or None.

    Raises:
        UserError: If it is something else, or images of this data must not be mirrored.
    """
    if tta not in (None, "flip"):
        raise UserError(f"--tta takes flip, got {tta!r}.")
    step = task.predict_step
    places = len(inspect.signature(step).parameters)
    if tta and not getattr(getattr(data, "data", data), "may_flip", True):
        raise UserError("--tta flip: mirrored, these images mean something else. Leave it out.")
    known = getattr(data, "class_names", None)
    classes = len(known) if known is not None else getattr(task, "num_classes", 0)

    @wraps(step)
    def predict_step(batch: Any, *args: Any) -> Any:  # noqa: ANN401
        images = batch[0] if isinstance(batch, tuple | list) else batch
        if len(images) == 0:  # none of the batch could be read
            return torch.zeros(0, classes)
        args = args[: places - 1]  # whether or not it wants to know the number of the batch
        probs = step(batch, *args)
        if not tta or not isinstance(probs, Tensor):
            return probs
        return (probs + step(_mirrored(batch), *args)) / 2

    return predict_step


def _mirrored(batch: Any) -> Any:  # noqa: ANN401
    """Flip images ``(B, C, H, W)`` and, if they are padded, their mask ``(B, H, W)``."""
    if isinstance(batch, Tensor):
        return batch.flip(-1)
    images, labels, *rest = batch
    return images.flip(-1), labels, *rest[:1], *(mask.flip(-1) for mask in rest[1:])
