"""A tiny data set, module and Trainer for the tests of the callbacks; no other room is used."""

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 3


class TinyData(L.LightningDataModule):
    """Images 8x8, the class is the brightest row; the last validation sample is padding."""

    def __init__(self, batch_size=8):
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.class_names = ["zero", "one", "two"]

    def loader(self, count, padded=False):
        generator = torch.Generator().manual_seed(count)
        labels = torch.arange(count) % CLASSES
        images = 0.3 * torch.rand(count, 1, 8, 8, generator=generator)
        images[torch.arange(count), 0, labels] += 1.0
        if padded:
            labels[-1] = -100
        data = TensorDataset(images, labels, torch.arange(count))
        return DataLoader(data, batch_size=self.hparams["batch_size"])

    def train_dataloader(self):
        return self.loader(32)

    def val_dataloader(self):
        return self.loader(20, padded=True)

    def test_dataloader(self):
        return self.loader(10)


class TinyModule(L.LightningModule):
    """A linear classifier that keeps the promises of the task that callbacks rely on."""

    def __init__(self, lr=0.1, dropout=0.0):
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.net = nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(64, CLASSES))

    def forward(self, images):
        return self.net(images)

    def training_step(self, batch, batch_idx):
        images, labels, *_ = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_validation_epoch_start(self):
        self.confusion_matrix = torch.zeros(CLASSES, CLASSES, dtype=torch.int64)

    def validation_step(self, batch, batch_idx, split="val"):
        images, labels, *_ = batch
        logits = self(images)
        kept = labels >= 0
        pairs = labels[kept] * CLASSES + logits.argmax(1)[kept]
        self.confusion_matrix += torch.bincount(pairs, minlength=CLASSES**2).view(CLASSES, CLASSES)
        loss = F.cross_entropy(logits, labels)
        self.log_dict({f"{split}/loss": loss, f"{split}/acc": 1.0 - loss})
        return logits

    on_test_epoch_start = on_validation_epoch_start

    def test_step(self, batch, batch_idx):
        return self.validation_step(batch, batch_idx, "test")

    def per_class(self):
        hits, support = self.confusion_matrix.diagonal(), self.confusion_matrix.sum(1)
        predicted = self.confusion_matrix.sum(0)
        return hits / predicted, hits / support, 2 * hits / (support + predicted), support

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def data():
    return TinyData()


@pytest.fixture
def make_module():
    return TinyModule


@pytest.fixture
def make_trainer(tmp_path):
    """Trainer with the callbacks given, quiet, its TensorBoard files in ``tmp_path``."""

    def make(*callbacks, **options):
        return L.Trainer(
            **{
                "accelerator": "cpu",
                "max_epochs": 2,
                "logger": TensorBoardLogger(str(tmp_path), "", "", default_hp_metric=False),
                "callbacks": list(callbacks),
                "enable_checkpointing": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "log_every_n_steps": 1,
                **options,
            }
        )

    return make


@pytest.fixture
def read_events(tmp_path):
    """What TensorBoard reads from ``tmp_path``."""

    def read():
        return EventAccumulator(str(tmp_path), size_guidance={"images": 0, "tensors": 0}).Reload()

    return read
