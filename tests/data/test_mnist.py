import gzip
import socket
from pathlib import Path

import pytest
import torch
from torchvision.datasets import MNIST

from project.data import MNISTDataModule
from project.mistakes import UserError


def test_facts_are_known_before_any_file_is_read(facts):
    facts(MNISTDataModule, channels=1, size=28)


def test_mnist_reads_what_torchvision_reads(mnist_dir: Path):
    data = MNISTDataModule(str(mnist_dir), download=False)
    data.prepare_data()
    data.setup()
    reference = MNIST(mnist_dir, train=True)
    images, labels = data.load(train=True)
    assert torch.equal(images[:, 0], reference.data)
    assert torch.equal(labels, reference.targets)
    assert data.test_set is not None
    assert len(data.test_set) == 60


@pytest.mark.parametrize("place", ["MNIST/raw", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_mnist_files_may_be_packed_and_lie_in_the_folder_itself(
    mnist_dir: Path, tmp_path: Path, place: str, packed: bool
):
    expected = MNISTDataModule(str(mnist_dir), download=False).load(train=False)
    folder = tmp_path / "other" / place
    folder.mkdir(parents=True)
    for file in (mnist_dir / "MNIST" / "raw").iterdir():
        data = file.read_bytes()
        name = f"{file.name}.gz" if packed else file.name
        (folder / name).write_bytes(gzip.compress(data) if packed else data)
    found = MNISTDataModule(str(tmp_path / "other"), download=False).load(train=False)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_a_silent_server_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr(MNIST, "mirrors", [address])
        monkeypatch.setattr("project.data.download._PATIENCE", 0.2)
        with pytest.raises(UserError, match="timed out"):
            MNISTDataModule(str(tmp_path)).prepare_data()
    assert socket.getdefaulttimeout() is None


def test_truncated_file_is_named(mnist_dir: Path):
    file = mnist_dir / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match="train-images-idx3-ubyte is damaged"):
        MNISTDataModule(str(mnist_dir), download=False).setup("fit")


def test_truncated_gz_is_named(mnist_dir: Path):
    file = mnist_dir / "MNIST" / "raw" / "train-images-idx3-ubyte"
    packed = file.with_name(f"{file.name}.gz")
    packed.write_bytes(gzip.compress(file.read_bytes())[:-20])
    file.unlink()
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz is damaged"):
        MNISTDataModule(str(mnist_dir), download=False).setup("fit")


def test_images_and_labels_that_do_not_belong_together_are_refused(mnist_dir: Path):
    raw = mnist_dir / "MNIST" / "raw"
    (raw / "train-labels-idx1-ubyte").write_bytes((raw / "t10k-labels-idx1-ubyte").read_bytes())
    with pytest.raises(UserError, match=r"300 images, .* 60 labels"):
        MNISTDataModule(str(mnist_dir), download=False).setup("fit")


@pytest.mark.parametrize("download", [True, False])
def test_missing_files_are_named_with_their_folder(says_what_is_missing, download: bool):
    says_what_is_missing(
        MNISTDataModule, download, "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte", "MNIST/raw"
    )
