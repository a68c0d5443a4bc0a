"""Settings of trainer, callbacks and optimizer."""

from typing import Any

import torch
from torch import nn

from zoo.parts import Pictures, Specimen, Task, case, small_net


def settings(**blocks: Any) -> dict[str, Any]:
    trainer = {"max_epochs": 20, "gradient_clip_val": None} | blocks.pop("trainer", {})
    return {"seed_everything": 1, "trainer": trainer} | blocks


def early(**said: Any) -> dict[str, Any]:
    init = {"monitor": "val/loss", "mode": "min", "patience": 3} | said
    path = "lightning.pytorch.callbacks.EarlyStopping"
    return settings(early_stopping={"class_path": path, "init_args": init})


def best(**said: Any) -> dict[str, Any]:
    init = {"monitor": "val/acc", "mode": "max", "save_top_k": 1} | said
    path = "lightning.pytorch.callbacks.ModelCheckpoint"
    return settings(checkpoint={"class_path": path, "init_args": init})


@case("monitor-is-logged", groups=("training",), fast=True, says="Did you mean val/acc")
def monitor_that_is_not_logged(bad: bool) -> Specimen:
    """The checkpoint watches val_acc, the task logs val/acc."""
    return Specimen(Task(), Pictures(), best(monitor="val_acc" if bad else "val/acc"))


@case("mode-fits-the-metric", groups=("training",), says="the worst")
def checkpoint_that_keeps_the_worst(bad: bool) -> Specimen:
    """ModelCheckpoint's default mode, min, on an accuracy."""
    said = best()
    if bad:
        del said["checkpoint"]["init_args"]["mode"]
    return Specimen(Task(), Pictures(), said)


class Score(Task):
    """Logs a figure whose name does not say which way is better."""

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("val/margin", self(images).gather(1, labels[:, None]).mean())


@case("mode-fits-the-metric", only=("mode-fits-the-metric",), says="better when large")
def wrong_mode_of_a_figure_without_a_known_name(bad: bool) -> Specimen:
    """Early stopping stops while the figure gets better."""
    return Specimen(Score(), Pictures(), early(monitor="val/margin", mode="min" if bad else "max"))


@case("mode-fits-the-metric", groups=("training",), says="no progress")
def early_stopping_that_waits_for_a_higher_loss(bad: bool) -> Specimen:
    """Early stopping in mode max on a loss."""
    return Specimen(Task(), Pictures(), early(mode="max" if bad else "min"))


@case("seed-is-set", groups=("training",), says="seed_everything")
def run_without_a_seed(bad: bool) -> Specimen:
    """seed_everything is null."""
    return Specimen(Task(), Pictures(), settings() | {"seed_everything": None if bad else 1})


@case("checkpoints-fit-on-the-disk", groups=("training",), says="save_top_k")
def more_checkpoints_than_the_disk_holds(bad: bool) -> Specimen:
    """save_top_k keeps more files than there is room for."""
    return Specimen(Task(), Pictures(), best(save_top_k=10**10 if bad else 3))


@case("validation-decides", groups=("training",), says="training data")
def early_stopping_by_the_training_loss(bad: bool) -> Specimen:
    """Early stopping watches the training loss, which goes on falling."""
    return Specimen(Task(), Pictures(), early(monitor="train/loss" if bad else "val/loss"))


@case("validation-decides", only=("validation-decides",), says="check_val_every_n_epoch")
def validation_that_never_comes(bad: bool) -> Specimen:
    """Validation would run every 50 epochs of a run of 20."""
    said = best()
    said["trainer"]["check_val_every_n_epoch"] = 50 if bad else 1
    return Specimen(Task(), Pictures(), said)


@case("patience-fits-the-run", groups=("training",), says="never")
def patience_longer_than_the_run(bad: bool) -> Specimen:
    """Early stopping waits for 50 validations in a run of 20 epochs."""
    return Specimen(Task(), Pictures(), early(patience=50 if bad else 3))


