"""The images of a run that an exported file is checked and calibrated with."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from lightning import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from project.mistakes import UserError

Preprocess = Callable[[Tensor], Tensor]
_STAGES = {"test": "test", "val": "validate"}
_BATCHES = (1, 2, 7)  # none a multiple of another but of 1, and not those of training


@dataclass(frozen=True)
class Samples:
    """Images of a split as the exported file takes them, in order.

    Args:
        datamodule: Where they come from, set up.
        split: ``test`` or ``val``.
        preprocess: What the file does itself, so that it is given uint8; None to give it normalised
            images.
    """

    datamodule: LightningDataModule
    split: str
    preprocess: Preprocess | None

    def batches(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield images ``(B, C, H, W)`` and labels int64 ``(B,)``, None if they are of other kinds.

        Images that were padded to one size come alone, without the padding.
        """
        for batch in getattr(self.datamodule, f"{self.split}_dataloader")():
            images, labels, mask = _parts(self._normalised(batch))
            if mask is None:
                yield images, labels
                continue
            for at, inside in enumerate(mask):  # (H, W), True where there is image
                height, width = int(inside.any(1).sum()), int(inside.any(0).sum())
                alone = images[at : at + 1, :, :height, :width]
                yield alone, None if labels is None else labels[at : at + 1]

    def first(self, count: int) -> Tensor:
        """Return ``count`` images ``(count, C, H, W)``, again from the start if there are fewer.

        Images of different sizes are cut to the least height and width.

        Raises:
            UserError: If there are none.
        """
        found: list[Tensor] = []
        for images, _ in self.batches():
            found += list(images)
            if len(found) >= count:
                break
        if not found:
            raise UserError(f"There are no {self.split} images to check an exported file with.")
        height, width = (min(image.shape[at] for image in found) for at in (1, 2))
        cut = [image[:, :height, :width] for image in found]
        return torch.stack([cut[at % len(cut)] for at in range(count)])

    def small_batches(self) -> list[Tensor]:
        """Return batches of the sizes at which every file is checked."""
        images = self.first(max(_BATCHES))
        return [images[:size] for size in _BATCHES]

    def _normalised(self, batch: Any) -> Any:  # noqa: ANN401
        """Do what the data module does with a batch on the device, unless the file does it."""
        if self.preprocess is not None:
            return batch
        data: Any = self.datamodule
        return data.on_after_batch_transfer(data.on_before_batch_transfer(batch, 0), 0)


def find_samples(datamodule: LightningDataModule, preprocess: bool | None) -> Samples:
    """Set a data module up for its test split, or for its validation split if it has no other.

    Args:
        datamodule: As a run has it.
        preprocess: Whether the file shall preprocess; None if the data module can say how.

    Raises:
        UserError: If there are no such images, or nothing says how to preprocess them, or that is
            not what is done with the batches of the split.
    """
    own: Any = getattr(datamodule, "preprocess", None)
    if preprocess and own is None:
        raise UserError(
            f"{type(datamodule).__name__} has no method preprocess, which turns uint8 images into "
            "normalised ones.\nWrite it, or export what takes normalised images: "
            "--preprocess false"
        )
    split = find_split(datamodule)
    datamodule.prepare_data()
    datamodule.setup(_STAGES[split])
    bare = Samples(datamodule, split, None)
    if own is None or preprocess is False:
        return bare
    samples = Samples(datamodule, split, own)
    given, taken = own(samples.first(2)), bare.first(2)
    if given.shape != taken.shape or not torch.allclose(given, taken.float(), atol=1e-4):
        raise UserError(
            f"{type(datamodule).__name__}.preprocess makes of the {split} images something else "
            "than its batches have when a network is tested.\nWrite it so that both are the same, "
            "or export what takes normalised images: --preprocess false"
        )
    return samples


def calibration(samples: Samples, count: int) -> Iterator[Tensor]:
    """Yield up to ``count`` validation images, by which the ranges of int8 are chosen.

    Not those of the test, which measures what became of the accuracy.
    """
    samples.datamodule.setup("validate")
    left = count
    for images, _ in Samples(samples.datamodule, "val", samples.preprocess).batches():
        yield from torch.split(images[:left], 32)
        left -= len(images)
        if left <= 0:
            return


def find_split(datamodule: LightningDataModule) -> str:
    """Return ``test``, or ``val`` for a data module without test images.

    Raises:
        UserError: If it has neither.
    """
    for split in ("test", "val"):
        written = is_overridden(f"{split}_dataloader", datamodule)
        if written and getattr(datamodule, f"has_{split}", True):
            return split
    raise UserError(
        f"{type(datamodule).__name__} has neither test nor validation images, and an exported file "
        "is checked with some.\nGive it a val_dataloader."
    )


def _parts(batch: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:  # noqa: ANN401
    if isinstance(batch, Tensor):
        return batch, None, None
    labels = batch[1] if len(batch) > 1 else None
    if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.is_floating_point():
        labels = None
    return batch[0], labels, batch[3] if len(batch) > 3 else None
