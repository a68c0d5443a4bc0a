"""Where data enters: one LightningDataModule per file, its Dataset beside it."""

from project.data.cifar10 import CIFAR10DataModule
from project.data.digits import DigitsDataModule
from project.data.fashion_mnist import FashionMNISTDataModule
from project.data.mnist import MNISTDataModule

__all__ = ["CIFAR10DataModule", "DigitsDataModule", "FashionMNISTDataModule", "MNISTDataModule"]
