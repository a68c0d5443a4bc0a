"""Order, batches, randomness and loading."""

import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from zoo.data_inputs import folders, normalise
from zoo.data_labels import SPLITS
from zoo.parts import Pictures, Specimen, Task, case, pictures


def noisy(image: Tensor) -> Tensor:
    """An augmentation: brightness, and a mirror at times."""
    image = normalise(image) * (0.9 + 0.2 * torch.rand(1))
    return image.flip(-1) if torch.rand(()) < 0.5 else image


@case("random-in-evaluation", fast=True, only=("random-in-evaluation",), says="transform")
def one_transform_for_all_splits(bad: bool) -> Specimen:
    """The training transform is given to validation and test."""
    other = noisy if bad else normalise
    return Specimen(Task(), folders({"train": noisy, "val": other, "test": other}))


@case("random-in-evaluation", groups=("data",), says="hook")
def augmented_after_the_transfer_in_every_stage(bad: bool) -> Specimen:
    """A data module augments on the device and does not ask for the stage."""

    class Augmenting(Pictures):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            images, labels = batch
            if bad or self.trainer.training:
                images = images + 0.1 * torch.randn_like(images)
            return images, labels

    return Specimen(Task(), Augmenting())


@case("training-shuffled", groups=("data",), says="sorted by class")
def sorted_and_not_shuffled(bad: bool) -> Specimen:
    """A folder is read class by class, and the loader does not shuffle."""
    data = Pictures()
    images, labels = data.train
    order = labels.argsort(stable=True)
    data.train = images[order], labels[order]
    if bad:
        data.train_options = {"drop_last": True}
    return Specimen(Task(), data)


@case("training-shuffled", groups=("data",), says="order of the dataset")
def not_shuffled(bad: bool) -> Specimen:
    """The training loader has no shuffle=True."""
    data = Pictures()
    if bad:
        data.train_options = {"drop_last": True}
    return Specimen(Task(), data)


class Stream(IterableDataset):
    """Samples from files, one class a file."""

    def __init__(self, images: Tensor, labels: Tensor, by_class: bool) -> None:
        self.images, self.labels, self.by_class = images, labels, by_class

    def __iter__(self):
        order = torch.randperm(len(self.labels))
        if self.by_class:
            order = order[self.labels[order].argsort(stable=True)]
        return ((self.images[i], self.labels[i]) for i in order.tolist())


@case("one-class-batches", groups=("data",))
def a_stream_that_shuffles_within_files(bad: bool) -> Specimen:
    """An iterable dataset reads one file after another, each of one class."""

    class Streaming(Pictures):
        def train_dataloader(self):
            return DataLoader(Stream(*self.train, by_class=bad), batch_size=self.batch_size)

    return Specimen(Task(), Streaming())


@case("evaluation-order", groups=("data",), says="shuffles")
def validation_shuffles(bad: bool) -> Specimen:
    """All loaders share the options of the training loader."""
    data = Pictures()
    data.val_options = {"shuffle": True} if bad else {}
    return Specimen(Task(), data)


@case("evaluation-order", groups=("data",), says="drops the last")
def validation_drops_its_last_batch(bad: bool) -> Specimen:
    """drop_last is set for validation, too."""
    data = Pictures(batch_size=50)
    data.train_options = {"shuffle": True}
    data.val_options = {"drop_last": bad}
    return Specimen(Task(), data)


def with_norm() -> nn.Module:
    """A net with BatchNorm over features, which needs two samples."""
    hidden = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU()
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(32, 4))


@case("last-batch", groups=("data",), says="needs more than one")
def a_last_batch_of_one_with_batchnorm(bad: bool) -> Specimen:
    """One training image is left over for the last batch."""
    data = Pictures(count=257 if bad else 256)
    data.train_options = {"shuffle": True}
    return Specimen(Task(with_norm()), data)


@case("last-batch", groups=("data",), says="no batch")
def fewer_images_than_a_batch(bad: bool) -> Specimen:
    """drop_last drops everything."""
    data = Pictures(batch_size=512 if bad else 32)
    return Specimen(Task(), data)


@case("loader-speed", groups=("data",), says="num_workers is 0")
def slow_to_decode(bad: bool) -> Specimen:
    """Every image takes long to decode, in the training process."""

    def slow(image: Tensor) -> Tensor:
        time.sleep(0.006)
        return normalise(image)

    changes = {"train": slow if bad else normalise, "val": normalise, "test": normalise}
    return Specimen(Task(), folders(changes))


@case("loader-workers", groups=("data",), says="CPUs")
def a_hundred_workers(bad: bool) -> Specimen:
    """num_workers was copied from a larger machine."""

    class Crowded(Pictures):
        def train_dataloader(self):
            data = TensorDataset(*self.train)
            workers = 1000 if bad else 0
            return DataLoader(data, self.batch_size, shuffle=True, num_workers=workers)

    return Specimen(Task(), Crowded())


class Scaled(TensorDataset):
    """A dataset with a function as its transform."""

    def __init__(self, images: Tensor, labels: Tensor, change) -> None:
        super().__init__(images, labels)
        self.change = change

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return self.change(image), label


@case("dataset-for-workers", groups=("data",), says="lambda")
def a_lambda_for_spawned_workers(bad: bool) -> Specimen:
    """Workers that are spawned get the dataset by pickle, which takes no lambda."""
    change = (lambda image: image.float()) if bad else Tensor.float
    splits = {name: Scaled(*pictures(200, 4, seed=k), change) for k, name in enumerate(SPLITS)}
    spawned = {"num_workers": 1, "multiprocessing_context": "spawn"}
    loaders = {
        name: DataLoader(split, 20, shuffle=name == "train", **spawned)
        for name, split in splits.items()
    }
    return Specimen(Task(), loaders)
