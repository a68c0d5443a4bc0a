"""Checks of data on data that are right but odd, and on real images; mistakes are in the zoo."""

import io
from collections.abc import Callable
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from zoo.parts import Pictures, Task, pictures, small_net

from project.data import DigitsDataModule
from project.doctor import Report, Subject, check_task
from project.doctor.checks.data_samples import samples

NUMBERS = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))


class Plain(L.LightningModule):
    """A net and a loss on (x, y), without any metric of classes."""

    def __init__(self, net: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    def training_step(self, batch, batch_idx):
        return self.loss(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.loss(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def loaders(inputs: Tensor, targets: Tensor, **options: Any) -> dict[str, DataLoader]:
    cut = len(inputs) * 3 // 4
    train = TensorDataset(inputs[:cut], targets[:cut])
    val = TensorDataset(inputs[cut:], targets[cut:])
    return {
        "train": DataLoader(train, 20, shuffle=True, **options),
        "val": DataLoader(val, 20),
    }


def findings(task: L.LightningModule, data: Any, only: tuple[str, ...] | None = None) -> Report:
    return check_task(task, data, groups=("data",), only=only, seconds=300)


class Words(Dataset):
    """Samples as dictionaries, as in natural language processing."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.full((1, 8, 8), float(index)), "label": index % 4}


class Wordy(Task):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch["image"]), batch["label"])

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", F.cross_entropy(self(batch["image"]), batch["label"]))


class Stream(IterableDataset):
    def __init__(self, seed: int) -> None:
        self.data = TensorDataset(*pictures(200, 4, seed=seed))

    def __iter__(self):
        return (self.data[i] for i in torch.randperm(200).tolist())


def mixed(samples_: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """MixUp in collate_fn: labels become probabilities."""
    images = torch.stack([image for image, _ in samples_])
    rows = F.one_hot(torch.stack([label for _, label in samples_]), 4).float()
    order, part = torch.randperm(len(images)), 0.2 + 0.6 * torch.rand(1)
    mix = part * images + (1 - part) * images[order]
    return mix, part * rows + (1 - part) * rows[order]


def regression() -> tuple[Any, Any]:
    loss = lambda out, y: F.mse_loss(out[:, 0], y.float())  # noqa: E731
    return Plain(nn.Linear(8, 1), loss), loaders(NUMBERS, (NUMBERS.sum(1) * 3 + 30).long())


def yes_or_no() -> tuple[Any, Any]:
    targets = (NUMBERS.sum(1, keepdim=True) > 0).float()
    return Plain(nn.Linear(8, 1), F.binary_cross_entropy_with_logits), loaders(NUMBERS, targets)


def several_labels() -> tuple[Any, Any]:
    targets = (NUMBERS[:, :3] > 0.5).float()
    return Plain(nn.Linear(8, 3), F.binary_cross_entropy_with_logits), loaders(NUMBERS, targets)


def segmentation() -> tuple[Any, Any]:
    images = torch.randn(80, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    masks = torch.where(images.mean(1) > 1, 255, (images.mean(1) > 0).long() * 4)
    loss = lambda out, y: F.cross_entropy(out, y, ignore_index=255)  # noqa: E731
    return Plain(nn.Conv2d(3, 5, 1), loss), loaders(images, masks)


def language_model() -> tuple[Any, Any]:
    tokens = torch.randint(0, 50, (200, 12), generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))
    loss = lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten())  # noqa: E731
    return Plain(net, loss), loaders(tokens[:, :-1], tokens[:, 1:])


def autoencoder() -> tuple[Any, Any]:
    images = torch.rand(80, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Plain(nn.Conv2d(1, 1, 3, padding=1), F.mse_loss), loaders(images, images)


def dictionaries() -> tuple[Any, Any]:
    return Wordy(), {"train": DataLoader(Words(), 20, shuffle=True), "val": DataLoader(Words(), 20)}


def streams() -> tuple[Any, Any]:
    return Task(), {"train": DataLoader(Stream(1), 20)}


def mixup_in_collate() -> tuple[Any, Any]:
    images, labels = pictures(240, 4, seed=1)
    return Plain(small_net(), F.cross_entropy), loaders(images, labels, collate_fn=mixed)


def bytes_scaled_in_forward() -> tuple[Any, Any]:
    images, labels = pictures(240, 4, seed=1)
    net = nn.Sequential(nn.BatchNorm2d(1), small_net())
    task = Plain(net, F.cross_entropy)
    task.forward = lambda x: net(x.float())  # type: ignore[method-assign]
    return task, loaders((images * 40 + 110).clamp(0, 255).byte(), labels)


def three_samples() -> tuple[Any, Any]:
    return Plain(nn.Linear(8, 3), F.cross_entropy), loaders(NUMBERS[:4], torch.tensor([0, 1, 2, 0]))


def copies_of_four_images() -> tuple[Any, Any]:
    labels = torch.arange(240) % 4
    images = torch.zeros(240, 1, 8, 8)
    images[torch.arange(240), 0, labels * 2] = 8.0
    return Plain(small_net(), F.cross_entropy), loaders((images - 1) / 2.65, labels)


ODD = [
    regression,
    yes_or_no,
    several_labels,
    segmentation,
    language_model,
    autoencoder,
    dictionaries,
    streams,
    mixup_in_collate,
    bytes_scaled_in_forward,
    three_samples,
    copies_of_four_images,
]


@pytest.mark.parametrize("build", ODD, ids=lambda build: build.__name__)
def test_data_that_are_right_but_odd_do_not_fail(build: Callable[[], tuple[Any, Any]]) -> None:
    report = findings(*build())
    assert not report.failed, report.failed
    assert len(report.of("WARN")) <= 1, report.of("WARN")
    assert not any("could not run" in found.evidence for found in report.findings)


@pytest.mark.slow
def test_digits_raise_no_alarm() -> None:
    report = findings(Task(small_net(10)).eval(), Pairs())
    assert not report.of("FAIL", "WARN"), report.of("FAIL", "WARN")


class Pairs(DigitsDataModule):
    """The digits as pairs, for a tutorial's task."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return super().on_after_batch_transfer(batch, dataloader_idx)[:2]


def digits(count: int) -> tuple[Tensor, Tensor]:
    data = DigitsDataModule()
    data.setup("fit")
    images, labels, _ = data.train_set.__getitems__(list(range(count)))
    return images, labels


def jpeg(image: Tensor) -> Tensor:
    file = io.BytesIO()
    Image.fromarray((image[0].float() * 0.9 + 10).byte().numpy()).save(file, "JPEG", quality=85)
    return torch.from_numpy(np.array(Image.open(file)))[None]


def test_digits_that_went_through_jpeg_are_recognised() -> None:
    images, labels = digits(800)
    copies = torch.stack([jpeg(image) for image in images[:40]])
    images = F.interpolate(images.float(), scale_factor=2).byte()
    copies = F.interpolate(copies.float(), scale_factor=2).byte()
    val = torch.cat([copies, images[600:]]), torch.cat([labels[:40], labels[600:]])
    data = {
        "train": DataLoader(TensorDataset(images[:600].float(), labels[:600]), 50, shuffle=True),
        "val": DataLoader(TensorDataset(val[0].float(), val[1]), 50),
    }
    found = findings(Task(small_net(10, 16)), data, ("near-duplicates-in-two-splits",)).findings
    assert found[0].status in ("WARN", "FAIL")
    assert found[0].evidence.startswith(("3", "4")), found  # 40, or a few less


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_wrong_labels_are_seen_among_the_digits(share: float) -> None:
    images, labels = digits(1200)
    generator = torch.Generator().manual_seed(1)
    wrong = torch.rand(len(labels), generator=generator) < share
    labels = torch.where(wrong, (labels + 3) % 10, labels)
    found = findings(Task(small_net(10)), loaders(images.float(), labels), ("label-noise",))
    assert found.findings[0].status == ("WARN" if share else "PASS"), found.findings


@pytest.mark.parametrize("apart", [0.5, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("classes", [2, 5])
def test_classes_that_overlap_are_no_label_noise(apart: float, classes: int) -> None:
    labels = torch.arange(1200) % classes
    values = torch.randn(1200, 10, generator=torch.Generator().manual_seed(0))
    values[torch.arange(1200), labels] += apart
    task = Plain(nn.Linear(10, classes), F.cross_entropy)
    found = findings(task, loaders(values, labels), ("label-noise",)).findings
    assert found[0].status in ("PASS", "SKIP"), found


def test_blobs_that_differ_only_in_place_are_no_duplicates() -> None:
    places = torch.rand(800, 2, 1, 1, generator=torch.Generator().manual_seed(0)) * 24
    grid = torch.arange(24.0)
    far = (grid[:, None] - places[:, 0]) ** 2 + (grid - places[:, 1]) ** 2
    images = torch.exp(-far / 30)[:, None] * 4 - 0.5
    labels = (places[:, 0, 0, 0] > 12).long()
    task = Plain(small_net(2, 24), F.cross_entropy)
    found = findings(task, loaders(images, labels), ("near-duplicates-in-two-splits",)).findings
    assert found[0].status == "PASS", found


class Augmented(Dataset):
    """A dataset with a transform."""

    def __init__(self, images: Tensor, labels: Tensor, transform: Any) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(self.images[index]), self.labels[index]


def test_leaks_are_found_behind_an_augmentation() -> None:
    images, labels = pictures(200, 4, seed=1)
    train = Augmented(images, labels, lambda image: image + torch.randn_like(image))
    val = Augmented(images[:50], labels[:50], lambda image: image)
    data = {"train": DataLoader(train, 20, shuffle=True), "val": DataLoader(val, 20)}
    found = findings(Task(), data, ("same-sample-in-two-splits",)).findings
    assert found[0].status == "FAIL", found


def test_samples_say_their_files() -> None:
    data = Augmented(*pictures(100, 4), lambda image: image)
    data.samples = [(f"/somewhere/cat/{i}.png", 0) for i in range(100)]  # type: ignore[attr-defined]
    subject = Subject(Task(), {"train": DataLoader(data, 20)})
    known = samples(subject, "train")
    subject.close()
    row = known.indices.tolist().index(7)
    assert known.name(row) == "cat/7.png"


def test_weights_in_the_loss_make_up_for_unequal_classes() -> None:
    images, labels = pictures(600, 2, seed=1)
    keep = (labels == 0) | (torch.arange(600) < 30)
    data = Pictures(classes=2)
    data.train = images[keep], labels[keep]
    task = Task(small_net(2))
    assert findings(task, data, ("class-balance",)).findings[0].status == "WARN"
    task.criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 20.0]))
    assert findings(task, data, ("class-balance",)).findings[0].status == "PASS"


def test_a_small_last_batch_matters_to_batchnorm_alone() -> None:
    data = Pictures(count=258)
    data.train_options = {"shuffle": True}
    norm = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 4))
    assert findings(Task(norm), data, ("last-batch",)).findings[0].status == "WARN"
    assert findings(Task(), data, ("last-batch",)).findings[0].status == "SKIP"
    data.train_options = {"shuffle": True, "drop_last": True}
    assert findings(Task(norm), data, ("last-batch",)).findings[0].status == "PASS"
