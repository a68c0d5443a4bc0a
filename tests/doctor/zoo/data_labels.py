"""Labels that are of the wrong kind, number or image."""

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from zoo.parts import Pictures, Specimen, Task, case, pictures, small_net

SPLITS = ("train", "val", "test")


@case("labels-in-range", only=("labels-in-range",), fast=True, says="num_classes is 4")
def labels_count_from_one(bad: bool) -> Specimen:
    """Labels run from 1 to K instead of from 0 to K - 1."""
    data = Pictures(classes=4)
    if bad:
        for name in SPLITS:
            images, labels = getattr(data, name)
            setattr(data, name, (images, labels + 1))
    return Specimen(Task(), data)


@case("labels-in-range", says="outputs are 4")
def loaders_with_a_class_more_than_the_network(bad: bool) -> Specimen:
    """Plain loaders, and a network for fewer classes than the data has."""
    classes = 5 if bad else 4
    splits = {name: pictures(200, classes, seed=k) for k, name in enumerate(SPLITS)}
    loaders = {
        name: DataLoader(TensorDataset(*split), batch_size=20, shuffle=name == "train")
        for name, split in splits.items()
    }
    return Specimen(Task(small_net(4)), loaders)


@case("label-kind", says="float")
def labels_as_floats(bad: bool) -> Specimen:
    """Labels were read from a table of floats, as pandas gives them."""
    data = Pictures()
    if bad:
        for name in SPLITS:
            images, labels = getattr(data, name)
            setattr(data, name, (images, labels.float()))
    return Specimen(Task(), data)


@case("label-kind", only=("label-kind",), says="one-hot")
def one_hot_where_indices_are_expected(bad: bool) -> Specimen:
    """Labels are one-hot rows of integers."""
    data = Pictures()
    if bad:
        for name in SPLITS:
            images, labels = getattr(data, name)
            setattr(data, name, (images, torch.nn.functional.one_hot(labels, 4)))
    return Specimen(Task(), data)


@case("label-kind", groups=("data",), says="squeeze")
def labels_as_a_column(bad: bool) -> Specimen:
    """Labels kept the column dimension of a table."""
    data = Pictures()
    if bad:
        for name in SPLITS:
            images, labels = getattr(data, name)
            setattr(data, name, (images, labels[:, None]))
    return Specimen(Task(), data)


@case("labels-vary", groups=("data",))
def all_labels_the_same(bad: bool) -> Specimen:
    """The label is taken from the wrong part of the file's name, the same for all files."""
    data = Pictures()
    if bad:
        for name in SPLITS:
            images, labels = getattr(data, name)
            setattr(data, name, (images, torch.zeros_like(labels)))
    return Specimen(Task(), data)


@case("classes-complete", groups=("data",), says="class 3")
def sorted_data_split_without_shuffling(bad: bool) -> Specimen:
    """The first part of data sorted by class became train, the last part val."""
    data = Pictures()
    images, labels = pictures(512, 4, seed=7)
    order = labels.argsort(stable=True) if bad else torch.randperm(512)
    images, labels = images[order], labels[order]
    data.train, data.val = (images[:384], labels[:384]), (images[384:], labels[384:])
    return Specimen(Task(), data)


@case("classes-complete", groups=("data",), says="gaps")
def class_numbers_with_a_gap(bad: bool) -> Specimen:
    """Class numbers are the ids of a catalogue that skips one."""
    data = Pictures(classes=4)
    if bad:
        for name in SPLITS:
            images, labels = getattr(data, name)
            setattr(data, name, (images, torch.tensor([0, 1, 3, 4])[labels]))
        data.num_classes = 5
    return Specimen(Task(small_net(5 if bad else 4)), data)


@case("class-balance", groups=("data",), says="largest class")
def one_class_in_thirty(bad: bool) -> Specimen:
    """Rare defects: nearly all samples are good, and nothing makes up for it."""
    data = Pictures(classes=2)
    images, labels = pictures(600, 2, seed=9)
    if bad:
        keep = torch.cat([(labels == 0).nonzero()[:, 0], (labels == 1).nonzero()[:12, 0]])
        images, labels = images[keep], labels[keep]
    data.train = images, labels
    return Specimen(Task(small_net(2)), data)


@case("label-noise", groups=("data",), says="as if about")
def a_tenth_of_the_labels_drawn_anew(bad: bool) -> Specimen:
    """A tenth of the labels are wrong."""
    data = Pictures(count=600)
    if bad:
        images, labels = data.train
        generator = torch.Generator().manual_seed(0)
        wrong = torch.rand(len(labels), generator=generator) < 0.12
        labels = torch.where(wrong, (labels + 1 + torch.randint(3, labels.shape)) % 4, labels)
        data.train = images, labels
    return Specimen(Task(), data)


@case("labels-fit-inputs", "labels-agree-between-splits", groups=("data",), says="order")
def images_shuffled_without_their_labels(bad: bool) -> Specimen:
    """Images were shuffled after the labels had been read."""
    data = Pictures()
    if bad:
        for k, name in enumerate(SPLITS):
            images, labels = getattr(data, name)
            order = torch.randperm(len(images), generator=torch.Generator().manual_seed(k))
            setattr(data, name, (images[order], labels))
    return Specimen(Task(), data)


@case("labels-agree-between-splits", groups=("data",), says="sorted list")
def validation_numbers_its_classes_anew(bad: bool) -> Specimen:
    """Classes are numbered by os.listdir of each split, in another order."""
    data = Pictures()
    if bad:
        images, labels = data.val
        data.val = images, torch.tensor([2, 0, 3, 1])[labels]
    return Specimen(Task(), data)


class Folder(Dataset):
    """Like torchvision's ImageFolder: files, numbers of their classes, a transform."""

    def __init__(self, root: str, split, names: list[str], transform=None) -> None:
        images, labels = split
        present = [k for k, _ in enumerate(names) if bool((labels == k).any())]
        self.classes = [names[k] for k in present]
        self.class_to_idx = {name: k for k, name in enumerate(self.classes)}
        self.images, self.transform = images, transform
        self.samples = [
            (f"{root}/{names[k]}/{i:04d}.png", present.index(k))
            for i, k in enumerate(labels.tolist())
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int):
        image = self.images[index]
        return (self.transform(image) if self.transform else image), self.samples[index][1]


NAMES = ["ant", "bee", "cat", "dog"]


@case("class-order", groups=("data",), says="class")
def a_folder_that_lacks_a_class(bad: bool) -> Specimen:
    """The validation folder lacks a class, so the others are numbered anew."""
    splits = {name: pictures(200, 4, seed=k) for k, name in enumerate(SPLITS)}
    if bad:
        images, labels = splits["val"]
        splits["val"] = images[labels != 1], labels[labels != 1]
    loaders = {
        name: DataLoader(Folder(name, split, NAMES), batch_size=20, shuffle=name == "train")
        for name, split in splits.items()
    }
    return Specimen(Task(), loaders)
