"""Inputs of the wrong scale, shape, dtype or layout."""

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from zoo.data_labels import NAMES, SPLITS, Folder
from zoo.parts import Pictures, Specimen, Task, case, pictures, small_net


def as_bytes(count: int, seed: int, size: int = 8, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Pictures as files hold them: uint8 from 0 to 255."""
    images, labels = pictures(count, 4, size, channels, seed)
    return (images * 40 + 110).clamp(0, 255).to(torch.uint8), labels


def folders(transforms, **make) -> dict[str, DataLoader]:
    """Loaders over folder-like datasets, each split with its transform."""
    return {
        name: DataLoader(
            Folder(name, as_bytes(200, k, **make), NAMES, transforms[name]),
            batch_size=20,
            shuffle=name == "train",
        )
        for k, name in enumerate(SPLITS)
    }


def normalise(image: Tensor) -> Tensor:
    return (image.float() / 255 - 0.43) / 0.157


@case("normalised", fast=True, only=("normalised",), says="0 to 255")
def images_from_0_to_255(bad: bool) -> Specimen:
    """Nobody scaled the bytes."""
    change = Tensor.float if bad else normalise
    return Specimen(Task(), folders(dict.fromkeys(SPLITS, change)))


@case("normalised", says="without normalisation")
def only_to_tensor(bad: bool) -> Specimen:
    """Scaled to 0..1 and left at that."""
    change = (lambda image: image.float() / 255) if bad else normalise
    return Specimen(Task(), folders(dict.fromkeys(SPLITS, change)))


@case("normalised", groups=("data",), says="twice")
def normalised_twice(bad: bool) -> Specimen:
    """The transform normalises, and the training step does so again."""

    class Twice(Task):
        def forward(self, images: Tensor) -> Tensor:
            return self.net((images - 0.43) / 0.157 if bad else images)

    return Specimen(Twice(), folders(dict.fromkeys(SPLITS, normalise)))


@case("normalised", groups=("data",), says="division by 255")
def divided_by_255_twice(bad: bool) -> Specimen:
    """ToTensor has divided by 255 already."""
    change = (lambda image: image.float() / 255 / 255) if bad else normalise
    return Specimen(Task(), folders(dict.fromkeys(SPLITS, change)))


@case("normalised", groups=("data",))
def constants_in_the_order_of_other_channels(bad: bool) -> Specimen:
    """Mean and std belong to the channels in reverse."""
    mean, std = torch.tensor([0.2, 0.45, 0.8])[:, None, None], 0.1

    def change(image: Tensor) -> Tensor:
        unit = (image.float() / 255 - 0.43) / 0.157 * std + mean
        return (unit - (mean.flip(0) if bad else mean)) / std

    data = folders(dict.fromkeys(SPLITS, change), channels=3)
    return Specimen(Task(small_net(channels=3)), data)


@case("same-preprocessing", groups=("data",), says="in val")
def validation_is_not_normalised(bad: bool) -> Specimen:
    """The transform of the evaluation lacks Normalize."""
    plain = (lambda image: image.float() / 255) if bad else normalise
    return Specimen(Task(), folders({"train": normalise, "val": plain, "test": plain}))


@case("same-preprocessing", groups=("data",), says="in val")
def normalised_in_the_training_step_alone(bad: bool) -> Specimen:
    """The bytes are scaled in training_step, not in validation_step."""

    class Scales(Task):
        def training_step(self, batch, batch_idx):
            images = normalise(batch[0]) if bad else batch[0]
            return super().training_step((images, batch[1]), batch_idx)

        def forward(self, images: Tensor) -> Tensor:
            return self.net(images.float() if bad else normalise(images))

    return Specimen(Scales(), folders(dict.fromkeys(SPLITS)))


@case("same-preprocessing", groups=("data",), says="swapped")
def validation_in_bgr(bad: bool) -> Specimen:
    """Training reads with Pillow, validation with OpenCV."""
    tint = torch.tensor([0.7, 0.0, -0.7])[:, None, None]
    red = {"train": tint, "val": tint.flip(0) if bad else tint, "test": tint}
    changes = {name: (lambda image, t=t: normalise(image) + t) for name, t in red.items()}
    return Specimen(Task(small_net(channels=3)), folders(changes, channels=3))


class Standardised(Pictures):
    """Pictures of another scale, normalised by the statistics of some splits."""

    def __init__(self, by: tuple[str, ...], offset: float = 0.0) -> None:
        super().__init__()
        self.by = by
        self.raw = {
            name: (images * 3 + 5 + offset * (name == "val"), labels)
            for name in SPLITS
            for images, labels in [getattr(self, name)]
        }
        generator = torch.Generator().manual_seed(5)
        for name, (images, labels) in self.raw.items():
            brightness = torch.randn(len(images), 1, 1, 1, generator=generator)
            self.raw[name] = images + brightness, labels

    def setup(self, stage: str | None = None) -> None:
        known = torch.cat([self.raw[name][0] for name in self.by])
        for name, (images, labels) in self.raw.items():
            setattr(self, name, ((images - known.mean()) / known.std(), labels))


@case("statistics-of-train", groups=("data",), says="from val")
def statistics_of_the_validation_split(bad: bool) -> Specimen:
    """Mean and std are computed from the validation images."""
    return Specimen(Task(), Standardised(("val",) if bad else ("train",)))


@case("statistics-of-train", groups=("data",), says="all data")
def statistics_of_all_data(bad: bool) -> Specimen:
    """Mean and std are computed before the split."""
    return Specimen(Task(), Standardised(SPLITS if bad else ("train",)))


@case("finite-data", groups=("data",), fast=True, only=("finite-data",))
def nan_in_one_image(bad: bool) -> Specimen:
    """One image of many was divided by its deviation, which is 0."""
    data = Pictures()
    if bad:
        data.train[0][17] = (data.train[0][17] * 0) / 0
    return Specimen(Task(), data)


@case("finite-data", groups=("data",), says="target")
def missing_values_in_the_targets(bad: bool) -> Specimen:
    """A table of measurements has empty cells."""

    class Regression(Task):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return torch.nn.functional.mse_loss(outputs[:, 0], targets)

        def validation_step(self, batch, batch_idx):
            self.log("val/loss", self.loss(self(batch[0]), batch[1]))

    data = Pictures()
    for name in SPLITS:
        images, labels = getattr(data, name)
        targets = labels.float() / 2 - 0.75 + images.mean((1, 2, 3))
        if bad:
            targets[5] = np.nan
        setattr(data, name, (images, targets))
    del data.num_classes
    return Specimen(Regression(small_net(1)), data)


@case("inputs-vary", groups=("data",))
def every_image_is_black(bad: bool) -> Specimen:
    """Bytes are divided as integers."""
    change = (lambda image: (image.int() // 256).float()) if bad else normalise
    return Specimen(Task(), folders(dict.fromkeys(SPLITS, change)))


@case("image-layout", groups=("data",), says="permute")
def reshape_instead_of_permute(bad: bool) -> Specimen:
    """(H, W, C) of a file became (C, H, W) by reshape."""

    def change(image: Tensor) -> Tensor:
        tint = torch.tensor([1.0, 0.0, -1.0])[:, None, None]
        smooth = torch.nn.functional.avg_pool2d(normalise(image)[None], 5, 1, 2)[0] * 1.5 + tint
        pixels = smooth.permute(1, 2, 0).contiguous()
        return pixels.reshape(3, 32, 32) if bad else pixels.permute(2, 0, 1)

    data = folders(dict.fromkeys(SPLITS, change), channels=3, size=32)
    return Specimen(Task(small_net(channels=3, size=32)), data)


@case("input-shapes", groups=("data",), says="float64")
def numpy_made_float64(bad: bool) -> Specimen:
    """Images come from numpy as float64."""
    data = Pictures()
    if bad:
        for name in SPLITS:
            images, labels = getattr(data, name)
            setattr(data, name, (images.double(), labels))
    return Specimen(Task(), data)


@case("input-shapes", groups=("data",), says="one of train")
def grey_images_in_validation(bad: bool) -> Specimen:
    """Training images were converted to RGB, validation images were not."""
    data = Pictures(channels=3)
    if bad:
        data.val = data.val[0][:, :1], data.val[1]
    return Specimen(Task(small_net(channels=3)), data)


@case("input-shapes", groups=("data",), says="Resize")
def validation_of_another_size(bad: bool) -> Specimen:
    """Only training images are resized."""

    class Pooled(torch.nn.Sequential):
        def __init__(self) -> None:
            conv = torch.nn.Conv2d(1, 16, 3, padding=1)
            pool = torch.nn.AdaptiveAvgPool2d(4)
            layers = [torch.nn.ReLU(), pool, torch.nn.Flatten(), torch.nn.Linear(256, 4)]
            super().__init__(conv, *layers)

    data = Pictures()
    if bad:
        data.val = pictures(128, 4, 12, seed=2)
    loaders = {
        name: DataLoader(
            TensorDataset(*getattr(data, name)), batch_size=32, shuffle=name == "train"
        )
        for name in SPLITS
    }
    return Specimen(Task(Pooled()), loaders)


@case("statistics-of-train", groups=("data",), says="each by itself")
def every_split_by_its_own_constants(bad: bool) -> Specimen:
    """Mean and deviation are computed anew from each split's own images."""
    data = Pictures()
    if bad:
        for name in SPLITS:
            images, labels = getattr(data, name)
            setattr(data, name, ((images - images.mean()) / images.std(), labels))
    return Specimen(Task(), data)
