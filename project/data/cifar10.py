"""CIFAR-10: small colour photographs of ten kinds of things."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torchvision.datasets import CIFAR10  # type: ignore[import-untyped]

from project.data.download import download, missing
from project.data.images import ImageDataModule


class CIFAR10DataModule(ImageDataModule):
    """50,000 training and 10,000 test photographs, 3 x 32 x 32 (Krizhevsky 2009).

    https://www.cs.toronto.edu/~kriz/cifar.html

    Args:
        data_dir: Folder with ``cifar-10-batches-py``.
        download: Get the files if they are not there.
        shift: Largest random shift of a training image in pixels, along both axes.
        flip: Mirror training images left to right, at random, or ``alternating``.
        kwargs: See :class:`ImageDataModule`.
    """

    class_names: ClassVar[list[str]] = [
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ]
    in_channels: ClassVar[int] = 3
    native_size: ClassVar[int] = 32
    # Of the 50,000 training images, e.g. https://github.com/KellerJordan/cifar10-airbench
    mean: ClassVar[tuple[float, ...]] = (0.4914, 0.4822, 0.4465)
    std: ClassVar[tuple[float, ...]] = (0.2470, 0.2435, 0.2616)

    def __init__(
        self,
        data_dir: str = "data",
        download: bool = True,
        shift: int = 4,
        flip: bool | Literal["alternating"] = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(shift=shift, flip=flip, **kwargs)
        self.data_dir, self.download = data_dir, download

    def prepare_data(self) -> None:
        """Download and unpack what is not there, on one process."""
        if self.download:
            # Looks for the files first, and for a packed file that was put there by hand.
            download("CIFAR-10", self._files(), lambda: CIFAR10(self.data_dir, download=True))

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read the images and labels; torchvision compares the files with their checksums."""
        try:
            found = CIFAR10(self.data_dir, train=train)
        except RuntimeError as error:
            raise missing("CIFAR-10", "no files, or damaged ones", self._files()) from error
        images = torch.from_numpy(found.data).permute(0, 3, 1, 2).contiguous()
        return images, torch.tensor(found.targets)

    def _files(self) -> str:
        return (
            f"the unpacked cifar-10-python.tar.gz into {Path(self.data_dir, 'cifar-10-batches-py')}"
        )
