"""Whether the logged figures mean what their names say."""

import functools
import math
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.training_labels import (
    other_labels,
    trains_on_labels,
    with_other_labels,
)
from project.doctor.checks.training_runs import AtRate
from project.doctor.given import Given, as_forward_gets_them, forward_watched
from project.doctor.loop import Lesson
from project.doctor.once import once
from project.doctor.structures import pair

COUNT = 2  # validation batches


@dataclass
class Course:
    """A validation, a short training, and validations after it.

    Args:
        lesson: The training, every step logged.
        before: Metrics of the untrained network.
        after: Metrics of the trained one.
        shifted: The same with the labels of other samples.
        in_training: Layers that were in training mode during validation.
        given: What forward got in the validation after it.
    """

    lesson: Lesson
    before: dict[str, float]
    after: dict[str, float]
    shifted: dict[str, float]
    in_training: list[str] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)


def _course(subject: Subject) -> Course:
    return once(subject, "course", lambda: _make(subject))


def _make(subject: Subject) -> Course:
    task = subject.fresh_task()
    if "val" not in subject.splits() or not is_overridden("validation_step", task):
        raise Skip("there is no validation")
    before = subject.evaluate(task, count=COUNT)
    lesson = subject.train(
        task,
        steps=20,
        batches=subject.batches("train", 4),
        callbacks=[AtRate(subject, 1, warmup=5)],
        accumulate_grad_batches=1,
        limit_val_batches=0,
        log_every_n_steps=1,
    )
    course = Course(lesson, before, {}, {})
    handles = [
        module.register_forward_pre_hook(functools.partial(_look, course.in_training, name))
        for name, module in task.named_modules()
        if isinstance(module, _BatchNorm | _DropoutNd)
    ]
    with forward_watched(task, "validation_step") as course.given:
        course.after = subject.evaluate(task, count=COUNT)
    for handle in handles:
        handle.remove()
    task.validation_step = _with_other_labels(task.validation_step)  # type: ignore[method-assign]
    course.shifted = subject.evaluate(task, count=COUNT)
    return course


def _look(found: list[str], name: str, module: nn.Module, args: object) -> None:
    if module.training and name not in found:
        found.append(name)


