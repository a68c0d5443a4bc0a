"""Figures that do not mean what they say, runs that cannot be repeated or gone on with."""

import random
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from zoo.data_inputs import folders, normalise
from zoo.data_labels import SPLITS
from zoo.parts import Pictures, Specimen, Task, case, small_net


class Measured(Task):
    """Logs the accuracy that a case computes."""

    def accuracy(self, logits, labels):
        return (logits.argmax(1) == labels).float().mean()

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        self.log("val/loss", F.cross_entropy(logits, labels))
        self.log("val/acc", self.accuracy(logits, labels))


@case("accuracy-is-the-accuracy", groups=("training",), fast=True, says="labels of the same shape")
def accuracy_that_broadcasts(bad: bool) -> Specimen:
    """Predictions (N, 1) are compared with labels (N): every one with every other."""

    class Broadcast(Measured):
        def accuracy(self, logits, labels):
            preds = logits.argmax(1, keepdim=bad)
            return (preds == labels).float().mean()

    return Specimen(Broadcast(), Pictures())


@case("accuracy-is-the-accuracy", only=("accuracy-is-the-accuracy",), says="divide by")
def accuracy_divided_by_the_wrong_number(bad: bool) -> Specimen:
    """Hits are divided by a batch size that is not the batch's."""

    class Divided(Measured):
        def accuracy(self, logits, labels):
            return (logits.argmax(1) == labels).sum() / (64.0 if bad else len(labels))

    return Specimen(Divided(), Pictures())


@case("accuracy-is-the-accuracy", groups=("training",), says="reset")
def metric_that_is_never_reset(bad: bool) -> Specimen:
    """A metric's value is logged instead of the metric, and goes on counting over all epochs."""

    class Kept(Task):
        def __init__(self):
            super().__init__()
            self.measure = MulticlassAccuracy(4, average="micro")

        def validation_step(self, batch, batch_idx):
            images, labels = batch
            logits = self(images)
            self.log("val/loss", F.cross_entropy(logits, labels))
            self.measure.update(logits, labels)
            if not bad:
                self.log("val/acc", self.measure, on_epoch=True)

        def on_validation_epoch_end(self):
            if bad:
                self.log("val/acc", self.measure.compute())

    return Specimen(Kept(), Pictures())


@case("validation-uses-its-labels", groups=("training",), says="val/acc")
def validation_of_the_training_data(bad: bool) -> Specimen:
    """validation_step measures a batch of the training data."""

    class Wrong(Task):
        def training_step(self, batch, batch_idx):
            self.batch = [part.clone() for part in batch]
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            super().validation_step(getattr(self, "batch", batch) if bad else batch, batch_idx)

    return Specimen(Wrong(), Pictures())


@case("validation-is-in-eval-mode", groups=("training",), says="training mode")
def validation_in_training_mode(bad: bool) -> Specimen:
    """Dropout is on during validation."""

    class Training(Task):
        def on_validation_epoch_start(self):
            self.train(bad)

    layers = [nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4)]
    return Specimen(Training(nn.Sequential(*layers)), Pictures())


@case("logged-loss-is-the-loss", groups=("training",), says="wrong sign")
def logged_loss_with_the_wrong_sign(bad: bool) -> Specimen:
    """What is logged is minus the loss."""

    class Signed(Task):
        def training_step(self, batch, batch_idx):
            images, labels = batch
            loss = F.cross_entropy(self(images), labels)
            self.log("train/loss", -loss if bad else loss)
            return loss

    return Specimen(Signed(), Pictures())


@case("same-seed-same-run", groups=("training",), says="two runs with seed")
def random_numbers_without_a_seed(bad: bool) -> Specimen:
    """The task draws noise from a generator of its own that the seed does not reach."""

    class Noisy(Task):
        def training_step(self, batch, batch_idx):
            images, labels = batch
            draw = random.SystemRandom() if bad else random
            return super().training_step((images + draw.gauss(0, 0.3), labels), batch_idx)

    return Specimen(Noisy(), Pictures())


@case("same-seed-same-run", only=("same-seed-same-run",), says="two runs with seed")
def order_without_a_seed(bad: bool) -> Specimen:
    """The sampler shuffles with random numbers from the system."""

    class Shuffled(Pictures):
        def train_dataloader(self):
            data = TensorDataset(*self.train)
            order = list(range(len(data)))
            (random.SystemRandom() if bad else random).shuffle(order)
            return DataLoader(data, batch_size=32, sampler=order)

    return Specimen(Task(), Shuffled())


@case("resume-goes-on", groups=("training",), says="after a resume")
def state_outside_the_checkpoint(bad: bool) -> Specimen:
    """A plain attribute weighs the loss and is forgotten by a resume."""

    class Weighted(Task):
        def __init__(self):
            super().__init__()
            self.count = 0
            self.register_buffer("seen", torch.zeros(()))

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.count += 1
            self.seen += 1
            return loss * (0.3 + 0.7 / (self.count if bad else float(self.seen)))

    return Specimen(Weighted(), Pictures())


@case("checkpoint-loads-safely", groups=("training",), says="weights_only")
def network_among_the_hyperparameters(bad: bool) -> Specimen:
    """save_hyperparameters() puts the network itself into every checkpoint."""

    class Saved(Task):
        def __init__(self, net):
            super().__init__(net)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.save_hyperparameters(logger=False, ignore=[] if bad else ["net"])

    return Specimen(Saved(small_net()), Pictures())


@case("accuracy-is-the-accuracy", only=("accuracy-is-the-accuracy",), says="gets")
def accuracy_of_bytes_that_the_step_scales(bad: bool) -> Specimen:
    """Steps scale the bytes themselves, and the accuracy is divided by a fixed batch size."""

    class Scaling(Task):
        def training_step(self, batch, batch_idx):
            return super().training_step((normalise(batch[0]), batch[1]), batch_idx)

        def validation_step(self, batch, batch_idx):
            logits = self(normalise(batch[0]))
            hits = (logits.argmax(1) == batch[1]).sum()
            self.log("val/loss", F.cross_entropy(logits, batch[1]))
            self.log("val/acc", hits / (64.0 if bad else len(logits)))

        def test_step(self, batch, batch_idx):
            super().test_step((normalise(batch[0]), batch[1]), batch_idx)

    return Specimen(Scaling(), folders(dict.fromkeys(SPLITS, lambda image: image)))
