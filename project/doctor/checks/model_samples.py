"""Whether the samples of a batch leave one another alone, and outputs repeat."""

from functools import partial

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.forwards import SAMPLES, alike, parting, traced
from project.doctor.step import settled_task
from project.doctor.tape import Tape


def _samples(subject: Subject) -> Tensor:
    images = subject.pairs("train")[0][0][:SAMPLES]
    if len(images) < 2:
        raise Skip("batches have one sample only")
    return images


@check("model")
def samples_independent(subject: Subject) -> Finding:
    """In eval mode a sample's output does not depend on the others of its batch."""
    images, task = _samples(subject), settled_task(subject).eval()
    out, trace = traced(task, lambda: subject.logits(task, images))
    again, _ = traced(task, lambda: subject.logits(task, images))
    if out.dim() == 0 or len(out) != len(images):
        raise Skip("the output has no row for every sample, see output-shape")
    if not alike(out, again) or not out.isfinite().all():
        raise Skip("two forwards differ, see eval-deterministic")
    for row in (0, len(images) - 1):
        others = images.flip(0) if not images.is_floating_point() else -2 * images
        others[row] = images[row]
        changed, trace_changed = traced(task, partial(subject.logits, task, others))
        if not alike(out, changed, row):
            return _mixed(task, parting(trace, trace_changed, row), out[row], changed[row])
    alone, _ = traced(task, lambda: subject.logits(task, images[:1]))
    if not alike(out, alone, 0):
        return fail(
            f"the first sample's output is {_few(out[0])} in a batch of {len(images)}, "
            f"{_few(alone.reshape(-1))} alone",
            "Look for squeeze(), view(batch, ...) or a statistic over the batch.",
        )
    return passed()


def _mixed(task: L.LightningModule, name: str, out: Tensor, changed: Tensor) -> Finding:
    module = task.get_submodule(name)
    kind = type(module).__name__
    where = f" by {name} ({kind})" if name else ""
    advice = "Look for dim=0 in a softmax, mean or norm, or a view that mixes batch and features."
    if isinstance(module, _NormBase):
        advice = "Leave track_running_stats on, and the layer in eval mode while evaluating."
    elif isinstance(module, nn.RNNBase | nn.MultiheadAttention | nn.TransformerEncoderLayer):
        advice = "Set batch_first=True, or give it (length, batch, features)."
    return fail(
        f"changing the other samples changes a sample's output{where}: "
        f"{_few(out)} becomes {_few(changed)}",
        advice,
    )


def _few(row: Tensor) -> str:
    return "[" + ", ".join(f"{value:.3g}" for value in row.flatten()[:3].tolist()) + " ...]"


@check("model")
def eval_deterministic(subject: Subject) -> Finding:
    """In eval mode the same images give the same outputs, and nothing of the task changes."""
    images, task = _samples(subject), subject.fresh_task().eval()
    before = {name: buffer.clone() for name, buffer in task.named_buffers()}
    torch.manual_seed(1)
    tape = Tape(task, origins=False)
    with tape:
        one, trace_one = traced(task, lambda: subject.logits(task, images))
    tape.close()
    modes = [name for name, module in task.named_modules() if module.training]
    torch.manual_seed(2)
    two, trace_two = traced(task, lambda: subject.logits(task, images))
    if not alike(one, two, tolerance=1e-5) and one.isfinite().all():
        return _random(subject, tape, parting(trace_one, trace_two), (one - two).abs().max())
    moved = [n for n, b in task.named_buffers() if n in before and not _equal(b, before[n])]
    if moved:
        return warn(
            f"a forward in eval mode changes the buffer {moved[0]}",
            "Update it only if self.training.",
        )
    if modes:
        return fail(
            f"forward puts {modes[0] or 'the task'} into training mode",
            "Call train() and eval() nowhere: Lightning does.",
        )
    return passed()


def _random(subject: Subject, tape: Tape, name: str, difference: Tensor) -> Finding:
    """Tell what is random in eval mode."""
    evidence = f"two forwards in eval mode differ by up to {float(difference):.2g}"
    if tape.dropouts:
        return fail(
            f"{evidence}: {tape.dropouts[0].where} drops in eval mode too",
            "F.dropout(x, p, training=self.training), or an nn.Dropout.",
        )
    where = f", first in {name}" if name else ""
    finding = warn if subject.num_classes is None else fail
    return finding(f"{evidence}{where}", "Draw random numbers only if self.training.")


def _equal(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and torch.equal(one.nan_to_num(), two.nan_to_num())
