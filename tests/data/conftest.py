import struct
from pathlib import Path

import pytest
import torch

from project.data import DigitsDataModule
from project.data.images import resize


@pytest.fixture(autouse=True)
def no_run_seed(monkeypatch: pytest.MonkeyPatch):
    # seed_everything leaves it behind, and the order of samples depends on it.
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)


def write_idx(file: Path, values: torch.Tensor):
    head = struct.pack(f">{values.dim() + 1}I", 0x800 + values.dim(), *values.shape)
    file.write_bytes(head + values.to(torch.uint8).numpy().tobytes())


@pytest.fixture
def mnist_dir(tmp_path: Path) -> Path:
    """The embedded digits as the files of MNIST: 300 training and 60 test images of 28 x 28."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    digits = DigitsDataModule()
    for stem, train, count in (("train", True, 300), ("t10k", False, 60)):
        images, labels = digits.load(train)
        write_idx(raw / f"{stem}-images-idx3-ubyte", resize(images[:count], 28)[:, 0])
        write_idx(raw / f"{stem}-labels-idx1-ubyte", labels[:count])
    return tmp_path
