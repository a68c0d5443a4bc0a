"""What `start_up.py` compares with: a Lightning script as short as they get, on the same digits."""

import sys
from pathlib import Path

import lightning as L
import numpy as np
import torch
import torchvision
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from start_up import Stop
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics import Accuracy

assert torchvision


class Task(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(128, 10),
        )
        self.acc = Accuracy("multiclass", num_classes=10)

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self.net(batch[0])
        self.log("val/loss", F.cross_entropy(logits, batch[1]))
        self.acc(logits, batch[1])
        self.log("val/acc", self.acc)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.003)


data = np.load(Path(__file__).parents[2] / "project/data/digits.npz")
images, labels = (torch.from_numpy(data[name]) for name in ("images", "labels"))
images = images.reshape(-1, 1, 8, 8).float() / 16
train, val = random_split(TensorDataset(images, labels.long()), [0.9, 0.1])
logger = TensorBoardLogger(sys.argv[1])
best = ModelCheckpoint(monitor="val/acc", mode="max")
watch = [best, EarlyStopping("val/loss"), LearningRateMonitor(), Stop()]
trainer = L.Trainer(max_epochs=10, logger=logger, callbacks=watch)
trainer.fit(Task(), DataLoader(train, 32, shuffle=True), DataLoader(val, 100))
