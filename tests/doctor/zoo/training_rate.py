"""Learning rates and schedules."""

import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from zoo.parts import Pictures, Specimen, Task, case

RUN = {"trainer": {"max_epochs": 10}, "seed_everything": 1}
STEPS = 80  # of 10 epochs of Pictures()


class Scheduled(Task):
    """A task with a schedule."""

    def __init__(self, make, interval="epoch", lr=3e-3, **more):
        super().__init__(lr=lr)
        self.make, self.interval, self.more = make, interval, more

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        schedule = {"scheduler": self.make(optimizer), "interval": self.interval, **self.more}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def scheduled(make, interval="epoch", **more) -> Specimen:
    return Specimen(Scheduled(make, interval, **more), Pictures(), RUN)


@case("learning-rate", groups=("training",), fast=True, says="too high")
def learning_rate_far_too_high(bad: bool) -> Specimen:
    """SGD at a learning rate that makes the loss explode."""

    class Sgd(Task):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=30.0 if bad else 0.05, momentum=0.9)

    return Specimen(Sgd(), Pictures(), RUN)


@case("learning-rate", groups=("training",), says="too high")
def adam_at_a_rate_for_sgd(bad: bool) -> Specimen:
    """AdamW with a learning rate of 1."""
    hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
    net = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 4))
    return Specimen(Task(net, lr=1.0 if bad else 1e-3), Pictures(), RUN)


@case("learning-rate", only=("learning-rate",), says="too low")
def learning_rate_far_too_low(bad: bool) -> Specimen:
    """A learning rate with two zeros too many for a short run."""
    return Specimen(Task(lr=1e-5 if bad else 3e-3), Pictures(), RUN)


@case("learning-rate-is-not-zero", groups=("training",), says="0 all along")
def learning_rate_of_zero(bad: bool) -> Specimen:
    """An integer division in the schedule makes every factor 0."""

    def factor(epoch):
        return epoch // 1000 if bad else 1 - epoch / 10

    return scheduled(lambda optimizer: LambdaLR(optimizer, factor))


@case("learning-rate-is-not-zero", groups=("training",), says="first 8 of 80")
def warmup_that_begins_at_zero_for_an_epoch(bad: bool) -> Specimen:
    """The warm-up counts epochs from 0, so that the first epoch trains nothing."""
    return scheduled(lambda o: LambdaLR(o, lambda epoch: min(1.0, (epoch + (not bad)) / 3)))


@case("schedule-fits-the-run", groups=("training",), says="Set its interval to 'step'")
def step_schedule_moved_per_epoch(bad: bool) -> Specimen:
    """A cosine over all steps moves once an epoch, Lightning's default."""
    return scheduled(lambda o: CosineAnnealingLR(o, STEPS), "epoch" if bad else "step")


@case("schedule-fits-the-run", groups=("training",), says="Set its interval to 'epoch'")
def epoch_schedule_moved_per_step(bad: bool) -> Specimen:
    """A cosine over the epochs moves every step and goes up and down again."""
    return scheduled(lambda o: CosineAnnealingLR(o, 10), "step" if bad else "epoch")


@case("schedule-fits-the-run", only=("schedule-fits-the-run",), says="below 0.0001 of its peak")
def decay_by_epochs_moved_per_step(bad: bool) -> Specimen:
    """A decay meant for epochs moves every step: after one epoch the rate is gone."""
    return scheduled(lambda o: ExponentialLR(o, 0.7), "step" if bad else "epoch")


@case("schedule-fits-the-run", groups=("training",), says="still warms up")
def warmup_longer_than_the_run(bad: bool) -> Specimen:
    """A warm-up of 1000 steps in a run of 80."""
    steps = 1000 if bad else 10
    return scheduled(lambda o: LambdaLR(o, lambda step: min(1.0, (step + 1) / steps)), "step")


@case("schedule-fits-the-run", only=("schedule-fits-the-run",), says="interval to 'step'")
def warmup_by_steps_moved_per_epoch(bad: bool) -> Specimen:
    """A warm-up and cosine, counted in steps, move once an epoch."""

    def make(optimizer):
        warmup = LinearLR(optimizer, 0.01, total_iters=20)
        return SequentialLR(optimizer, [warmup, CosineAnnealingLR(optimizer, STEPS - 20)], [20])

    return scheduled(make, "epoch" if bad else "step")


@case("schedule-fits-the-run", groups=("training",), says="once per step it would end at 1%")
def decay_by_steps_moved_per_epoch(bad: bool) -> Specimen:
    """A function of the step, down to 0 at the end, is asked once an epoch."""
    return scheduled(lambda o: LambdaLR(o, lambda t: 1 - t / STEPS), "epoch" if bad else "step")


@case("schedule-fits-the-run", only=("schedule-fits-the-run",), says="ends at")
def cosine_of_another_run(bad: bool) -> Specimen:
    """T_max is that of a run five times as long: the rate ends near its peak."""
    return scheduled(lambda o: CosineAnnealingLR(o, 50 if bad else 10))


@case("schedule-fits-the-run", "one-batch-overfits", groups=("training",), says="OneCycleLR")
def one_cycle_shorter_than_the_run(bad: bool) -> Specimen:
    """OneCycleLR raises once its steps are over."""
    return scheduled(lambda o: OneCycleLR(o, 1e-2, total_steps=40 if bad else STEPS), "step")


@case("schedule-fits-the-run", groups=("training",), says="less than 1 %")
def steps_larger_than_the_run(bad: bool) -> Specimen:
    """StepLR waits 30 epochs in a run of 10."""
    return scheduled(lambda o: StepLR(o, 30 if bad else 4))


@case("schedule-is-stepped", groups=("training",), says="Return it")
def schedule_that_is_not_returned(bad: bool) -> Specimen:
    """configure_optimizers builds a schedule and returns the optimizer alone."""

    class Kept(Task):
        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
            self.schedule = CosineAnnealingLR(optimizer, 10)
            return optimizer if bad else {"optimizer": optimizer, "lr_scheduler": self.schedule}

    return Specimen(Kept(), Pictures(), RUN)


@case("schedule-is-stepped", only=("schedule-is-stepped",), says="Manual optimization")
def schedule_forgotten_in_manual_optimization(bad: bool) -> Specimen:
    """With manual optimization nobody moves the schedule."""

    class Manual(Scheduled):
        def __init__(self):
            super().__init__(lambda o: CosineAnnealingLR(o, STEPS))
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            if not bad:
                self.lr_schedulers().step()
            return loss

    return Specimen(Manual(), Pictures(), RUN)


@case("monitor-is-logged", only=("monitor-is-logged",), says="val_loss")
def plateau_that_watches_nothing(bad: bool) -> Specimen:
    """ReduceLROnPlateau watches a metric under a name that is not logged."""
    monitor = "val_loss" if bad else "val/loss"
    return scheduled(lambda o: ReduceLROnPlateau(o), monitor=monitor, strict=False)


@case("mode-fits-the-metric", only=("mode-fits-the-metric",), says="ReduceLROnPlateau")
def plateau_in_the_wrong_mode(bad: bool) -> Specimen:
    """ReduceLROnPlateau takes a rising accuracy for no progress."""
    mode = "min" if bad else "max"
    return scheduled(lambda o: ReduceLROnPlateau(o, mode=mode), monitor="val/acc")
