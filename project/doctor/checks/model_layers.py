"""What activations look like before training."""

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.activations import BOUNDED, Activations

SAMPLES = 128


@check("model")
def activations_alive(subject: Subject) -> Finding:
    """Units fire for some images, and sigmoid and tanh are not at their limits."""
    images, _ = subject.pairs("train")[0]
    for more, _ in subject.pairs("train", 4)[1:]:
        if more.shape[1:] == images.shape[1:] and len(images) < SAMPLES:
            images = torch.cat([images, more])
    images = images[:SAMPLES]
    if len(images) < 16:
        raise Skip(f"there are only {len(images)} samples")
    task = subject.fresh_task().train()
    activations = Activations(task)
    with activations, torch.no_grad():
        subject.logits(task, images)
    activations.close()
    if not activations.found:
        raise Skip("no ReLU, sigmoid or tanh was called")
    return _worst(activations.found, len(images))


def _worst(found: list[tuple[str, str, float]], samples: int) -> Finding:
    dead = max((f for f in found if f[1] not in BOUNDED), key=lambda f: f[2], default=None)
    full = max((f for f in found if f[1] in BOUNDED), key=lambda f: f[2], default=None)
    if dead and dead[2] > 0.6:
        finding = fail if dead[2] > 0.95 else warn
        return finding(
            f"{dead[2]:.0%} of the units of {dead[0]} ({dead[1]}) are 0 for all {samples} images",
            "Dead ReLUs: look at biases, initial weights and the range of the images.",
        )
    if full and full[2] > 0.5:
        return warn(
            f"{full[2]:.0%} of the values of {full[0]} ({full[1]}) are at its limits",
            "Smaller initial weights, or normalised images.",
        )
    worst = [f"{where} {share:.0%}" for where, _, share in filter(None, (dead, full))]
    return passed(", ".join(worst))


@check("model")
def units_differ(subject: Subject) -> Finding:
    """The units of a layer begin with different weights."""
    for name, layer in subject.fresh_task().named_modules():
        if not isinstance(layer, nn.Linear | _ConvNd) or len(layer.weight) < 2:
            continue
        weight = layer.weight.detach().flatten(1)
        if bool((weight == weight[:1]).all()) and bool((weight != 0).any()):
            return fail(
                f"all {len(weight)} units of {name} have the same weights",
                "They stay alike for ever: draw initial weights at random, not as constants.",
            )
    return passed()
