"""A small data set on the base class, so that no test of the base needs one of the examples."""

import socket

import lightning as L
import pytest
import torch
from torch import nn

from project.data.images import ImageDataModule


class SmallDataModule(ImageDataModule):
    """1,457 training and 360 test images of 8 x 8 in ten classes, noise with a bright row."""

    class_names = [str(label) for label in range(10)]  # noqa: RUF012
    in_channels, native_size = 1, 8
    mean, std = (0.2753,), (0.1674,)  # of those images

    def __init__(self, shift: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.shift = shift

    def load(self, train: bool):
        count = 1457 if train else 360
        generator = torch.Generator().manual_seed(count)
        labels = torch.randperm(count, generator=generator) % 10
        images = torch.randint(0, 128, (count, 1, 8, 8), generator=generator)
        images[torch.arange(count), 0, labels % 8] += labels[:, None] * 12
        return images.to(torch.uint8), labels


class Recorder(L.LightningModule):
    """Trains a linear net and keeps the indices and images of every training batch."""

    def __init__(self, pixels: int = 64):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 10))
        self.indices: list[list[int]] = []
        self.images: list[torch.Tensor] = []
        self.valid: list[tuple[int, int]] = []

    def training_step(self, batch, batch_idx):
        images, labels, index = batch
        self.indices.append(index.tolist())
        self.images.append(images.clone())
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch, batch_idx):
        images, labels, _ = batch
        self.valid.append((len(images), int((labels != -100).sum())))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


@pytest.fixture(autouse=True)
def no_run_seed(monkeypatch: pytest.MonkeyPatch):
    # seed_everything leaves it behind, and the order of samples depends on it.
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)


@pytest.fixture
def small() -> type[ImageDataModule]:
    return SmallDataModule


@pytest.fixture
def ready():
    """Make a small data set that has been read."""

    def make(**settings) -> ImageDataModule:
        data = SmallDataModule(**settings)
        data.setup()
        return data

    return make


@pytest.fixture
def recorder() -> type[Recorder]:
    return Recorder


@pytest.fixture
def trainer():
    def make(**settings) -> L.Trainer:
        quiet = {
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
        }
        return L.Trainer(**{**quiet, **settings})

    return make


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch):
    def refuse(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def facts():
    """Check what is known before any file is read."""

    def check(module: type[ImageDataModule], channels: int, size: int) -> None:
        data = module()
        assert data.num_classes == len(data.class_names) == 10
        assert channels == data.in_channels == len(data.mean) == len(data.std)
        assert data.image_size == size
        assert module(image_size=20).image_size == 20
        with pytest.raises(ValueError, match="shift must be at least 0"):
            module(shift=-1)

    return check


@pytest.fixture
def says_what_is_missing(tmp_path, offline):
    """Check the message where there are no files and no network."""
    from project.mistakes import UserError

    def check(module: type[ImageDataModule], download: bool, *files: str) -> None:
        data = module(data_dir=str(tmp_path / "none"), download=download)
        with pytest.raises(UserError) as told:  # noqa: PT012 (either of the two may be the one)
            data.prepare_data()
            data.setup("fit")
        message = str(told.value)
        assert all(file in message for file in files)
        assert "lightning fit" in message
        assert message.count("\n") <= 2
        assert ("download failed" in message) == download
        assert download or not (tmp_path / "none").exists()

    return check
