"""Healthy tasks that are no plain classification, or classify in a way of their own."""

from typing import Any

import torch
import torch.nn.functional as F
from gallery import healthy
from torch import Tensor, nn
from torch.utils.data import DataLoader
from zoo.model_parts import Cnn
from zoo.parts import Pictures, Specimen, Task, small_net


def decoder(inputs: int) -> nn.Module:
    layers = nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 64), nn.Unflatten(1, (1, 8, 8))
    return nn.Sequential(nn.Flatten(), *layers)


@healthy
def autoencoder_on_labelled_pictures() -> Specimen:
    class Autoencoder(Task):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = F.mse_loss(self(batch[0]), batch[0])
            self.log("train/loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val/loss", F.mse_loss(self(batch[0]), batch[0]))

        test_step = validation_step

    return Specimen(Autoencoder(decoder(64)), Pictures())


@healthy
def two_players() -> Specimen:
    class Gan(Task):
        def __init__(self):
            super().__init__(small_net(classes=1))
            self.maker, self.automatic_optimization = decoder(8), False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            images, made = batch[0], self.maker(torch.randn(len(batch[0]), 8))
            maker, critic = self.optimizers()
            loss = F.softplus(-self.net(images)).mean() + F.softplus(self(made.detach())).mean()
            critic.zero_grad()
            self.manual_backward(loss)
            critic.step()
            other = F.softplus(-self(made)).mean()
            maker.zero_grad()
            self.manual_backward(other)
            maker.step()
            self.log_dict({"critic": loss, "maker": other})

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val/real", self(batch[0]).mean())

        test_step = validation_step

        def configure_optimizers(self) -> Any:
            return [torch.optim.Adam(n.parameters(), lr=2e-3) for n in (self.maker, self.net)]

    return Specimen(Gan(), Pictures())


@healthy
def two_views_of_an_image() -> Specimen:
    class Views(Task):
        def view(self, images: Tensor) -> Tensor:
            return F.normalize(self(images + 0.1 * torch.randn_like(images)), dim=1)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            one, two = self.view(batch[0]), self.view(batch[0])
            loss = F.cross_entropy(one @ two.T / 0.2, torch.arange(len(one)))
            self.log("train/loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val/size", self(batch[0]).norm())

        test_step = validation_step

    data = Pictures()
    del data.num_classes
    return Specimen(Views(small_net(classes=16)), data)


@healthy
def forward_of_two_arguments() -> Specimen:
    class Scaled(Task):
        def forward(self, images: Tensor, scale: Tensor) -> Tensor:
            return self.net(images * scale[:, None, None, None])

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self(batch[0], torch.ones(len(batch[0]))), batch[1])
            self.log("train/loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            logits = self(batch[0], torch.ones(len(batch[0])))
            self.log("val/loss", F.cross_entropy(logits, batch[1]))
            self.log("val/acc", (logits.argmax(1) == batch[1]).float().mean())

        test_step = validation_step

    return Specimen(Scaled(), Pictures())


@healthy
def batches_that_are_dictionaries() -> Specimen:
    class Listed(Pictures):
        def loader(self, split: str, **options: Any) -> Any:
            rows = [{"image": x, "label": y} for x, y in zip(*getattr(self, split), strict=True)]
            return DataLoader(rows, 32, **options)

        def train_dataloader(self) -> Any:
            return self.loader("train", shuffle=True)

        def val_dataloader(self) -> Any:
            return self.loader("val")

        def test_dataloader(self) -> Any:
            return self.loader("test")

    class Named(Task):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step((batch["image"], batch["label"]), batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step((batch["image"], batch["label"]), batch_idx)

        def test_step(self, batch: Any, batch_idx: int) -> None:
            super().test_step((batch["image"], batch["label"]), batch_idx)

    return Specimen(Named(), Listed())


@healthy
def every_pixel_has_a_class() -> Specimen:
    layers = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
    data = Pictures()
    data.num_classes = 2
    for split in ("train", "val", "test"):
        images, labels = getattr(data, split)
        rows = torch.arange(8) // 2 == labels[:, None]
        setattr(data, split, (images, rows[:, :, None].expand(-1, -1, 8).long()))

    class Pixels(Task):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            logits = self(batch[0])
            self.log("val/loss", self.loss(logits, batch[1]))
            self.log("val/acc", (logits.argmax(1) == batch[1]).float().mean())

    return Specimen(Pixels(nn.Sequential(*layers, nn.Conv2d(16, 2, 1)), lr=1e-2), data)


@healthy
def images_mixed_in_the_training_step() -> Specimen:
    class Mixed(Task):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            images, labels = batch
            share, order = float(torch.rand(())), torch.randperm(len(images))
            logits = self(share * images + (1 - share) * images[order])
            loss = share * self.loss(logits, labels) + (1 - share) * self.loss(
                logits, labels[order]
            )
            self.log("train/loss", loss)
            return loss

    return Specimen(Mixed(Cnn(dropout=0.0)), Pictures())


@healthy
def layers_that_are_sometimes_left_out() -> Specimen:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.head = nn.Linear(64, 32), nn.Linear(32, 4)
            self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x.flatten(1)).relu()
            for block in self.blocks:
                if not self.training or torch.rand(()) > 0.2:
                    x = x + block(x).relu()
            return self.head(x)

    return Specimen(Task(Net()), Pictures())


@healthy
def frozen_layer_with_a_small_trained_part() -> Specimen:
    class Adapted(nn.Module):
        def __init__(self, layer: nn.Linear):
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.down = nn.Parameter(torch.randn(layer.in_features, 4) * 0.1)
            self.up = nn.Parameter(torch.zeros(4, layer.out_features))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + x @ self.down @ self.up

    net = nn.Sequential(nn.Flatten(), Adapted(nn.Linear(64, 64)), nn.ReLU(), nn.Linear(64, 4))
    return Specimen(Task(net, lr=1e-2), Pictures())
