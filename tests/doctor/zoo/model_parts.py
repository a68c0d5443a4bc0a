"""Networks of several kinds, for the cases of the model checks."""

from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Cnn(nn.Module):
    """Two convolutions with BatchNorm, dropout, a linear head."""

    def __init__(self, classes: int = 4, channels: int = 1, width: int = 16, dropout: float = 0.2):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * width * 16, classes)

    def features(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        return F.relu(self.norm2(self.conv2(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.features(x).flatten(1)))


class RowLstm(nn.Module):
    """Reads an image row by row."""

    def __init__(self, classes: int = 4, size: int = 8, hidden: int = 48, batch_first: bool = True):
        super().__init__()
        self.lstm = nn.LSTM(size, hidden, batch_first=batch_first)
        self.head = nn.Linear(hidden, classes)

    def last(self, out: Tensor) -> Tensor:
        return out[:, -1]

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(x.squeeze(1))
        return self.head(self.last(out))


class TinyVit(nn.Module):
    """Patches, a class token, positions, two blocks."""

    def __init__(
        self, classes: int = 4, size: int = 8, patch: int = 2, dim: int = 32, positions: bool = True
    ):
        super().__init__()
        self.embed = nn.Conv2d(1, dim, patch, stride=patch)
        count = (size // patch) ** 2
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(torch.randn(1, count + 1, dim) * 0.1) if positions else None
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        if self.positions is not None:
            x = x + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class GroupNormNet(nn.Module):
    """Convolutions with GroupNorm and skip connections."""

    def __init__(self, classes: int = 4, width: int = 16):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(4, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
            for _ in range(2)
        )
        self.norm = nn.GroupNorm(4, width)
        self.head = nn.Linear(width * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(F.adaptive_avg_pool2d(F.relu(self.norm(x)), 4).flatten(1))


class Own(L.LightningModule):
    """What people write without a template: everything in one class."""

    def __init__(self, lr: float = 3e-3):
        super().__init__()
        self.lr = lr
        self.fc1 = nn.Linear(64, 48)
        self.fc2 = nn.Linear(48, 32)
        self.fc3 = nn.Linear(32, 4)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))

    def step(self, batch: Any, split: str) -> Tensor:
        x, y = batch
        out = self(x)
        loss = self.criterion(out, y)
        self.log(f"{split}_loss", loss, prog_bar=True)
        self.log(f"{split}_acc", (out.argmax(1) == y).float().mean())
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.step(batch, "train")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.step(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.step(batch, "test")

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Regression(L.LightningModule):
    """Predicts one number."""

    def __init__(self, net: nn.Module, lr: float = 3e-3):
        super().__init__()
        self.net, self.lr = net, lr

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out, y)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(self(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.loss(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.lr)
