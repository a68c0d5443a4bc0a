"""The loss: what goes into it, and how large it is before training."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.step import first_steps
from project.doctor.tape import LossCall

# What must not come between the last layer and a loss that has its own softmax or sigmoid.
BENDS = {
    "Softmax": "softmax",
    "Sigmoid": "sigmoid",
    "Relu": "ReLU",
    "Threshold": "ReLU",
    "Tanh": "tanh",
    "Gelu": "GELU",
    "Elu": "ELU",
    "LeakyRelu": "leaky ReLU",
    "Silu": "SiLU",
    "Hardtanh": "a clamp",
    "Clamp": "a clamp",
    "ClampMin": "a clamp",
    "Softplus": "softplus",
    "Hardsigmoid": "hard sigmoid",
}


@check("model", seconds=10)
def softmax_before_loss(subject: Subject) -> Finding:
    """The loss gets what it expects: logits, or log-probabilities, and not something bent."""
    calls = [call for call in first_steps(subject).tape.losses if call.own_input]
    if not calls:
        raise Skip("the loss is none of torch's loss functions")
    findings = [finding for call in calls if (finding := _judge(call)) is not None]
    failed = [finding for finding in findings if finding.status == "FAIL"]
    return (failed or findings or [passed(calls[0].call.where)])[0]


def _judge(call: LossCall) -> Finding | None:
    name, given = call.call.name, call.given.float()
    if not given.isfinite().all() or not given.numel():
        return None
    if name == "cross_entropy":
        return _cross_entropy(call, given)
    if name == "binary_cross_entropy_with_logits":
        return _bent(call)
    if name == "nll_loss" and given.dim() > 1 and not _log_probs(given):
        what = "probabilities" if _probs(given) else "no log-probabilities"
        return fail(
            f"{call.call.where} gets {what}",
            "F.cross_entropy takes logits; nll_loss needs log_softmax(dim=1).",
        )
    if name == "kl_div" and given.dim() > 1 and _probs(given):
        return fail(f"{call.call.where} gets probabilities", "Its first argument is log_softmax.")
    return None


def _cross_entropy(call: LossCall, given: Tensor) -> Finding | None:
    if given.dim() < 2:
        return None
    if _probs(given) and given.shape[1] > 1:
        return fail(
            f"{call.call.where} gets probabilities: softmax is applied twice",
            "Give it logits: remove the softmax, and apply it where you predict.",
        )
    if call.target.is_floating_point() and call.target.shape == given.shape:
        sums = call.target.sum(1)
        if not torch.allclose(sums, torch.ones_like(sums), atol=1e-2):
            return warn(
                f"{call.call.where} gets targets whose sums over the classes are "
                f"{float(sums.min()):.3g} to {float(sums.max()):.3g}",
                "Probabilities of classes sum to 1; for several labels an image use "
                "binary_cross_entropy_with_logits.",
            )
    if "LogSoftmax" in call.made_by or (_log_probs(given) and given.shape[1] > 1):
        return warn(
            f"{call.call.where} gets log-probabilities: log_softmax is applied twice",
            "Give it logits, or use nll_loss.",
        )
    return _bent(call)


def _bent(call: LossCall) -> Finding | None:
    bend = next((BENDS[name] for name in call.made_by if name in BENDS), None)
    if bend is not None:
        finding = fail if bend in ("softmax", "sigmoid", "ReLU", "tanh") else warn
        return finding(
            f"{call.call.where} gets logits that went through {bend}",
            "Remove it: the loss takes the last layer's output as it is.",
        )
    if any("Dropout" in name for name in call.made_by):
        return warn(
            f"{call.call.where} gets logits that went through dropout",
            "Drop features before the last layer, not logits.",
        )
    return None


def _probs(given: Tensor) -> bool:
    sums = given.sum(1)
    return bool((given >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)


def _log_probs(given: Tensor) -> bool:
    total = given.logsumexp(1)
    return bool((given <= 0).all()) and torch.allclose(total, torch.zeros_like(total), atol=1e-2)


@check("model", seconds=10)
def loss_broadcasts(subject: Subject) -> Finding:
    """Output and target of the loss have the same shape; nothing grows to (N, N)."""
    tape = first_steps(subject).tape
    for call in tape.losses:
        name, given, target = call.call.name, call.given, call.target
        if name in ("cross_entropy", "nll_loss") or given.shape == target.shape:
            continue
        if given.dim() and target.dim():
            return fail(
                f"{call.call.where} gets {tuple(given.shape)} and {tuple(target.shape)}",
                "Make them alike: output.squeeze(1), or target.unsqueeze(1).",
            )
    if tape.broadcasts:
        call_ = tape.broadcasts[0]
        return fail(
            f"{call_.where} combines {call_.about}: every sample with every other",
            "Make them alike: output.squeeze(1), or target.unsqueeze(1).",
        )
    return passed()


@check("model", seconds=10)
def initial_loss(subject: Subject) -> Finding:
    """Before training, cross-entropy is about that of guessing, ln K."""
    images, labels = subject.pairs("train")[0]
    if labels.is_floating_point() or labels.dim() != 1:
        raise Skip("targets are no classes")
    given = [c for c in first_steps(subject).tape.losses if c.call.name == "cross_entropy"]
    if given and given[0].given.dim() == 2 and given[0].target.dim() == 1:
        logits, labels = given[0].given.float(), given[0].target
    else:
        task = subject.fresh_task().train()
        with torch.no_grad():
            logits = subject.logits(task if len(images) > 1 else task.eval(), images).float()
    if len(logits) != len(labels):
        raise Skip("the output has no row for every sample, see output-shape")
    keep = (labels >= 0) & (labels < logits.shape[-1])
    if logits.dim() != 2 or logits.shape[1] < 2 or not keep.any() or _probs(logits):
        raise Skip(f"the output {tuple(logits.shape)} is no row of logits")
    loss = float(F.cross_entropy(logits[keep], labels[keep]))
    guess = math.log(logits.shape[1])
    evidence = f"{loss:.3g} with random weights, guessing has ln {logits.shape[1]} = {guess:.3g}"
    if loss > 3 * guess + 5:
        where = f"; logits have a deviation of {float(logits.std()):.3g}"
        return (fail if loss > 20 * guess + 20 else warn)(
            evidence + where,
            "Normalise the images, and initialise the last layer with small weights.",
        )
    return passed(evidence)


@check("model")
def output_bias(subject: Subject) -> Finding:
    """The last layer's bias does not already decide for a class that is not most of the data."""
    images, labels = subject.pairs("train")[0]
    for _, more in subject.pairs("train", 4)[1:]:
        labels = torch.cat([labels, more]) if labels.dim() == more.dim() == 1 else labels
    if labels.is_floating_point() or labels.dim() != 1:
        raise Skip("targets are no classes")
    task, called = subject.fresh_task().eval(), list[nn.Linear]()
    for layer in task.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda module, args, out: called.append(module))
    with torch.no_grad():
        subject.logits(task, images[:2])
    bias = called[-1].bias if called else None
    if bias is None or len(bias) < 2 or int(labels.max()) >= len(bias):
        raise Skip("the last layer is none with a bias for each class")
    share, top = (float(x) for x in bias.detach().float().softmax(0).max(0))
    frequency = float((labels == int(top)).float().mean())
    told = f"the bias alone says class {int(top)} in {share:.0%}, the labels in {frequency:.0%}"
    if share > 0.9 and share > 2 * frequency:
        return warn(told, "Begin with a bias of 0, or of the logarithms of the class frequencies.")
    return passed(told)
