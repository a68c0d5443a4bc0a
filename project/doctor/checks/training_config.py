"""Settings of trainer and optimizer against what is seen in a short training."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.training_runs import batch_size, real_loop, rehearsed
from project.doctor.loop import of_the_user

NORMS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
FP16_MAX = 65504.0


@check("training")
def nothing_is_left_limited(subject: Subject) -> Finding:
    """No switch for trying things out is still on."""
    said, left = subject.trainer_settings, []
    if not said:
        raise Skip("no settings")
    if said.get("fast_dev_run"):
        left.append(f"fast_dev_run {said['fast_dev_run']}")
    if said.get("overfit_batches"):
        left.append(f"overfit_batches {said['overfit_batches']}")
    for split in ("train", "val"):
        limit = said.get(f"limit_{split}_batches")
        if limit is not None and not (isinstance(limit, float) and limit == 1.0):
            left.append(f"limit_{split}_batches {limit}")
    if said.get("detect_anomaly"):
        left.append("detect_anomaly true")
    if left:
        return warn(
            f"trainer: {', '.join(left)}", "Made for trying out: remove it for the real run."
        )
    return passed()


@check("training")
def clipping_fits_the_gradients(subject: Subject) -> Finding:
    """Gradient clipping cuts peaks, not every update to a fraction."""
    limit, kind = (subject.trainer_settings.get(f"gradient_clip_{k}") for k in ("val", "algorithm"))
    lesson = real_loop(subject)
    if limit is None or not lesson.gradients:
        raise Skip("gradients are not clipped by the trainer")
    if limit < 0:
        return warn(f"gradient_clip_val is {limit}: nothing is clipped", "Set it above 0.")
    if limit == 0:
        return passed("0 clips nothing")
    sizes = sorted(_size(lesson.task, step, kind == "value") for step in lesson.gradients)
    typical = sizes[len(sizes) // 2]
    said = f"typical {'element' if kind == 'value' else 'norm'} {typical:.2g}, clipped at {limit}"
    if typical > 50 * limit:
        return warn(
            f"nearly every gradient is cut: {said}",
            f"Clip at about {2 * typical:.1g}: such a cut changes what the learning rate means.",
        )
    return passed(said)


def _size(task: nn.Module, norms: dict[str, float], elements: bool) -> float:
    """Norm of the whole gradient, or the root mean square of its elements."""
    square = sum(norm**2 for norm in norms.values())
    count = sum(p.numel() for n, p in task.named_parameters() if n in norms) if elements else 1
    return math.sqrt(square / max(1, count))


@check("training")
def weight_decay_fits(subject: Subject) -> Iterator[Finding]:
    """Weight decay neither melts the weights nor falls on normalisation layers by far."""
    run = rehearsed(subject)
    scales = {
        id(p)
        for module in run.module.modules()
        if isinstance(module, NORMS)
        for p in module.parameters(recurse=False)
    }
    on_norms = 0.0
    for optimizer, group, peak in zip(*_groups(run.optimizers), run.peaks, strict=False):
        decay = float(group.get("weight_decay") or 0.0)
        decoupled = group.get("decoupled_weight_decay") or "AdamW" in type(optimizer).__name__
        # Decoupled: the share of a weight that is lost in a step; else part of the gradient, where
        # Adam and its like scale it up to a full step.
        shrink = decay * peak if decoupled or "momentum" in group else decay / 100
        if any(id(parameter) in scales for parameter in group["params"]):
            on_norms = max(on_norms, decay)
        # A usual decay takes much only where the learning rate is far too high.
        if shrink >= 3e-3 and decay > (0.1 if decoupled else 1e-3):
            yield (fail if shrink >= 1e-2 else warn)(
                f"{type(optimizer).__name__}: weight_decay {decay:g} at lr {peak:.3g} takes "
                f"{shrink:.1%} off every weight in every step",
                "Usual are 0.01 to 0.1 for AdamW and 1e-4 to 1e-3 for SGD and Adam.",
            )
            return
    if on_norms >= 0.1:
        yield warn(
            f"weight_decay {on_norms:g} also acts on the scales of normalisation layers",
            "Put them and the biases into a parameter group with weight_decay 0.",
        )


def _groups(optimizers: list[Any]) -> tuple[list[Any], list[Any]]:
    pairs = [(one, group) for one in optimizers for group in one.param_groups]
    return [one for one, _ in pairs], [group for _, group in pairs]


@check("training")
def accumulation_fits(subject: Subject) -> Iterator[Finding]:
    """Accumulated batches are large enough for BatchNorm, and fewer than an epoch has."""
    accumulate = int(subject.trainer_settings.get("accumulate_grad_batches") or 1)
    if accumulate <= 1:
        raise Skip("gradients are not accumulated")
    [batch] = subject.batches("train", 1) or [None]
    size, task = batch_size(batch), subject.fresh_task()
    norms = [name for name, m in task.named_modules() if isinstance(m, _BatchNorm) and m.training]
    if norms and size < 16:
        yield warn(
            f"{accumulate} batches of {size} are accumulated, but BatchNorm ({norms[0]}) takes its "
            f"statistics from {size} samples each",
            "Use larger batches and accumulate fewer, or GroupNorm, which needs no batch.",
        )
    per_epoch = rehearsed(subject).module.trainer.num_training_batches
    if accumulate > per_epoch:
        yield warn(
            f"accumulate_grad_batches is {accumulate}, an epoch has {per_epoch} batches",
            "The optimizer steps once an epoch: accumulate fewer.",
        )


@check("training")
def precision_fits(subject: Subject) -> Iterator[Finding]:
    """The numbers of a training fit into the precision that is asked for."""
    precision = str(subject.trainer_settings.get("precision") or "32-true")
    if not precision.startswith(("16", "bf16")):
        raise Skip(f"precision is {precision}")
    if precision.startswith("bf16"):
        yield from _bfloat16(precision)
        return
    if not torch.cuda.is_available() or subject.trainer_settings.get("accelerator") == "cpu":
        yield warn(
            f"precision is {precision}, and a CPU trains in bf16-mixed instead",
            "Set trainer.precision to bf16-mixed or 32-true, or train on a GPU.",
        )
    size, where = _largest(subject)
    if size > FP16_MAX / 4:
        yield (fail if size > FP16_MAX else warn)(
            f"{where or 'the network'} gives values up to {size:.3g}; float16 ends at 65504",
            "Use bf16-mixed, which has the range of float32, or scale inputs and logits down.",
        )
    if precision in ("16", "16-true"):
        yield warn(
            "with 16-true small gradients become 0 and Adam's eps 1e-8 as well",
            "Use 16-mixed or bf16-mixed.",
        )


def _bfloat16(precision: str) -> Iterator[Finding]:
    if precision == "bf16-true":
        yield warn(
            "with bf16-true weights have 8 bits: a step of less than 1/256 of one is lost",
            "Use bf16-mixed, which keeps them in float32.",
        )
    if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 8:
        yield warn(
            f"{torch.cuda.get_device_name()} computes bf16 in software, slower than float32",
            "Use 16-mixed on this GPU.",
        )


def _largest(subject: Subject) -> tuple[float, str]:
    """Return the largest value that a module gives on a batch, and its name."""
    task, largest = subject.fresh_task().float(), (0.0, "")

    def look(name: str, output: Any) -> None:  # noqa: ANN401
        nonlocal largest
        if isinstance(output, torch.Tensor) and output.is_floating_point() and output.numel():
            largest = max(largest, (float(output.detach().abs().max()), name))

    for name, module in task.named_modules():
        module.register_forward_hook(lambda m, i, output, name=name: look(name, output))
    for images, _ in subject.pairs("train", 2):
        with torch.no_grad(), of_the_user():
            look("", subject.logits(task, images))
    return largest


@check("training")
def ddp_uses_all_parameters(subject: Subject) -> Finding:
    """Under DDP every parameter that is to be trained gets a gradient."""
    strategy = subject.trainer_settings.get("strategy")
    name = strategy.get("class_path", "") if isinstance(strategy, dict) else str(strategy or "")
    given = (strategy.get("init_args") or {}) if isinstance(strategy, dict) else {}
    if not name.lower().rsplit(".", 1)[-1].startswith("ddp"):
        raise Skip("the strategy is not DDP")
    if "find_unused_parameters_true" in name or given.get("find_unused_parameters"):
        return passed("it looks for unused parameters")
    lesson = real_loop(subject)
    trained = [n for n, p in lesson.task.named_parameters() if p.requires_grad]
    unused = [n for n in trained if lesson.gradients and n not in lesson.gradients[0]]
    if unused:
        return fail(
            f"{', '.join(unused[:3])} ({len(unused)} of {len(trained)} parameters) get no "
            "gradient: DDP stops in the second step",
            "Remove or freeze them, or set strategy to ddp_find_unused_parameters_true.",
        )
    return passed(f"{len(trained)} parameters")
