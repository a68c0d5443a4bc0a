"""Parameters: registered, trained, in the optimizer."""

from collections import Counter
from collections.abc import Iterator

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from project.doctor import Finding, Subject, check, fail, passed, warn
from project.doctor.found import unregistered
from project.doctor.loop import Broken
from project.doctor.registry import Skip
from project.doctor.step import Steps, first_steps


@check("model")
def parameters_registered(subject: Subject) -> Iterator[Finding]:
    """Every layer and tensor that the task holds is registered as module, parameter or buffer."""
    task = subject.fresh_task()
    found = list(unregistered(task))
    lost = [(path, value) for path, value in found if _trainable(value)]
    try:
        steps: Steps | None = first_steps(subject)
    except (Broken, Skip):
        steps = None
    if lost:
        yield _lost(lost)
    elif steps and steps.leaves and steps.gradients:
        yield _nameless(steps.leaves)
    else:
        stays = [f"{path} ({_kind(value)})" for path, value in found if _stays(value)]
        stays += _used_tensors(subject, {path for path, _ in found})
        if stays:
            yield warn(
                f"{_first(stays)} is no buffer: on a GPU it stays on the CPU",
                "self.register_buffer(name, tensor); nn.ModuleList or ModuleDict for modules.",
            )


def _trainable(value: nn.Module | Tensor) -> bool:
    if isinstance(value, nn.Module):
        return any(parameter.requires_grad for parameter in value.parameters())
    return value.requires_grad and value.is_leaf


def _stays(value: nn.Module | Tensor) -> bool:
    """Whether a module has a state that would not move to the GPU with the task."""
    if not isinstance(value, nn.Module):
        return False
    state = [*value.parameters(), *value.buffers()]
    return bool(state or getattr(value, "_defaults", None))


def _kind(value: nn.Module | Tensor) -> str:
    return f"tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _first(names: list[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


def _lost(lost: list[tuple[str, nn.Module | Tensor]]) -> Finding:
    tensors = [t for _, v in lost for t in (v.parameters() if isinstance(v, nn.Module) else [v])]
    names = _first([f"{path} ({_kind(value)})" for path, value in lost])
    count = sum(tensor.numel() for tensor in tensors)
    return fail(
        f"no module registered {names}: {count:,} weights are neither trained, nor saved, nor "
        "moved to the GPU",
        "Hold layers in nn.ModuleList or nn.ModuleDict, tensors in nn.Parameter or "
        "nn.ParameterList.",
    )


def _nameless(leaves: list[Tensor]) -> Finding:
    shapes = _first([str(tuple(leaf.shape)) for leaf in leaves])
    return fail(
        f"the loss uses weights {shapes} that no module registered, such as those of a layer made "
        "within forward or outside of the task",
        "Make layers in __init__ and assign them to self.",
    )


def _used_tensors(subject: Subject, known: set[str]) -> list[str]:
    """Name plain tensors that the network or the loss computes with where they are."""
    used = subject.memo.get("first steps")
    if not isinstance(used, Steps):
        return []
    found = unregistered(used.task)
    return [
        f"{path} ({_kind(value)})"
        for path, value in found
        if isinstance(value, Tensor)
        and value.dim()
        and path in known
        and id(value) in used.tape.operands
    ]


@check("model")
def frozen_parameters(subject: Subject) -> Finding:
    """What is frozen looks as if it were meant: whole parts, and not the last layer."""
    task = subject.fresh_task()
    every = dict(task.named_parameters())
    frozen = [name for name, parameter in every.items() if not parameter.requires_grad]
    if every and len(frozen) == len(every):
        return fail(
            f"all {len(every)} parameters are frozen (requires_grad is False)",
            "Freeze the backbone before the new head is put in place.",
        )
    if not frozen:
        return passed()
    layers = _layers(task)
    half = [n for n, m in layers if len({p.requires_grad for p in m.parameters(False)}) == 2]
    if half:
        return warn(
            f"in {_first(half)} one of weight and bias is frozen, the other is trained",
            "Set requires_grad of the whole layer.",
        )
    return _order(subject, task, layers, frozen)


def _layers(task: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(n, m) for n, m in task.named_modules() if isinstance(m, nn.Linear | _ConvNd)]


def _order(
    subject: Subject,
    task: L.LightningModule,
    layers: list[tuple[str, nn.Module]],
    frozen: list[str],
) -> Finding:
    """Look at frozen layers in the order in which they are computed."""
    called: list[str] = []

    def note(name: str) -> torch.utils.hooks.RemovableHandle:
        return task.get_submodule(name).register_forward_hook(lambda *_: called.append(name))

    handles = [note(name) for name, _ in layers]
    with torch.no_grad():
        subject.logits(task.eval(), subject.pairs("train")[0][0][:2])
    for handle in handles:
        handle.remove()
    known = dict(layers)
    trained = [any(p.requires_grad for p in known[name].parameters()) for name in called]
    evidence = f"{len(frozen)} parameters are frozen, {frozen[0]} to {frozen[-1]}"
    if trained and not trained[-1]:
        return warn(
            f"the last layer, {called[-1]}, is frozen: {evidence}",
            "A frozen part is usually the backbone; unfreeze the head.",
        )
    first = trained.index(True) if True in trained else 0
    inner = [name for name, is_trained in zip(called, trained, strict=True) if not is_trained]
    island = [name for name in called[first:] if name in inner]
    if island and len(island) <= len(called) // 4 and len(island) == len(inner):
        return warn(
            f"{_first(island)} is frozen between layers that are trained",
            "If that is not meant, set its requires_grad to True.",
        )
    return passed(evidence)


@check("model")
def optimizer_parameters(subject: Subject) -> Finding:
    """Every parameter that is to be trained is in an optimizer, once, and it is the task's."""
    steps = first_steps(subject)
    if steps.cut:
        raise Skip("the loss has no graph, see graph-cut")
    groups = [group["params"] for one in steps.optimizers for group in one.param_groups]
    inside = [parameter for params in groups for parameter in params]
    if not inside:
        return warn("there is no optimizer", "Return one from configure_optimizers.")
    names = {id(parameter): name for name, parameter in steps.task.named_parameters()}
    foreign = [parameter for parameter in inside if id(parameter) not in names]
    missing = [n for n, p in steps.trainable.items() if id(p) not in set(map(id, inside))]
    leaves = set(map(id, steps.leaves))
    if foreign and missing and not any(id(p) in leaves for p in foreign):
        return fail(
            f"the optimizer holds {len(foreign)} parameters that are not the task's",
            "Make it in configure_optimizers, from self.parameters(), after all layers are there.",
        )
    counts = Counter(map(id, inside))
    twice = [names.get(key, "a parameter") for key, count in counts.items() if count > 1]
    if twice:
        several = len(steps.optimizers) > 1
        finding = warn if several else fail
        return finding(
            f"{_first(twice)} is in {'two optimizers' if several else 'the optimizer twice'}: "
            "it is moved twice a step",
            "List every parameter once; shared weights have one name only.",
        )
    if missing:
        return warn(
            f"{_first(missing)} is trained by no optimizer ({len(missing)} of "
            f"{len(steps.trainable)} parameters)",
            "Give it to the optimizer, or set its requires_grad to False.",
        )
    return passed(f"{len(inside)} parameters")
