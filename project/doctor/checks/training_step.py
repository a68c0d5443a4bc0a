"""What a training step does: gives a loss, clears the gradients, moves the weights."""

import torch
from lightning.pytorch.utilities.model_helpers import is_overridden

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.training_runs import (
    FEW,
    AtRate,
    batch_size,
    each,
    mean,
    real_loop,
    tensors,
)


@check("training", seconds=8)
def parameters_move(subject: Subject) -> Finding:
    """Training steps are taken, and they move the weights."""
    lesson = real_loop(subject)
    task = lesson.task
    if not lesson.trainer.optimizers:
        raise Skip("the task has no optimizer")
    if task.automatic_optimization and not any(lesson.gradients) and not lesson.ended_early:
        return fail(
            "no step has had a gradient",
            "training_step must return the loss, as a tensor or under the key 'loss'.",
        )
    rates = [lr for step in lesson.lrs for lr in step]
    if rates and max(rates) == 0:
        raise Skip("the learning rate is 0 in these steps")
    moved = sum(change != 0 for change in lesson.changes.values())
    if lesson.changes and not moved:
        manual = "" if task.automatic_optimization else " Manual: call manual_backward and step."
        return fail(
            "not one weight has moved in 30 steps",
            f"The optimizer holds none of the network's weights, or never steps.{manual}",
        )
    return passed(f"{moved} of {len(lesson.changes)} parameters have moved")


@check("training")
def gradients_are_cleared(subject: Subject) -> Finding:
    """Gradients of one step are gone in the next."""
    [batch] = subject.batches("train", 1) or [None]
    lesson = subject.train(
        steps=5,
        batches=[each(batch, lambda rows: rows[:FEW])],
        callbacks=[AtRate(subject, 0)],
        accumulate_grad_batches=1,
        limit_val_batches=0,
    )
    if len(lesson.trainer.optimizers) > 1 or len(lesson.gradients) < 4:
        raise Skip("needs one optimizer that steps with every batch")
    norms = [sum(n**2 for n in step.values()) ** 0.5 for step in lesson.gradients]
    same = lesson.losses and abs(lesson.losses[3]) < 1.5 * abs(lesson.losses[0])
    if same and norms[0] > 0 and 3 < norms[3] / norms[0] < 5 and 1.6 < norms[1] / norms[0] < 2.4:
        overridden = is_overridden("optimizer_zero_grad", lesson.task)
        return fail(
            f"at the same weights and batch the gradient grows: norms {norms[0]:.3g}, "
            f"{norms[1]:.3g}, {norms[2]:.3g}, {norms[3]:.3g}",
            "optimizer_zero_grad, which the task overrides, must clear the gradients."
            if overridden
            else "Call optimizer.zero_grad() before manual_backward.",
        )
    return passed()


@check("training")
def loss_is_a_mean(subject: Subject) -> Finding:
    """The loss does not grow with the number of samples in a batch."""
    [batch] = subject.batches("train", 1) or [None]
    size = min(FEW, batch_size(batch))
    part = each(batch, lambda rows: rows[:FEW])
    twice = each(part, lambda rows: torch.cat([rows, rows]))
    lesson = subject.train(
        steps=4,
        batches=[part, twice],
        callbacks=[AtRate(subject, 0)],
        accumulate_grad_batches=1,
        limit_val_batches=0,
    )
    if len(lesson.losses) < 4 or len(tensors(batch)) < 2:
        raise Skip("training gives no loss")
    one, two = mean(lesson.losses[0::2]), mean(lesson.losses[1::2])
    if one > 0 and 1.95 < two / one < 2.05:
        return warn(
            f"the loss of {size} samples is {one:.3g}, of the same ones twice {two:.3g}",
            "Average over the batch (reduction='mean'): as it is, the learning rate depends on "
            "batch_size, and an epoch's last, smaller batch counts less.",
        )
    return passed(f"{one:.3g} and, doubled, {two:.3g}")
