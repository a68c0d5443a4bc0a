"""Batches of padded images, with a mask of what is image."""

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from project.mistakes import UserError

# Height and width of the images in each batch.
BATCHES = [[(4, 6), (2, 3)], [(5, 2)], [(1, 7), (6, 6), (3, 3)]]


class MaskedMean(nn.Module):
    """A linear layer over the mean of what is image, and a record of the masks it got."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 3)
        self.masks: list[Tensor | None] = []

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        self.masks.append(mask)
        inside = torch.ones_like(images[:, 0]) if mask is None else mask.float()
        return self.head((images * inside[:, None]).sum((2, 3)) / inside.sum((1, 2))[:, None])


class Padded(L.LightningDataModule):
    """Images of different sizes, padded with large numbers."""

    num_classes, in_channels, image_size = 3, 1, None

    def batches(self) -> list[tuple[Tensor, ...]]:
        made, index = [], 0
        for sizes in BATCHES:
            height, width = (max(side) for side in zip(*sizes, strict=True))
            images = torch.full((len(sizes), 1, height, width), 1000.0)
            mask = torch.zeros(len(sizes), height, width, dtype=torch.bool)
            for row, (h, w) in enumerate(sizes):
                images[row, :, :h, :w] = index + row
                mask[row, :h, :w] = True
            rows = torch.arange(index, index + len(sizes))
            made.append((images, rows % 3, rows, mask))
            index += len(sizes)
        return made

    def loader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.batches(), batch_size=None)

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = loader


def test_network_that_takes_a_mask_gets_it_everywhere(trainer, task):
    net = MaskedMean()
    data, module = Padded(), task(net)
    runner = trainer()
    for run in (runner.fit, runner.validate, runner.test, runner.predict):
        net.masks = []
        run(module, datamodule=data)
        seen = [mask for mask in net.masks if mask is not None]
        assert len(seen) >= len(BATCHES)
        assert {tuple(mask.shape) for mask in seen} == {tuple(b[3].shape) for b in data.batches()}


def test_padding_counts_for_nothing(trainer, task):
    module = task(MaskedMean())
    probs = torch.cat(trainer().predict(module, datamodule=Padded()))
    alone = torch.cat([module(torch.full((1, 1, 1, 1), float(k))).softmax(1) for k in range(6)])
    torch.testing.assert_close(probs, alone)


def test_network_without_a_mask_is_refused_for_padded_images(trainer, task):
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 3))
    with pytest.raises(UserError, match=r"Sequential takes no mask.*\n.*--data\.image_size"):
        trainer().fit(task(net), datamodule=Padded())


def test_network_that_takes_a_mask_is_checked_as_well(trainer, task):
    net = MaskedMean()
    net.head = nn.Linear(1, 4)
    with pytest.raises(UserError, match="gives 4 outputs, the data have 3 classes"):
        trainer().fit(task(net), datamodule=Padded())


def test_fourth_part_of_a_batch_is_no_mask_for_other_networks(trainer, task, data):
    class Weighted(data):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            images, labels = batch[:2]
            return images, labels, torch.arange(len(labels)), torch.rand(len(labels))

    trainer().fit(task(), datamodule=Weighted())
