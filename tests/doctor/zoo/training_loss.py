"""Losses and steps that do not train."""

import torch
import torch.nn.functional as F
from torch import nn

from zoo.parts import Pictures, Specimen, Task, case, small_net


@case("loss-falls", only=("loss-falls",), fast=True)
def optimizer_that_climbs(bad: bool) -> Specimen:
    """The optimizer maximises the loss."""

    class Climber(Task):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=self.lr, maximize=bad)

    return Specimen(Climber(), Pictures())


@case("loss-falls", "one-batch-overfits", groups=("training",))
def loss_with_the_wrong_sign(bad: bool) -> Specimen:
    """The mean log-likelihood is returned without its minus."""

    class Likelihood(Task):
        def loss(self, logits, labels):
            chosen = logits.log_softmax(1).gather(1, labels[:, None])
            return chosen.mean() if bad else -chosen.mean()

    return Specimen(Likelihood(), Pictures())


@case("loss-is-a-mean", groups=("training",), says="twice")
def loss_summed_over_the_batch(bad: bool) -> Specimen:
    """The loss is a sum, so that the learning rate means another thing at another batch size."""

    class Summed(Task):
        def loss(self, logits, labels):
            return F.cross_entropy(logits, labels, reduction="sum" if bad else "mean")

    return Specimen(Summed(lr=1e-3), Pictures())


@case("parameters-move", groups=("training",), says="return the loss")
def step_that_returns_nothing(bad: bool) -> Specimen:
    """training_step logs the loss and forgets to return it."""

    class Forgetful(Task):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return None if bad else loss

    return Specimen(Forgetful(), Pictures())


@case("gradients-are-cleared", groups=("training",), says="zero_grad")
def manual_step_without_zero_grad(bad: bool) -> Specimen:
    """Manual optimization never clears the gradients."""

    class Manual(Task):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            optimizer = self.optimizers()
            if not bad:
                optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            return loss

    return Specimen(Manual(), Pictures())


@case("gradients-are-cleared", only=("gradients-are-cleared",), says="optimizer_zero_grad")
def zero_grad_that_does_nothing(bad: bool) -> Specimen:
    """optimizer_zero_grad is overridden for speed, and clears nothing."""

    class Fast(Task):
        def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
            if not bad:
                super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    return Specimen(Fast(), Pictures())


@case("parameters-move", groups=("training",), says="Manual")
def manual_step_that_never_steps(bad: bool) -> Specimen:
    """Manual optimization computes gradients and never takes a step."""

    class Manual(Task):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            if not bad:
                optimizer.step()
            return loss

    return Specimen(Manual(), Pictures())


@case("parameters-move", "optimizer-parameters", only=("parameters-move", "loss-falls"))
def optimizer_over_another_network(bad: bool) -> Specimen:
    """The optimizer was made over a copy of the network."""

    class Copied(Task):
        def configure_optimizers(self):
            net = small_net() if bad else self.net
            return torch.optim.AdamW(net.parameters(), lr=self.lr)

    return Specimen(Copied(), Pictures())


class Constant(nn.Module):
    """Drops what the picture shows."""

    def __init__(self, bad: bool):
        super().__init__()
        self.net, self.bad = small_net(), bad

    def forward(self, images):
        return self.net(images * 0 + 0.1 if self.bad else images)


@case("one-batch-overfits", only=("one-batch-overfits",), says="by heart")
def network_that_does_not_see_its_input(bad: bool) -> Specimen:
    """The input is multiplied by a mask that is 0 everywhere."""
    return Specimen(Task(Constant(bad)), Pictures())


@case("one-batch-overfits", groups=("training",), says="softmax")
def softmax_before_the_loss(bad: bool) -> Specimen:
    """The network ends in a softmax, and cross-entropy takes another one."""
    net = nn.Sequential(small_net(), nn.Softmax(1)) if bad else small_net()
    return Specimen(Task(net), Pictures())
