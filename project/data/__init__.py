"""Where data enters: one LightningDataModule per file, its Dataset beside it."""

from project.data.cifar10 import CIFAR10DataModule
from project.data.digits import DigitsDataModule
from project.data.fashion_mnist import FashionMNISTDataModule
from project.data.image_csv import ImageCSVDataModule
from project.data.image_folder import ImageFolderDataModule
from project.data.mnist import MNISTDataModule
from project.data.shards import ShardsDataModule

__all__ = [
    "CIFAR10DataModule",
    "DigitsDataModule",
    "FashionMNISTDataModule",
    "ImageCSVDataModule",
    "ImageFolderDataModule",
    "MNISTDataModule",
    "ShardsDataModule",
]
