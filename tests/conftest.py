"""What every test runs under: one thread, no network, no settings from outside."""

import os
import pickle
import shutil
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before torch is imported, and for the commands that tests start. On shared cores torch's spinning
# threads are ten times slower than one thread.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pytest
import torch

from project.cli import main
from project.runs import Run, find_run


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Compute with one thread, also where OMP_NUM_THREADS came too late."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def signals_of_a_terminal() -> None:
    """Listen to SIGHUP, here and in the commands that tests start, even under nohup."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Make every machine offline, so that tests pass with and without a network.

    Holds in this process; commands that a test starts must need no network by themselves.
    """
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        host = (
            address[0] if isinstance(address, tuple) else "localhost"
        )  # else a Unix socket's path
        if host not in {"localhost", "127.0.0.1", "::1", "0.0.0.0", socket.gethostname()}:
            raise ConnectionError(f"tests run offline, and this one connects to {host}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in an empty folder, so that runs, data and stray files of a test go there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of the digits recipe, two epochs; tests leave it as they found it."""
    home = tmp_path_factory.mktemp("digits_run")
    root = home / "logs"
    small = ["--trainer.max_epochs", "2", "--model.net.hidden_dim", "8"]
    assert main(["fit", *small, "--trainer.default_root_dir", str(root)]) == 0
    return find_run("last", root)


def write_idx(file: Path, values: torch.Tensor):
    head = struct.pack(f">{values.dim() + 1}I", 0x800 + values.dim(), *values.shape)
    file.write_bytes(head + values.to(torch.uint8).numpy().tobytes())


@pytest.fixture
def mnist_dir(tmp_path: Path) -> Path:
    """Files of MNIST's format, 300 training and 60 test images of 28 x 28."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for stem, count in (("train", 300), ("t10k", 60)):
        labels = torch.arange(count) % 10
        images = torch.randint(0, 128, (count, 28, 28), generator=generator)
        images[torch.arange(count), 2 * labels] += 127
        write_idx(raw / f"{stem}-images-idx3-ubyte", images)
        write_idx(raw / f"{stem}-labels-idx1-ubyte", labels)
    return tmp_path


@pytest.fixture
def cifar_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in CIFAR-10's format; the checksums of the real ones are taken out of torchvision."""
    from torchvision.datasets import CIFAR10

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    random = np.random.default_rng(0)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        entry = {
            "data": random.integers(0, 256, (20, 3072), dtype=np.uint8),
            "labels": [i % 10 for i in range(20)],
        }
        (folder / name).write_bytes(pickle.dumps(entry))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    monkeypatch.setattr(CIFAR10, "train_list", [[n, None] for n, _ in CIFAR10.train_list])
    monkeypatch.setattr(CIFAR10, "test_list", [[n, None] for n, _ in CIFAR10.test_list])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": None})
    return tmp_path


@pytest.fixture
def real_data(mnist_dir: Path, cifar_dir: Path) -> Path:
    """A ``data_dir`` with small files in the formats of MNIST, Fashion-MNIST and CIFAR-10."""
    shutil.copytree(mnist_dir / "MNIST", mnist_dir / "FashionMNIST")
    return mnist_dir


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder ``photos`` with a folder for each of two classes, 20 images of 12 x 16 in each.

    Beside it, ``photos.csv`` names them and their classes.
    """
    from PIL import Image

    random = np.random.default_rng(0)
    lines = ["path,label"]
    for label, name in enumerate(("leaf", "oak tree")):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number in range(20):
            pixels = random.integers(0, 128, (12, 16, 3), dtype=np.uint8)
            pixels[:, :, label] += 127
            Image.fromarray(pixels).save(folder / f"{number:02d}.png")
            lines.append(f"photos/{name}/{number:02d}.png,{name}")
    (tmp_path / "photos.csv").write_text("\n".join(lines))
    return tmp_path / "photos"
