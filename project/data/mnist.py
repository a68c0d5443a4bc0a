"""MNIST: handwritten digits, the data set that everybody knows."""

from typing import Any, ClassVar

from torch import Tensor
from torchvision.datasets import MNIST  # type: ignore[import-untyped]

from project.data import idx
from project.data.images import ImageDataModule


class MNISTDataModule(ImageDataModule):
    """60,000 training and 10,000 test images of handwritten digits, 28 x 28 (LeCun et al. 1998).

    Args:
        data_dir: Folder with ``MNIST/raw``; the files may also lie in it directly, packed (.gz) or
            not.
        download: Get the files if they are not there.
        kwargs: See :class:`ImageDataModule`.
    """

    class_names: ClassVar[list[str]] = [str(digit) for digit in range(10)]
    in_channels: ClassVar[int] = 1
    native_size: ClassVar[int] = 28
    # Computed from the 60,000 training images; the exact values are 0.130660 and 0.308108.
    mean: ClassVar[tuple[float, ...]] = (0.1307,)
    std: ClassVar[tuple[float, ...]] = (0.3081,)
    may_flip: ClassVar[bool] = False
    fill: ClassVar[tuple[float, ...]] = (0.0,)  # the background is black

    def __init__(
        self,
        data_dir: str = "data",
        download: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.data_dir, self.download = data_dir, download

    def prepare_data(self) -> None:
        """Download what is not there, on one process."""
        if self.download:
            idx.fetch(MNIST, self.data_dir)

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read the images and labels."""
        return idx.load(MNIST, self.data_dir, train)
