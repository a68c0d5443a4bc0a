"""Whether training learns at all."""

import contextlib
import math
import statistics

import torch
from torch import Tensor

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.training_labels import trains_on_labels
from project.doctor.checks.training_runs import (
    FEW,
    AtRate,
    batch_size,
    each,
    loss_of,
    mean,
    real_loop,
    rehearsed,
)
from project.doctor.given import forward_inputs
from project.doctor.loop import Broken, Lesson
from project.doctor.structures import pair

STEPS = 60


@check("training", seconds=8)
def loss_falls(subject: Subject) -> Finding:
    """The loss falls within 30 steps of the real loop."""
    lesson = real_loop(subject)
    losses = lesson.losses
    wrong = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if wrong is not None:
        return fail(
            f"the loss is {losses[wrong]} at step {wrong}",
            "Look for log or division of 0 and for a learning rate far too high.",
        )
    if len(losses) < 10:
        raise Skip(f"only {len(losses)} losses in {lesson.seconds:.0f} s")
    if len(lesson.trainer.optimizers) > 1:
        raise Skip("several optimizers: their losses need not fall")
    third = len(losses) // 3
    first, last = losses[:third], losses[-third:]
    noise = math.hypot(statistics.pstdev(first), statistics.pstdev(last)) / math.sqrt(third)
    said = f"loss {mean(first):.3g} in the first {third} steps, {mean(last):.3g} in the last"
    if mean(last) < mean(first) - 2 * noise - 1e-4 * abs(mean(first)):
        return passed(said)
    # Batches differ: look at the same ones before and after, then at the peak of the schedule.
    batches = subject.batches("train", 4)
    before, after = loss_of(subject, batches), loss_of(subject, batches, lesson.task)
    if after < before - 1e-3 * abs(before):
        return passed(f"loss of the same batches {before:.3g} -> {after:.3g}")
    if max(map(max, lesson.lrs), default=0) < 0.1 * max(rehearsed(subject).peaks, default=0):
        at_peak = [AtRate(subject, 1, warmup=10)]
        later = subject.train(batches=batches, callbacks=at_peak, limit_val_batches=0).losses
        if later and mean(later[-4:]) < before:
            return passed(f"in the warm-up not yet; at the peak {before:.3g} -> {later[-1]:.3g}")
    if subject.trained:
        raise Skip(f"{said}: the weights are trained, their loss need not fall any more")
    return fail(
        f"{said}; of the same batches {before:.3g} before and {after:.3g} after",
        "Check the sign of the loss, what the optimizer holds, and the learning rate.",
    )


@check("training", seconds=8)
def one_batch_overfits(subject: Subject) -> Finding:
    """The network learns a few samples by heart."""
    whole = subject.batches("train", 1)
    if not whole:
        raise Skip("the train split has no batch")
    few = each(whole[0], lambda rows: rows[:FEW])
    count = min(FEW, batch_size(whole[0]))
    own = _memorise(subject, few, None)
    best, rate = own, "the task's optimizer"
    if len(own[0].trainer.optimizers) > 1:
        raise Skip("several optimizers: their losses need not fall")
    for lr in (3e-3, 3e-2):
        if _learned(best):
            return passed(f"{count} samples, {rate}: {best[3]}")
        if not own[0].task.automatic_optimization:
            break
        tried = _memorise(subject, few, lr)
        if (tried[1], tried[2]) < (best[1], best[2]):
            best, rate = tried, f"AdamW at {lr:g}"
    lesson, wrong, _, said = best
    if _learned(best):
        return passed(f"{count} samples, {rate}: {said}")
    if lesson.ended_early or len(lesson.losses) < STEPS:
        raise Skip(f"only {len(lesson.losses)} steps in the time of the check")
    said = f"{count} training samples cannot be learned by heart in {STEPS} steps: {said}"
    if wrong < 0.1:
        if not _squashed(subject, lesson, few):
            return passed(said)
        return warn(
            f"{said}; the outputs end at 1",
            "The loss wants logits: remove the softmax, sigmoid or tanh before it.",
        )
    if wrong > 0.5 and lesson.losses[-1] < lesson.losses[0] - 0.5 * abs(lesson.losses[0]):
        advice = (
            "The loss falls and the answers get worse: look for its sign, and for what it is of."
        )
        return fail(said, advice)
    frozen = any(not parameter.requires_grad for parameter in lesson.task.parameters())
    return (warn if frozen else fail)(
        said,
        "Look for a layer that cuts the gradient or drops the input, for frozen weights, and "
        "whether the loss is computed from the network's output and the right targets.",
    )


