"""The same image in two places."""

import io

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset

from zoo.data_inputs import as_bytes, normalise
from zoo.data_labels import NAMES, SPLITS, Folder
from zoo.parts import Pictures, Specimen, Task, case, pictures, small_net


@case("same-sample-in-two-splits", fast=True, only=("same-sample-in-two-splits",), says="val 1")
def validation_drawn_from_the_training_images(bad: bool) -> Specimen:
    """A part of the validation images is in the training set."""
    data = Pictures()
    if bad:
        images, labels = data.val
        images, labels = images.clone(), labels.clone()
        images[10:40], labels[10:40] = data.train[0][:30], data.train[1][:30]
        data.val = images, labels
    return Specimen(Task(), data)


@case("same-sample-in-two-splits", groups=("data",))
def two_random_splits(bad: bool) -> Specimen:
    """Train and val are drawn from one set by two calls, each with its own permutation."""
    whole = TensorDataset(*pictures(400, 4, seed=3))
    first = torch.randperm(400, generator=torch.Generator().manual_seed(0)).tolist()
    second = torch.randperm(400, generator=torch.Generator().manual_seed(1)).tolist()
    train = Subset(whole, first[:320])
    val = Subset(whole, second[320:] if bad else first[320:])
    loaders = {"train": DataLoader(train, 20, shuffle=True), "val": DataLoader(val, 20)}
    return Specimen(Task(), loaders)


@case("same-sample-in-two-splits", groups=("data",), says="test")
def oversampled_before_the_split(bad: bool) -> Specimen:
    """Images of a rare class were copied before the data was split."""
    images, labels = pictures(400, 4, seed=3)
    if bad:
        rare = (labels == 1).nonzero()[:, 0].repeat(2)
        images, labels = torch.cat([images, images[rare]]), torch.cat([labels, labels[rare]])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    data, images, labels = Pictures(), images[order], labels[order]
    data.train = images[:280], labels[:280]
    data.val = images[280:340], labels[280:340]
    data.test = images[340:], labels[340:]
    return Specimen(Task(), data)


def reencoded(image: Tensor, brightness: float, quality: int) -> Tensor:
    """A byte image, brighter and through JPEG."""
    picture = Image.fromarray(image.permute(1, 2, 0).squeeze(-1).numpy())
    picture = ImageEnhance.Brightness(picture).enhance(brightness)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    pixels = np.array(Image.open(file))
    return torch.from_numpy(pixels).reshape(*image.shape[1:], -1).permute(2, 0, 1).contiguous()


def _leaky(change, channels: int, size: int) -> dict[str, DataLoader]:
    splits = {k: as_bytes(200, i, size, channels) for i, k in enumerate(SPLITS)}
    images, labels = splits["val"]
    for row in range(40 if change else 0):
        images[3 * row] = change(splits["train"][0][row])
        labels[3 * row] = splits["train"][1][row]
    return {
        name: DataLoader(Folder(name, split, NAMES, normalise), 20, shuffle=name == "train")
        for name, split in splits.items()
    }


@case("near-duplicates-in-two-splits", groups=("data",), says=".png")
def training_images_reencoded_for_validation(bad: bool) -> Specimen:
    """Some validation images are training images from another site: brighter, and JPEG."""
    change = (lambda image: reencoded(image, 1.1, 80)) if bad else None
    return Specimen(Task(small_net(size=24)), _leaky(change, 1, 24))


@case("near-duplicates-in-two-splits", groups=("data",))
def mirrored_copies_in_validation(bad: bool) -> Specimen:
    """Images were mirrored to enlarge the data, before the split."""
    change = (lambda image: reencoded(image.flip(-1), 1.0, 90)) if bad else None
    return Specimen(Task(small_net(size=16, channels=3)), _leaky(change, 3, 16))


@case("duplicates-with-other-labels", groups=("data",))
def one_image_under_two_labels(bad: bool) -> Specimen:
    """Two people labelled some images, differently, and both rows were kept."""
    data = Pictures(count=320)
    if bad:
        images, labels = data.train
        images, labels = images.clone(), labels.clone()
        images[:12], labels[:12] = images[100:112], (labels[100:112] + 1) % 4
        data.train = images, labels
    return Specimen(Task(), data)