@case("patience-fits-the-run", only=("patience-fits-the-run",), says="min_delta")
def progress_that_no_metric_can_make(bad: bool) -> Specimen:
    """min_delta is given in percent, the accuracy is a fraction."""
    delta = 1.0 if bad else 0.001
    return Specimen(Task(), Pictures(), early(monitor="val/acc", mode="max", min_delta=delta))


@case("clipping-fits-the-gradients", groups=("training",), says="nearly every")
def clipping_by_a_thousandth(bad: bool) -> Specimen:
    """Gradients of norm 1 are clipped at 0.001."""
    said = settings(trainer={"gradient_clip_val": 1e-3 if bad else 1.0})
    return Specimen(Task(), Pictures(), said)


@case("nothing-is-left-limited", groups=("training",), says="limit_train_batches")
def limits_of_the_last_trial(bad: bool) -> Specimen:
    """limit_train_batches is still there from trying the code."""
    said = settings(trainer={"limit_train_batches": 3 if bad else None})
    return Specimen(Task(), Pictures(), said)


@case("weight-decay-fits", groups=("training",), says="weight_decay")
def weight_decay_of_another_optimizer(bad: bool) -> Specimen:
    """A weight decay so large that it melts the weights."""

    class Decayed(Task):
        def configure_optimizers(self):
            decay = 10.0 if bad else 0.05
            return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=decay)

    return Specimen(Decayed(), Pictures(), settings())


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4)
    )


@case("weight-decay-fits", groups=("training",), says="normalisation")
def weight_decay_on_normalisation(bad: bool) -> Specimen:
    """The scales of LayerNorm are decayed like weights."""

    class Decayed(Task):
        def configure_optimizers(self):
            plain = [p for p in self.parameters() if p.ndim < 2]
            groups = [
                {"params": [p for p in self.parameters() if p.ndim > 1]},
                {"params": plain, "weight_decay": 0.1 if bad else 0.0},
            ]
            return torch.optim.AdamW(groups, lr=self.lr, weight_decay=0.1)

    return Specimen(Decayed(normed()), Pictures(), settings())


@case("accumulation-fits", groups=("training",), says="BatchNorm")
def accumulation_of_tiny_batches_with_batchnorm(bad: bool) -> Specimen:
    """Batches of 4 are accumulated to 32, but BatchNorm sees only 4."""
    norm = nn.BatchNorm1d(32) if bad else nn.LayerNorm(32)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), norm, nn.ReLU(), nn.Linear(32, 4))
    said = settings(trainer={"accumulate_grad_batches": 8})
    return Specimen(Task(net), Pictures(batch_size=4), said)


class Loud(nn.Module):
    """Has values far beyond 65504 inside."""

    def __init__(self, factor: float):
        super().__init__()
        self.net, self.factor = small_net(), factor
        self.scale = nn.Identity()

    def forward(self, images):
        return self.net(self.scale(images * self.factor) / self.factor)


@case("precision-fits", groups=("training",), says="float16 ends at 65504")
def values_that_overflow_in_half_precision(bad: bool) -> Specimen:
    """Inside the network values reach a million, and precision is 16-mixed."""
    said = settings(trainer={"precision": "16-mixed"})
    return Specimen(Task(Loud(1e6 if bad else 1.0)), Pictures(), said)


@case("ddp-uses-all-parameters", groups=("training",), says="net.1")
def branch_that_ddp_waits_for(bad: bool) -> Specimen:
    """A layer that forward does not use, under DDP."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.ModuleList([small_net(), small_net() if bad else nn.Identity()])

        def forward(self, images):
            return self.net[0](images)

    return Specimen(Task(Two()), Pictures(), settings(trainer={"strategy": "ddp"}))


@case("precision-fits", only=("precision-fits",), says="bf16-mixed instead")
def half_precision_on_a_cpu(bad: bool) -> Specimen:
    """16-mixed, which no CPU trains in."""
    precision = "16-mixed" if bad else "bf16-mixed"
    return Specimen(
        Task(), Pictures(), settings(trainer={"precision": precision, "accelerator": "cpu"})
    )
