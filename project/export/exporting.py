"""From a run to a file that computes the same: written, checked, and only then in place."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from project.disk import reason
from project.export import check, formats
from project.export.latency import SIZES, Times
from project.export.metadata import describe, fixed_size
from project.export.samples import Samples, calibration, find_samples
from project.export.wanted import Wanted
from project.export.whole import Whole
from project.mistakes import RunFailed, UserError
from project.runs import LoadedRun

Say = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """A checked file.

    Args:
        path: Where it is.
        metadata: What it says about itself.
        split: Whose images it was checked with.
        outcome: What the check found.
        mixing: How much an image's outputs change with the others of its batch, where they do.
        weights: Bytes of the run's weights in float32.
        times: Latencies at ``SIZES``, if they were asked for.
    """

    path: Path
    metadata: dict[str, Any]
    split: str
    outcome: check.Outcome
    mixing: float | None
    weights: int
    times: dict[str, list[Times]] | None


def export(loaded: LoadedRun, wanted: Wanted, say: Say) -> Result:
    """Export a run.

    Args:
        loaded: The run.
        wanted: How.
        say: Told what is being done, since it takes a while.

    Raises:
        UserError: If the run has no images to check with, or the output has no place.
        RunFailed: If it cannot be exported, or the file does not compute the same. An earlier file
            is then still there.
    """
    path = wanted.output or loaded.run.path / formats.NAMES[wanted.format]
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"is in no folder: there is no {path.parent}"
        raise UserError(f"--output {path} {what}. Give a file, e.g. model.onnx.")
    say("Reading the images it is checked with")
    samples = find_samples(loaded.datamodule, wanted.preprocess)
    whole = Whole(loaded.task, samples.preprocess, wanted.softmax)
    say("Computing what the file has to say")
    reference = check.refer(whole, samples)
    metadata = describe(loaded, wanted, samples, reference.every, reference.accuracy)
    # In the same folder, so that it comes into place in one step.
    made = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        say(f"Writing {wanted.format}")
        _write(made, loaded, wanted, samples, metadata)
        say("Checking it in a process of its own")
        outcome, times = _check(made, whole, samples, reference, wanted)
        os.replace(made, path)
    except OSError as error:  # a full disk, a folder where nobody may write
        why, advice = reason(error, path.parent, "or write it elsewhere: --output FILE")
        raise RunFailed(f"{path} cannot be written: {why}.\n{advice}") from error
    finally:
        with contextlib.suppress(OSError):  # it would hide the error that led here
            made.unlink(missing_ok=True)
    mixing = reference.mixing if reference.mixes else None
    weights = sum(tensor.nbytes for tensor in loaded.task.state_dict().values())
    return Result(path, metadata, samples.split, outcome, mixing, weights, times)


def _write(
    path: Path, loaded: LoadedRun, wanted: Wanted, samples: Samples, metadata: dict[str, Any]
) -> None:
    whole = Whole(loaded.task, samples.preprocess, wanted.softmax, wanted.precision)
    # Shape and kind count, not what is in it: a .pt2 file keeps its example.
    example: Tensor = torch.zeros_like(samples.first(2))
    program = formats.to_program(whole, example, sizes_vary=not fixed_size(loaded))
    if wanted.format == "pt2":
        return formats.write_pt2(program, path, metadata)
    if wanted.format == "torchscript":
        return formats.write_torchscript(program, whole, example, path, metadata)
    formats.write_onnx(program, whole, path, wanted.opset)
    if wanted.int8:
        from project.export.int8 import CALIBRATION, quantise

        quantise(path, wanted.int8, calibration(samples, CALIBRATION))
    formats.put_into_onnx(path, metadata)
    if (opset := formats.opset_of(path)) != wanted.opset:
        raise RunFailed(f"torch wrote opset {opset} instead of {wanted.opset}: say --opset {opset}")
    return None


def _check(
    path: Path, whole: Whole, samples: Samples, reference: check.Reference, wanted: Wanted
) -> tuple[check.Outcome, dict[str, list[Times]] | None]:
    default = check.INT8_TOLERANCE if wanted.int8 else check.TOLERANCES[wanted.precision]
    tolerance = default if wanted.tolerance is None else wanted.tolerance
    with check.opened(path) as file:
        outcome = check.compare(file, samples, reference, tolerance)
        if failure := outcome.failure(bool(wanted.int8)):
            raise RunFailed(
                f"The exported file was removed: on the {samples.split} images {failure}; "
                f"{tolerance:g} was allowed.\nOther ways: another --format, --precision "
                "float32 without --int8, or --tolerance X if that is good enough."
            )
        if not wanted.benchmark:
            return outcome, None
        return outcome, check.latencies(whole, file, samples.first(max(SIZES)))
