"""Whether the output depends on the input, on all of it, and on where it is."""

import lightning as L
import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.forwards import alike, traced
from project.doctor.loop import of_the_user
from project.doctor.step import MOST, settled_task
from project.doctor.tape import Tape


def _images(subject: Subject) -> Tensor:
    images = subject.pairs("train")[0][0][:MOST]
    if len(images) < 2 or not images.is_floating_point():
        raise Skip("inputs are no float tensors of two samples or more")
    if alike(images[:-1], images[1:]):
        raise Skip("all inputs of the batch are the same")
    return images


@check("model")
def depends_on_input(subject: Subject) -> Finding:
    """Different inputs give different outputs."""
    images, task = _images(subject), settled_task(subject).eval()
    out, trace = traced(task, lambda: subject.logits(task, images))
    if out.dim() == 0 or len(out) != len(images) or not out.isfinite().all():
        raise Skip("the output has no finite row for every sample")
    spread = float((out - out[:1]).abs().max())
    size = float(out.abs().max())
    if spread > 1e-6 * size and spread > 0:
        return _sees_values(subject, task, images, out)
    black, _ = traced(task, lambda: subject.logits(task, images * 0))
    if not _same_in_training(subject, images):
        return passed("hardly in eval mode, whose statistics are still those of the start")
    name = next((n for n, i, o in trace if o is not None and i is not None and _dead(i, o)), "")
    if not alike(black, out, tolerance=1e-6):
        return passed("the output depends on the batch alone, see samples-independent")
    where = f"; it becomes constant in {name}" if name else ""
    return fail(
        f"{len(images)} different inputs and zeros all give the same output{where}",
        "Is the input used, not overwritten, multiplied by zero or cast to integers?",
    )


def _same_in_training(subject: Subject, images: Tensor) -> bool:
    outs = []
    for given in (images, images * 0):
        torch.manual_seed(0)
        with torch.no_grad():
            outs.append(subject.logits(settled_task(subject).train(), given))
    return alike(outs[0], outs[1], tolerance=1e-6)


def _dead(inside: Tensor, outside: Tensor) -> bool:
    """Whether a module makes constants of different samples."""
    if min(inside.dim(), outside.dim()) < 1 or min(len(inside), len(outside)) < 2:
        return False
    same = alike(outside[:1].expand_as(outside), outside, tolerance=1e-6)
    return same and not alike(inside[:1].expand_as(inside), inside, tolerance=1e-6)


def _sees_values(subject: Subject, task: L.LightningModule, images: Tensor, out: Tensor) -> Finding:
    """See that shades count, not only whole numbers."""
    tape = Tape(task, origins=False)
    with tape, torch.no_grad():
        subject.logits(task, images)
    tape.close()
    if tape.casts and _gradient(subject, task, images) is None:
        return warn(
            f"the input is turned into whole numbers ({tape.casts[0].about}) by "
            f"{tape.casts[0].where}",
            "Keep float32: normalised images lie between -3 and 3.",
        )
    return passed(f"outputs differ by up to {float((out - out[:1]).abs().max()):.2g}")


def _gradient(subject: Subject, task: L.LightningModule, images: Tensor) -> Tensor | None:
    """Return the size of the output's gradient at every number of the input, over the batch."""
    inputs = images.clone().requires_grad_()
    out = subject.logits(task, inputs)
    if not out.requires_grad:
        return None
    weights = torch.randn(out.shape, dtype=out.dtype)
    with of_the_user():
        try:
            found = torch.autograd.grad((out * weights).sum(), inputs, allow_unused=True)[0]
        except RuntimeError as error:
            if "not implemented" not in str(error):
                raise
            return None
    return None if found is None else found.abs().amax(0)


