"""Healthy tasks of many kinds: no check may fail on them."""

from collections.abc import Callable
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from zoo.model_loss import numbers
from zoo.model_parts import Cnn, GroupNormNet, Own, Regression, RowLstm, TinyVit
from zoo.parts import Pictures, Specimen, Task, small_net

from project.callbacks import FreezeBackbone
from project.data import DigitsDataModule
from project.models import MLP, ConvNet
from project.tasks import ClassificationTask

GALLERY: dict[str, Callable[[], Specimen]] = {}


def healthy(build: Callable[[], Specimen]) -> Callable[[], Specimen]:
    GALLERY[build.__name__] = build
    return build


def house(net: nn.Module | None = None, **settings: Any) -> ClassificationTask:
    net = net or ConvNet(1, 10, 16)
    return ClassificationTask(net, 10, optimizer=adamw, **settings)


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=3e-3)


@healthy
def digits() -> Specimen:
    return Specimen(house(), DigitsDataModule())


@healthy
def label_smoothing_and_class_weights() -> Specimen:
    return Specimen(house(label_smoothing=0.1, class_weights=[1.0] * 9 + [2.0]), DigitsDataModule())


@healthy
def mixup() -> Specimen:
    return Specimen(house(), DigitsDataModule(mixup=0.4))


@healthy
def mlp_with_much_dropout() -> Specimen:
    return Specimen(house(MLP(1, 8, 10, (256, 128), dropout=0.5)), DigitsDataModule())


@healthy
def slow_backbone() -> Specimen:
    return Specimen(house(backbone_lr_factor=0.1), DigitsDataModule())


@healthy
def frozen_by_the_callback() -> Specimen:
    class Frozen(ClassificationTask):
        def configure_callbacks(self) -> list[L.Callback]:
            return [FreezeBackbone(1)]

    net = ConvNet(1, 10, 16)
    return Specimen(Frozen(net, 10, optimizer=adamw), DigitsDataModule())


@healthy
def resnet18_from_torchvision() -> Specimen:
    net = torchvision.models.resnet18(num_classes=4)
    return Specimen(Task(net, lr=1e-3), Pictures(channels=3, size=32))


@healthy
def mobilenet_from_torchvision() -> Specimen:
    net = torchvision.models.mobilenet_v3_small(num_classes=4)
    return Specimen(Task(net, lr=3e-3), Pictures(channels=3, size=32))


@healthy
def vit() -> Specimen:
    return Specimen(Task(TinyVit()), Pictures())


@healthy
def lstm() -> Specimen:
    return Specimen(Task(RowLstm()), Pictures())


@healthy
def lstm_with_time_first() -> Specimen:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(8, 48, num_layers=2, dropout=0.1), nn.Linear(48, 4)

        def forward(self, x: Tensor) -> Tensor:
            out, _ = self.lstm(x.squeeze(1).transpose(0, 1))
            return self.head(out[-1])

    return Specimen(Task(Net()), Pictures())


@healthy
def group_norm() -> Specimen:
    return Specimen(Task(GroupNormNet()), Pictures())


@healthy
def frozen_backbone() -> Specimen:
    net = Cnn()
    for part in (net.conv1, net.norm1, net.conv2, net.norm2):
        part.requires_grad_(False)

    class Frozen(Task):
        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.net.head.parameters(), lr=1e-2)

    return Specimen(Frozen(net), Pictures())


@healthy
def frozen_backbone_in_eval_mode() -> Specimen:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = torchvision.models.resnet18()
            self.backbone.fc = nn.Identity()
            self.backbone.requires_grad_(False)
            self.head = nn.Linear(512, 4)

        def train(self, mode: bool = True) -> nn.Module:
            super().train(mode)
            self.backbone.eval()
            return self

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.backbone(x)
            return self.head(x)

    net = Net().train()
    return Specimen(Task(net, lr=1e-2), Pictures(channels=3, size=32))


@healthy
def frozen_teacher() -> Specimen:
    class Distilled(Task):
        def __init__(self):
            super().__init__(Cnn(dropout=0.0))
            self.teacher = Cnn().eval().requires_grad_(False)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            images, labels = batch
            logits = self(images)
            with torch.no_grad():
                soft = (self.teacher(images) / 2).softmax(1)
            loss = F.kl_div((logits / 2).log_softmax(1), soft, reduction="batchmean")
            loss = 0.1 * loss + F.cross_entropy(logits, labels)
            self.log("train/loss", loss)
            return loss

    return Specimen(Distilled(), Pictures())


@healthy
def regression() -> Specimen:
    return Specimen(Regression(small_net(classes=1)), numbers())


@healthy
def own_module() -> Specimen:
    return Specimen(Own(), Pictures())


@healthy
def manual_optimization() -> Specimen:
    class Manual(Task):
        def __init__(self):
            super().__init__(Cnn())
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            loss = self.loss(self(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.log("train/loss", loss)

    return Specimen(Manual(), Pictures())
