"""Whether an exported file computes what the run computes: in a process of its own, on real images.

Outputs are compared at batch sizes 1, 2 and 7 and on every image of the test split.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

import project
from project.export import fault
from project.export.latency import SECONDS, SIZES, Times, measure
from project.export.samples import Samples
from project.export.whole import Whole, eager
from project.mistakes import RunFailed

# Largest difference of an output, as a fraction of the largest output: of many classes, all probs
# are small. float32: other orders of summation, 1e-6 measured; halves: 11 and 8 bits of mantissa,
# over many layers.
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 6e-2}
# int8: fraction of the images by which accuracy may fall; of twice as many the class may change.
INT8_TOLERANCE = 0.02
_MIXES = 1e-3  # more than summation does to an image's output when others join its batch


@dataclass(frozen=True)
class Reference:
    """What the run itself computes, in float32.

    Args:
        small: Outputs of ``Samples.small_batches``.
        every: Outputs of the whole split, ``(N, num_classes)``.
        labels: int64 ``(N,)``; None if the data have none.
        mixing: By how much an image's outputs change with the other images of its batch.
    """

    small: list[Tensor]
    every: Tensor
    labels: Tensor | None
    mixing: float

    @property
    def accuracy(self) -> float | None:
        """Fraction of the labelled images whose class is right."""
        return accuracy(self.every, self.labels)

    @property
    def mixes(self) -> bool:
        """Whether what is said about an image depends on the others of its batch."""
        return self.mixing > _MIXES


@dataclass(frozen=True)
class Outcome:
    """What a comparison of a file with its run found.

    Args:
        difference: Largest difference of an output.
        scale: Largest output of the run, of which the difference is a fraction.
        accuracy: Of the file; None if the data have no labels.
        own: Of the run.
        agreement: Fraction of the images to which both give the same class.
        images: How many there were.
        tolerance: What was allowed.
    """

    difference: float
    scale: float
    accuracy: float | None
    own: float | None
    agreement: float
    images: int
    tolerance: float

    def failure(self, int8: bool) -> str | None:
        """Say what is beyond the tolerance, if anything is; NaN always is."""
        if not np.isfinite(self.difference):
            return "some of its outputs are not finite"
        if not int8:
            within = self.difference <= self.tolerance * self.scale
            what = (
                f"its outputs differ by {self.difference:.2g} from the run's, of which the largest"
            )
            return None if within else f"{what} is {self.scale:.2g}"
        if self.own is not None and self.accuracy is not None:
            fall = self.own - self.accuracy
            if fall > self.tolerance:
                return f"accuracy falls from {self.own:.4f} to {self.accuracy:.4f}"
        if self.agreement < 1 - 2 * self.tolerance:
            return f"{1 - self.agreement:.1%} of the images get another class"
        return None


def accuracy(outputs: Tensor, labels: Tensor | None) -> float | None:
    """Return the fraction of the labels that is right; -100 is no label."""
    if labels is None or not (labels >= 0).any():
        return None
    known = labels >= 0
    return float((outputs.argmax(1)[known] == labels[known]).double().mean())


def refer(whole: Whole, samples: Samples) -> Reference:
    """Compute what the run itself says about its images.

    Raises:
        RunFailed: If that is not finite, something else every time, or impossible with batches of
            these sizes.
    """
    images = samples.small_batches()
    try:
        small = [eager(whole, batch) for batch in images]
    except RuntimeError as error:  # in training, batches have other sizes
        raise fault.explain(error, whole) from error
    if not small[-1].isfinite().all():
        raise RunFailed(f"The run's own outputs for its {samples.split} images are not finite.")
    if not torch.allclose(small[-1], again := eager(whole, images[-1]), atol=1e-6):
        raise RunFailed(
            "The run's own outputs for the same images differ from call to call, by "
            f"{float((small[-1] - again).abs().max()):.2g}.\nRandom numbers or a state that "
            "changes, also in evaluation? F.dropout needs training=self.training."
        )
    outputs, labels = [], []
    for batch, its_labels in _shown(samples, "The run itself"):
        outputs.append(eager(whole, batch))
        labels.append(its_labels)
    known = [found for found in labels if found is not None]
    every = torch.cat(known) if len(known) == len(labels) else None
    mixing = float((small[0][0] - small[-1][0]).abs().max())
    return Reference(small, torch.cat(outputs), every, mixing)


def compare(file: "Process", samples: Samples, reference: Reference, tolerance: float) -> Outcome:
    """Compare a file's outputs with the run's."""
    images = samples.small_batches()
    small = [file.outputs(batch) for batch in images]
    every = torch.cat([file.outputs(batch) for batch, _ in _shown(samples, "The file")])
    pairs = [*zip(small, reference.small, strict=True), (every, reference.every)]
    return Outcome(
        difference=float(torch.stack([(ours - run).abs().max() for ours, run in pairs]).max()),
        scale=float(reference.every.abs().max()),
        accuracy=accuracy(every, reference.labels),
        own=reference.accuracy,
        agreement=float((every.argmax(1) == reference.every.argmax(1)).double().mean()),
        images=len(every),
        tolerance=tolerance,
    )


class Process:
    """A fresh process that has an exported file open.

    Args:
        pipe: The process.
        log: What it says on its standard error.
    """

    def __init__(self, pipe: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.pipe, self.log = pipe, log

    def outputs(self, images: Tensor) -> Tensor:
        """Return the file's outputs for a batch."""
        return torch.from_numpy(self._ask(images, None))

    def times(self, images: Tensor) -> Times:
        """Measure the file on a batch."""
        times: Times = self._ask(images, SECONDS)
        return times

    def _ask(self, images: Tensor, seconds: float | None) -> Any:  # noqa: ANN401
        assert self.pipe.stdin is not None
        assert self.pipe.stdout is not None
        try:
            pickle.dump((images.numpy(), seconds), self.pipe.stdin)
            self.pipe.stdin.flush()
            return pickle.load(self.pipe.stdout)
        except (EOFError, BrokenPipeError):
            self.log.seek(0)
            said = self.log.read().decode(errors="replace").strip().splitlines()
            why = said[-1] if said else f"exit code {self.pipe.wait()}"
            raise RunFailed(
                f"The exported file does not run on a batch of shape {tuple(images.shape)}: {why}"
            ) from None


@contextmanager
def opened(path: Path) -> Iterator[Process]:
    """Open an exported file in a fresh process, with as many threads as this one."""
    command = [sys.executable, "-P", "-m", f"{__package__}.runner", str(path)]
    # Not from the current folder, where files may have the names of libraries.
    home = str(Path(project.__file__).parents[1])
    paths = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [*command, str(torch.get_num_threads())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | {"PYTHONPATH": paths},
        ) as pipe,
    ):
        try:
            yield Process(pipe, log)
        finally:
            pipe.kill()


def latencies(whole: Whole, file: Process, images: Tensor) -> dict[str, list[Times]]:
    """Measure the run and its file, one after the other, at every batch size."""
    batches = [images[:size] for size in SIZES]
    return {
        "eager": [measure(partial(eager, whole, batch)) for batch in batches],
        "exported": [file.times(batch) for batch in batches],
    }


def _shown(samples: Samples, what: str) -> Iterator[tuple[Tensor, Tensor | None]]:
    quiet = not sys.stderr.isatty()
    yield from track(samples.batches(), f"{what} on the {samples.split} images", disable=quiet)
