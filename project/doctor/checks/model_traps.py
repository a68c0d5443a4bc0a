"""What bites later: inputs changed in place, and forwards that cannot be exported."""

import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import lightning as L
import torch
from torch import Tensor, nn

from project.doctor import Finding, Skip, Subject, check, passed, warn
from project.doctor.step import first_steps
from project.doctor.tape import Call, Tape


@check("model")
def input_unchanged(subject: Subject) -> Finding:
    """The network leaves its input as it is."""
    images = subject.pairs("train")[0][0][:8]
    for task in (subject.fresh_task().eval(), subject.fresh_task().train()):
        tape = Tape(task, origins=False)
        with tape, torch.no_grad():
            subject.logits(task, images)
        tape.close()
        given = images if tape.first is None else tape.first
        if given.shape == images.shape and not torch.equal(given.nan_to_num(), images.nan_to_num()):
            where = f" by {tape.in_place[0].where}" if tape.in_place else ""
            return warn(
                f"the input is changed in place{where}",
                "Write x = x - mean, not x -= mean; no inplace=True in the first layer: whoever "
                "uses the batch afterwards gets other images.",
            )
    steps = first_steps(subject)
    if steps.tape.in_place:
        call = steps.tape.in_place[0]
        return passed(f"training_step changes its batch: {call.where}")
    return passed()


class _Forward(nn.Module):
    """A task's forward as a network of its own."""

    def __init__(self, subject: Subject, task: L.LightningModule) -> None:
        super().__init__()
        self.task, self.run = task, subject.logits

    def forward(self, images: Tensor) -> Tensor:
        return self.run(self.task, images)


class _Late(Exception):
    pass


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """End what takes longer, where signals can."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@check("model", seconds=6)
def can_be_exported(subject: Subject) -> Finding:
    """torch.export can follow the forward: no value of a tensor decides what is computed."""
    task = subject.fresh_task().eval()
    if any(isinstance(module, torch.jit.ScriptModule) for module in task.modules()):
        raise Skip("the network is a ScriptModule")
    images = subject.pairs("train")[0][0][:2]
    tape = Tape(task, origins=False)
    with tape, torch.no_grad():
        subject.logits(task, images)
    tape.close()
    try:
        with _limit(subject.seconds_left), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.export(_Forward(subject, task), (images,), strict=False)
    except _Late:
        if not tape.deciding:
            raise Skip("torch.export takes too long here") from None
        return _cannot(tape.deciding, "torch.export takes too long")
    except Exception as error:
        return _cannot(tape.deciding, f"{type(error).__name__}: {error}".split("\n")[0][:200])
    return passed()


def _cannot(deciding: list[Call], what: str) -> Finding:
    where = f" at {deciding[0].where}" if deciding else ""
    return warn(
        f"torch.export cannot follow the forward{where}: {what}",
        "Use torch.where or masks instead of if and item(); training itself is not concerned.",
    )