def _with_other_labels(step: Callable[..., Any]) -> Callable[..., Any]:
    """Give a validation step the labels of other classes."""

    @functools.wraps(step)
    def changed(batch: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return step(with_other_labels(batch), *args, **kwargs)

    return changed


@check("training", seconds=8)
def accuracy_is_the_accuracy(subject: Subject) -> Finding:
    """The accuracy that validation logs is the share of right classes."""
    course = _course(subject)
    names = [name for name in course.after if _is_accuracy(name)]
    if not names:
        raise Skip("validation logs no accuracy")
    right = _accuracies(subject, course)
    for name in names:
        logged = course.after[name]
        if all(min(abs(logged - one), abs(logged - 100 * one)) > 0.02 for one in right):
            return fail(
                f"{name} is {logged:.3f} on {COUNT} val batches, of which the network gets "
                f"{right[0]:.1%} right",
                "Compare argmax over the classes, dim 1, with labels of the same shape, divide by "
                "the number of samples, and reset a metric that counts over epochs.",
            )
    return passed(f"{names[0]} {course.after[names[0]]:.3f}")


def _is_accuracy(name: str) -> bool:
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return bool(words & {"acc", "accuracy"}) and not re.search(
        r"top|k\d|acc\w*\d|_\d", name.lower()
    )


def _accuracies(subject: Subject, course: Course) -> list[float]:
    """Accuracy of all samples, mean over classes, mean over batches."""
    hits, labels, means = [], [], []
    task = course.lesson.task.eval()
    pairs = [pair(seen.batch) for seen in course.given]
    inputs = as_forward_gets_them([images for images, _ in pairs], course.given)
    for images, (_, labels_of_batch) in zip(inputs, pairs, strict=True):
        with torch.no_grad():
            logits = subject.logits(task, images).float().cpu()
        hit, label = _hits(logits, labels_of_batch.cpu())
        hits.append(hit)
        labels.append(label)
        means.append(float(hit.float().mean()))
    hit, label = torch.cat(hits).float(), torch.cat(labels)
    per_class = [float(hit[label == one].mean()) for one in sorted(set(label.tolist()))]
    classes = subject.num_classes or len(per_class)
    found = [float(hit.mean()), statistics.fmean(per_class), statistics.fmean(means)]
    return [*found, sum(per_class) / classes]


def _hits(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return which samples are right, and their labels; ignored ones left out."""
    if logits.dim() == targets.dim() + 1 and logits.shape[1] > 1:
        preds = logits.argmax(1)
    elif logits.numel() == targets.numel() and bool(((targets == 0) | (targets == 1)).all()):
        # Whether it gives logits or probabilities only the task knows.
        edge = 0.5 if logits.min() >= 0 and logits.max() <= 1 else 0.0
        preds, targets = (logits.flatten() > edge).long(), targets.flatten().long()
    else:
        raise Skip(f"logits {tuple(logits.shape)} and targets {tuple(targets.shape)}")
    if targets.is_floating_point() or preds.shape != targets.shape:
        raise Skip("targets are no classes")
    valid = targets >= 0
    return (preds == targets)[valid], targets[valid]


@check("training", seconds=8)
def validation_uses_its_labels(subject: Subject) -> Finding:
    """What validation logs depends on the labels of the validation batches."""
    course = _course(subject)
    batches = subject.batches("val", COUNT)
    if not batches or torch.equal((labels := pair(batches[0])[1]), other_labels(labels)):
        raise Skip("all labels of a batch are the same")
    ours = {n: v for n, v in course.after.items() if re.search(r"acc|loss|error|f1", n.lower())}
    if not ours or course.shifted.keys() != course.after.keys():
        raise Skip("validation logs neither loss nor accuracy")
    still = [name for name, value in ours.items() if course.shifted[name] == value]
    if still and not _may_stay(subject, course, still) and trains_on_labels(subject):
        return fail(
            f"{', '.join(still)} stay the same, {ours[still[0]]:.3g}, when validation gets the "
            "labels of other classes",
            "Compute them in validation_step, from its own batch.",
        )
    return passed()


def _may_stay(subject: Subject, course: Course, names: list[str]) -> bool:
    """Whether these are accuracies of a network that is as often right with other labels."""
    if not all(_is_accuracy(name) or "f1" in name.lower() for name in names):
        return False
    return _accuracies(subject, course)[0] < 1.5 / (subject.num_classes or 2)


@check("training", seconds=8)
def validation_is_in_eval_mode(subject: Subject) -> Finding:
    """Dropout and BatchNorm are in evaluation mode during validation."""
    found = _course(subject).in_training
    if found:
        return fail(
            f"{', '.join(found[:3])} {'is' if len(found) == 1 else 'are'} in training mode during "
            "validation",
            "Remove train() from the validation; Lightning sets and restores the mode.",
        )
    return passed()


@check("training", seconds=8)
def logged_loss_is_the_loss(subject: Subject) -> Finding:
    """The training loss that is logged goes along with the one that is minimised."""
    lesson = _course(subject).lesson
    minimised = lesson.losses
    if not all(map(math.isfinite, minimised)):
        raise Skip("the loss is not finite")
    for name, values in lesson.history.items():
        if "loss" not in name.lower() or re.match(r"val|test", name.lower()):
            continue
        if len(values) != len(minimised) or len(values) < 10 or not all(map(math.isfinite, values)):
            continue
        spread = statistics.pstdev(minimised) / max(abs(statistics.fmean(minimised)), 1e-12)
        if spread < 0.02:
            raise Skip("the loss hardly changes in these steps")
        if statistics.pstdev(values) <= 1e-6 * abs(statistics.fmean(values)):
            return warn(
                f"{name} is {values[0]:.3g} in every step, while the loss goes "
                f"{minimised[0]:.3g} -> {minimised[-1]:.3g}",
                "Log what training_step returns.",
            )
        if statistics.correlation(values, minimised) < -0.5:
            return fail(
                f"{name} goes {values[0]:.3g} -> {values[-1]:.3g}, the minimised loss "
                f"{minimised[0]:.3g} -> {minimised[-1]:.3g}",
                "One of them has the wrong sign.",
            )
    return passed()
