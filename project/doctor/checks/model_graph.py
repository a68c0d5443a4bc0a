"""Gradients: whether they arrive, how large they are."""

import math
from collections.abc import Iterable

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.step import Steps, first_steps
from project.doctor.tape import Call


@check("model", seconds=10)
def graph_cut(subject: Subject) -> Finding:
    """The gradient of the loss reaches every layer that is computed."""
    steps = first_steps(subject)
    if not steps.trainable:
        raise Skip("nothing is to be trained, see frozen-parameters")
    missing = [name for name in steps.trainable if name not in steps.gradients]
    computed = [name for name in missing if _owner(name) in steps.tape.called or not _owner(name)]
    cut = steps.cut or len(missing) == len(steps.trainable)
    if cut:
        return fail(
            f"no gradient reaches the network{_by(steps)}",
            "Compute the loss from the network's output with functions of torch alone.",
        )
    if not computed:
        return passed()
    cause = _origin(steps)
    parts = ", ".join(dict.fromkeys(_owner(name) or name for name in computed[:3]))
    evidence = f"no gradient reaches {len(computed)} parameters, those of {parts}{_by(steps)}"
    advice = "Remove what cuts the graph; if it is meant, set requires_grad to False there."
    meant = cause is None or cause.name in ("detach", "no_grad")
    return (warn if meant else fail)(evidence, advice)


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _origin(steps: Steps) -> Call | None:
    """Return the first call that cut what the loss is made of."""
    known = [call for call in (*steps.tape.cuts, *steps.tape.numbers) if call in steps.origins]
    if not known and not steps.gradients:
        known = steps.tape.lost[-1:]
    chosen = known or [*steps.tape.numbers, *steps.tape.cuts]
    return chosen[0] if chosen else None


def _by(steps: Steps) -> str:
    cause = _origin(steps)
    return f": it ends at {cause.where}" if cause else ""


@check("model", seconds=10)
def parameters_used(subject: Subject) -> Finding:
    """Every trained layer takes part in the training step, with a gradient that is not zero."""
    steps = first_steps(subject)
    if steps.cut:
        raise Skip("the loss has no graph, see graph-cut")
    missing = [name for name in steps.trainable if name not in steps.gradients]
    unused = [name for name in missing if _owner(name) and _owner(name) not in steps.tape.called]
    if unused and len(missing) < len(steps.trainable):
        layers = list(dict.fromkeys(map(_owner, unused)))
        return warn(
            f"{', '.join(layers[:3])} is never called in a training step "
            f"({len(unused)} parameters without a gradient)",
            "Use the layer in forward or remove it; under DDP it stops the run.",
        )
    zero = [name for name, size in steps.gradients.items() if size == 0.0]
    if zero:
        flat = f": {steps.tape.flat[0].where} has no slope" if steps.tape.flat else ""
        return warn(
            f"the gradient of {', '.join(zero[:3])} is exactly zero in {len(steps.losses)} steps "
            f"({len(zero)} parameters){flat}",
            "Look at what follows: a dead ReLU, a weight of zero, or a function that is constant.",
        )
    return passed(f"{len(steps.gradients)} parameters")


@check("model", seconds=10)
def gradient_by_layer(subject: Subject) -> Finding:
    """Gradients neither vanish nor explode from the last layer to the first."""
    steps = first_steps(subject)
    weights = {n: p for n, p in steps.trainable.items() if p.dim() > 1 and n in steps.gradients}
    sizes = {name: steps.gradients[name] for name in weights if steps.gradients[name] != 0.0}
    if any(not math.isfinite(size) for size in sizes.values()):
        name = next(name for name, size in sizes.items() if not math.isfinite(size))
        return fail(f"the gradient of {name} is not finite", "See output-finite; lower the scale.")
    if len(sizes) < 3:
        raise Skip(f"there are only {len(sizes)} weights")
    names = _in_order(steps, sizes)
    early, late = max(sizes[n] for n in names[:2]), max(sizes[n] for n in names[2:])
    inner = max((sizes[n] for n in names[2:-1]), default=late)
    evidence = f"RMS {sizes[names[0]]:.1e} in {names[0]}, {sizes[names[-1]]:.1e} in {names[-1]}"
    if early < 1e-4 * inner or (len(names) > 4 and early < 1e-6 * late):
        return warn(
            f"gradients vanish on the way to the first layer: {evidence}",
            "ReLU instead of sigmoid or tanh, normalisation, skip connections, He initialisation.",
        )
    total = math.sqrt(sum(sizes[n] ** 2 * weights[n].numel() for n in names))
    if total > 1e4:
        return warn(
            f"gradients explode: their norm is {total:.1e}; {evidence}",
            "Smaller initial weights, normalisation, inputs of deviation 1; or clip.",
        )
    return passed(evidence)


def _in_order(steps: Steps, names: Iterable[str]) -> list[str]:
    """Sort parameters by when their layers are called."""
    order = {name: index for index, name in enumerate(steps.tape.called)}
    return sorted(names, key=lambda name: order.get(_owner(name), len(order)))
