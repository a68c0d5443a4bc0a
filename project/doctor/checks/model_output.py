"""What the network gives: shape, numbers, type."""

import torch
from torch import Tensor

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.training_labels import trains_on_labels
from project.doctor.step import first_steps, settled_task


@check("model")
def output_shape(subject: Subject) -> Finding:
    """The network gives one row a sample and one logit for every class."""
    images, labels = subject.pairs("train")[0]
    shape = tuple(subject.logits(subject.fresh_task().eval(), images).shape)
    if len(images) > 1 and (not shape or shape[0] != len(images)):
        return fail(
            f"{len(images)} samples go in, the output is {shape}",
            "Keep the first dimension: x.flatten(1) instead of view(-1, ...) or squeeze().",
        )
    if labels.is_floating_point() or labels.dim() != 1:
        return passed(f"output {shape}, targets {tuple(labels.shape)} {labels.dtype}")
    return _against_classes(subject, shape, labels)


def _against_classes(subject: Subject, shape: tuple[int, ...], labels: Tensor) -> Finding:
    classes = subject.num_classes
    known = classes or int(labels.max()) + 1
    outputs = shape[1] if len(shape) > 1 else 1
    if outputs == 1 and known <= 2:
        return passed(f"output {shape}: one logit for two classes")
    advice = f"Give the last layer {known} outputs."
    if outputs < known and not trains_on_labels(subject):
        return passed(f"output {shape}; training does not depend on the labels")
    if outputs < known:
        said = f"{known} classes" if classes else f"a label of {known - 1}"
        return fail(f"the output is {shape} for {said}", advice)
    if classes and outputs > classes:
        return warn(f"the output is {shape} for {classes} classes", advice)
    if len(shape) > 2 and shape[2:].count(1) != len(shape) - 2:
        return warn(f"the output is {shape} for targets {tuple(labels.shape)}", "Pool it.")
    return passed(f"output {shape}")


@check("model")
def output_finite(subject: Subject) -> Finding:
    """Outputs and loss are finite, also for images without contrast."""
    images, _ = subject.pairs("train")[0]
    for task in (subject.fresh_task().train(), settled_task(subject).eval()):
        mode = "training" if task.training else "eval"
        if len(images) > 1 or not task.training:
            found = _not_finite(subject, task, images)
            if found:
                return fail(f"in {mode} mode {found}", "Look there: a log, a root, a division?")
    losses = first_steps(subject).losses
    if any(loss != loss or abs(loss) == float("inf") for loss in losses):
        return fail(f"the first losses are {losses}", "Look for a log(0) or a division by 0.")
    if images.is_floating_point() and images.isfinite().all():
        for name, value in (("zeros", 0.0), ("one constant", 0.7)):
            found = _not_finite(subject, settled_task(subject).eval(), images * 0 + value)
            if found:
                return warn(
                    f"for an image of {name} {found}",
                    "Add a small number to the deviation or norm that is divided by.",
                )
    return passed()


def _not_finite(subject: Subject, task: torch.nn.Module, images: Tensor) -> str:
    """Say what is not finite, and in which module it begins."""
    where: list[str] = []

    def look(name: str) -> torch.utils.hooks.RemovableHandle:
        def hook(module: object, args: object, out: object) -> None:
            if isinstance(out, Tensor) and out.is_floating_point() and not out.isfinite().all():
                where.append(name or type(module).__name__)

        return task.get_submodule(name).register_forward_hook(hook)

    handles = [
        look(name)
        for name, module in task.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)
    ]
    with torch.no_grad():
        out = subject.logits(task, images)  # type: ignore[arg-type]
    for handle in handles:
        handle.remove()
    if out.isfinite().all():
        return ""
    count = int((~out.isfinite()).sum())
    place = f", first in {where[0]}" if where else ""
    return f"{count} of {out.numel()} outputs are NaN or Inf{place}"


@check("model")
def output_dtype(subject: Subject) -> Finding:
    """Weights and outputs are float32, unless another precision is asked for."""
    asked = str(subject.trainer_settings.get("precision") or "32")
    if not asked.startswith("32"):
        raise Skip(f"precision {asked} is asked for")
    task = subject.fresh_task()
    usual = torch.get_default_dtype()
    odd = [(n, p.dtype) for n, p in task.named_parameters() if _is_odd(p, usual)]
    if odd:
        return warn(
            f"{len(odd)} parameters are no {usual}, the first is {odd[0][0]}, {odd[0][1]}",
            "Build the network in float32; choose the precision with --trainer.precision.",
        )
    images, _ = subject.pairs("train")[0]
    with torch.no_grad():
        dtype = subject.logits(task.eval(), images[:4]).dtype
    if dtype != usual:
        return warn(
            f"the output is {dtype}: something in forward is cast, or an array of NumPy came in",
            "Keep float32 throughout; NumPy's arrays are float64 until .float().",
        )
    return passed()


def _is_odd(tensor: Tensor, usual: torch.dtype) -> bool:
    return tensor.is_floating_point() and tensor.dtype != usual
