from pathlib import Path

import pytest
import torch
from torchvision.datasets import FashionMNIST

from project.data import FashionMNISTDataModule


def test_facts_are_known_before_any_file_is_read(facts):
    facts(FashionMNISTDataModule, channels=1, size=28)


def test_it_reads_what_torchvision_reads(mnist_dir: Path):
    (mnist_dir / "MNIST").rename(mnist_dir / "FashionMNIST")
    images, labels = FashionMNISTDataModule(str(mnist_dir), download=False).load(train=True)
    reference = FashionMNIST(mnist_dir, train=True)
    assert torch.equal(images[:, 0], reference.data)
    assert torch.equal(labels, reference.targets)
    assert FashionMNISTDataModule.class_names == reference.classes


@pytest.mark.parametrize("download", [True, False])
def test_missing_files_are_named_with_their_folder(says_what_is_missing, download: bool):
    says_what_is_missing(
        FashionMNISTDataModule, download, "t10k-images-idx3-ubyte", "FashionMNIST/raw"
    )