@check("model", seconds=10)
def uses_whole_input(subject: Subject) -> Finding:
    """No channel, row or column of the input is ignored."""
    images, task = _images(subject), settled_task(subject).eval()
    if images.dim() < 2:
        raise Skip("inputs have no dimensions")
    gradient = _gradient(subject, task, images)
    if gradient is None or not (gradient > 0).any():
        raise Skip("the output has no gradient at the input, see depends-on-input")
    ignored = gradient == 0
    if not ignored.any():
        return passed()
    noise = 3 * torch.randn_like(images) + images
    with torch.no_grad():
        out = subject.logits(task, images)
        moved = subject.logits(task, torch.where(ignored, noise, images))
        usual = subject.logits(task, torch.where(ignored, images, noise))
    if alike(out, usual, tolerance=1e-4):
        raise Skip("the output hardly depends on the input yet")
    if not alike(out, moved, tolerance=1e-6):
        return passed("no gradient in some places, but they count")
    return _name_ignored(ignored)


def _name_ignored(ignored: Tensor) -> Finding:
    share = float(ignored.float().mean())
    names = {3: ("channel", "row", "column")}.get(ignored.dim(), ())
    for axis in range(ignored.dim()):
        others = [other for other in range(ignored.dim()) if other != axis]
        whole = ignored.all(dim=tuple(others)) if others else ignored
        if not whole.any():
            continue
        which = whole.nonzero().flatten().tolist()
        kind = names[axis] if names else f"index of dimension {axis + 1}"
        listed = ", ".join(map(str, which[:6])) + (", ..." if len(which) > 6 else "")
        evidence = f"the output ignores {kind} {listed} of 0 to {len(whole) - 1} ({share:.0%})"
        finding = fail if share >= 0.25 else warn
        return finding(evidence, "Look at slices, strides, patch size and out[:, -1] or out[0].")
    if share >= 0.25:
        return warn(
            f"the output ignores {share:.0%} of the input",
            "Look at strides, slices and masks: a stride larger than the kernel skips pixels.",
        )
    return passed(f"{share:.1%} of the input is ignored")


@check("model")
def sees_positions(subject: Subject) -> Finding:
    """Images whose parts are shuffled give other outputs."""
    images, task = _images(subject), settled_task(subject).eval()
    if images.dim() != 4 or min(images.shape[2:]) < 4:
        raise Skip("inputs are no images")
    sizes = {1} | {
        m.kernel_size[0]
        for m in task.modules()
        if isinstance(m, _ConvNd) and len(set(m.kernel_size)) == 1 and m.kernel_size == m.stride
    }
    out, _ = traced(task, lambda: subject.logits(task, images))
    again, _ = traced(task, lambda: subject.logits(task, images))
    if not out.isfinite().all() or not alike(out, again, tolerance=1e-6):
        raise Skip("two forwards differ, see eval-deterministic")
    if alike(out[:1].expand_as(out), out, tolerance=1e-5):
        raise Skip("all outputs are the same, see depends-on-input")
    for size in sorted(sizes):
        if min(images.shape[2:]) < 2 * size:
            continue
        mixed = _shuffle(images, size)
        with torch.no_grad():
            shuffled = subject.logits(task, mixed)
        if alike(out, shuffled, tolerance=1e-4) and not _constant(out):
            what = "pixels" if size == 1 else f"patches of {size} x {size}"
            return warn(
                f"shuffling the {what} of an image changes nothing: the network sees no positions",
                "Add a position embedding, or convolutions larger than 1 x 1.",
            )
    return passed()


def _constant(out: Tensor) -> bool:
    return float((out - out.mean(0)).abs().max()) <= 1e-3 * float(out.abs().max())


def _shuffle(images: Tensor, size: int) -> Tensor:
    """Shuffle the blocks of ``size`` pixels; what is over at the borders stays."""
    height, width = (length // size * size for length in images.shape[2:])
    count, channels = images.shape[:2]
    rows, columns = height // size, width // size
    inner = images[..., :height, :width].reshape(count, channels, rows, size, columns, size)
    blocks = inner.permute(2, 4, 0, 1, 3, 5).flatten(0, 1)[torch.randperm(rows * columns)]
    back = blocks.reshape(rows, columns, count, channels, size, size).permute(2, 3, 0, 4, 1, 5)
    made = images.clone()
    made[..., :height, :width] = back.reshape(count, channels, height, width)
    return made