def _memorise(subject: Subject, few: object, lr: float | None) -> tuple[Lesson, float, float, str]:
    """Train on a few samples alone.

    Args:
        subject: What is looked at.
        few: The samples.
        lr: Of an AdamW in place of the task's optimizer.

    Returns:
        The training, the share of samples that are still wrong, what is left of the loss, and both
        in words.
    """
    task = subject.fresh_task()
    if lr is not None:
        weights = [p for p in task.parameters() if p.requires_grad]
        task.configure_optimizers = lambda: torch.optim.AdamW(weights, lr=lr)  # type: ignore[method-assign]
    lesson = subject.train(
        task,
        steps=STEPS,
        batches=[few],
        callbacks=[AtRate(subject, 1)] if lr is None else [],
        accumulate_grad_batches=1,
        limit_val_batches=0,
    )
    if not lesson.losses:
        raise Skip("training gives no loss")
    first, last = lesson.losses[0], mean(lesson.losses[-3:])
    left = last / first if first > 0 else float(last >= first)
    said = f"loss {first:.3g} -> {last:.3g}"
    if not math.isfinite(last):
        return lesson, 1.0, math.inf, said
    try:
        given = forward_inputs(subject, [few])[0]
        wrong = _wrong(subject, lesson, (given, pair(few)[1]))
        if wrong and not torch.equal(given, pair(few)[0]):  # the step may have mixed them
            with contextlib.suppress(Broken):
                wrong = min(wrong, _wrong(subject, lesson, pair(few)))
    except Skip:
        return lesson, 0.0 if left < 0.5 else 1.0, left, said
    return lesson, wrong, left, f"{said}, {1 - wrong:.0%} right"


def _learned(attempt: tuple[Lesson, float, float, str]) -> bool:
    lesson, wrong, left, _ = attempt
    return (wrong < 0.1 and left < 0.5) or (lesson.losses[0] > 0 and abs(left) < 0.05)


def _squashed(subject: Subject, lesson: Lesson, few: object) -> bool:
    """Whether the outputs of a trained network go up to 1, but not beyond."""
    with torch.no_grad():
        size = subject.logits(lesson.task.eval(), forward_inputs(subject, [few])[0]).abs().max()
    return 0.9 < float(size) <= 1.0


def _wrong(subject: Subject, lesson: Lesson, few: tuple[Tensor, Tensor]) -> float:
    """The share of samples whose class the network does not name, in either mode."""
    if not trains_on_labels(subject):
        raise Skip("training does not go by the labels")
    images, targets = few
    shares = []
    for mode in (True, False):
        lesson.task.train(mode)
        with torch.no_grad():
            logits = subject.logits(lesson.task, images).float().cpu()
        if subject.num_classes not in (
            None,
            logits.shape[-1],
            logits.shape[min(1, logits.dim() - 1)],
        ):
            raise Skip("the outputs are no classes")
        shares.append(_share(logits, targets))
    return min(shares)


def _share(logits: Tensor, targets: Tensor) -> float:
    if logits.dim() < 2 or logits.shape[1] < 2:
        raise Skip("no classes")
    if targets.is_floating_point() and targets.shape == logits.shape:
        # Of mixed images: what the logits' distribution lacks of the targets', in shares of ln K.
        found = -(targets * logits.log_softmax(1)).sum(1)
        floor = torch.special.entr(targets).sum(1)
        return float((found - floor).mean() / math.log(logits.shape[1]))
    if targets.is_floating_point() or targets.shape != (len(logits), *logits.shape[2:]):
        raise Skip("targets are no classes")
    valid = targets >= 0
    return float((logits.argmax(1) != targets)[valid].float().mean()) if valid.any() else 0.0
