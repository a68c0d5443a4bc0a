"""Fashion-MNIST: as large as MNIST and harder."""

from typing import Any, ClassVar

from torch import Tensor
from torchvision.datasets import FashionMNIST  # type: ignore[import-untyped]

from project.data import idx
from project.data.images import ImageDataModule


class FashionMNISTDataModule(ImageDataModule):
    """60,000 training and 10,000 test images of clothes, 28 x 28 (https://arxiv.org/abs/1708.07747).

    Args:
        data_dir: Folder with ``FashionMNIST/raw``; the files may also lie in it directly, packed
            (.gz) or not.
        download: Get the files if they are not there.
        kwargs: See :class:`ImageDataModule`.
    """

    class_names: ClassVar[list[str]] = [
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ]
    in_channels: ClassVar[int] = 1
    native_size: ClassVar[int] = 28
    # Computed from the 60,000 training images; the exact values are 0.286041 and 0.353024.
    mean: ClassVar[tuple[float, ...]] = (0.2860,)
    std: ClassVar[tuple[float, ...]] = (0.3530,)
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
            idx.fetch(FashionMNIST, self.data_dir)

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read the images and labels."""
        return idx.load(FashionMNIST, self.data_dir, train)
