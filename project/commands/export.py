"""Turn a run into one checked file: ONNX, torch.export (.pt2) or TorchScript.

Example: `lightning export --run last --format onnx`

  --run RUN                    folder of a run, or last
  --ckpt_path best|last|FILE   which checkpoint of it; default: best
  --format FORMAT              onnx (the default), pt2 or torchscript
  --output FILE                default: model.onnx, model.pt2 or model.pt in the run's folder
  --preprocess true|false      takes uint8 images and normalises them (true), or normalised float32
  --softmax true|false         gives probs (true) or logits
  --precision P                float32, float16 or bfloat16; float32 goes in and out all the same
  --int8 dynamic|static        ONNX in 8 bits; static has its ranges from validation images
  --opset N                    version of ONNX's operators; default: 18
  --tolerance X                largest difference from the run that is accepted, as a fraction of
                               its largest output; for int8 the largest fall of accuracy, and twice
                               as many images may change class. Default: 1e-4, float16 0.02,
                               bfloat16 0.06, int8 0.02
  --benchmark                  time it at batch sizes 1 and 32, next to the run itself
  --weights                    write weights/ (safetensors, JSON, an example) for use without this
                               project; alone, or with --format

Batches may have any size. The file says itself which classes, images and run it is of, and is
compared with the run in a process of its own, on all its test images; what differs is removed, and
the exit code is 1. MODEL_CARD.md in the run's folder describes the run.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from project import heavy
from project.export.wanted import Wanted, require
from project.mistakes import UserError, did_you_mean
from project.options import VerbParser, show_progress
from project.request import Request, request_of_run

if TYPE_CHECKING:
    from project.export.exporting import Result
    from project.runs import LoadedRun

CHOICES = {
    "format": ("onnx", "pt2", "torchscript"),
    "precision": ("float32", "float16", "bfloat16"),
    "int8": ("dynamic", "static"),
    "preprocess": ("true", "false"),
    "softmax": ("true", "false"),
}
_OTHER = 0.01  # of accuracy: more than another precision makes


def main(argv: Sequence[str] | None = None) -> int:
    """Export a run and show what was checked.

    Args:
        argv: What follows the verb.

    Raises:
        UserError: If a setting is wrong, a package is missing, or there is no such run.
        RunFailed: If the network cannot be exported, or the file does not compute the same.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    given = vars(_parser().parse_args(argv))
    weights = given.pop("weights", False)
    run, ckpt_path = (given.pop(name, None) for name in ("run", "ckpt_path"))
    if weights:
        require("safetensors", "--weights")
    if weights and given and "format" not in given:
        raise UserError(f"--{next(iter(given))} is about a file: say --format, too.")
    wanted = None if weights and not given else Wanted(**given)
    request = request_of_run("export", run, ckpt_path)
    heavy.import_lightning()
    _export(request, wanted, weights)
    return 0


def _parser() -> VerbParser:
    parser = VerbParser("export", argument_default=argparse.SUPPRESS)
    for name in ("run", "ckpt_path"):
        parser.add_argument(f"--{name}")
    for name, choices in CHOICES.items():
        kind: Any = _truth if choices == ("true", "false") else _one_of(choices)
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--opset", type=int)
    parser.add_argument("--tolerance", type=float)
    for name in ("benchmark", "weights"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser


def _one_of(choices: Sequence[str]) -> Any:  # noqa: ANN401
    def check(text: str) -> str:
        if text not in choices:
            hint = did_you_mean(text, choices)
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(choices)}.{hint}")
        return text

    return check


def _truth(text: str) -> bool:
    return bool(_one_of(("true", "false"))(text) == "true")


def _export(request: Request, wanted: Wanted | None, weights: bool) -> None:
    from project.export.model_card import write_model_card
    from project.export.weights import write_weights
    from project.report import program
    from project.runs import load_run

    assert request.run is not None
    loaded = load_run(request.run.path, str(request.ckpt_path))
    print(f"Run    {loaded.run.path}\nFrom   {loaded.ckpt_path}")
    exported = None
    if wanted is not None:
        if wanted.format == "torchscript":
            print("Note   torch has deprecated TorchScript: --format pt2 is what replaces it")
        exported = _file(loaded, wanted)
    steps = [] if exported is None else [_use(exported)]
    if weights:
        folder = loaded.run.path / "weights"
        for path in write_weights(loaded, folder):
            print(f"Saved  {path}")
        steps.append(f"{program('python')} {shlex.quote(str(folder / 'example.py'))}")
    print(f"Card   {write_model_card(loaded, exported.path if exported else None)}")
    print("Next   " + "\n       ".join(steps))


def _use(exported: "Result") -> str:
    """Say how a file is used: by the verb that reads images for it, or from Python."""
    from project.report import program

    if exported.metadata["reader"]:
        return f"{program('lightning')} serve --model {shlex.quote(str(exported.path))}"
    return f"project.export.exported.open_exported({str(exported.path)!r}).predict(images)"


def _file(loaded: "LoadedRun", wanted: Wanted) -> "Result":
    from project.export.exporting import export
    from project.export.latency import show

    result = export(loaded, wanted, show_progress)
    show_progress("")
    for line in _lines(result, wanted):
        print(line)
    if result.times is not None:
        import torch

        size = result.path.stat().st_size
        rows = {
            "eager": (result.weights, result.times["eager"]),
            result.path.name: (size, result.times["exported"]),
        }
        show(rows, torch.get_num_threads())
    return result


def _lines(result: "Result", wanted: Wanted) -> list[str]:
    from project.export.latency import megabytes

    about, found = result.metadata, result.outcome
    side = about["image_size"]
    size = f"{side}, {side}" if side else "H, W"
    kind = "uint8 from 0 to 255" if about["preprocess"] else "normalised float32"
    opset = f", opset {about['opset']}" if about["opset"] else ""
    count = len(about["class_names"])
    lines = [
        f"File   {result.path}: {megabytes(result.path.stat().st_size)}, {wanted.kind}{opset}",
        f"In     images (B, {about['in_channels']}, {size}), {kind}",
        f"Out    {'probs' if wanted.softmax else 'logits'} (B, {count})",
        f"Check  batches of 1, 2 and 7 and all {found.images:,} {result.split} images: largest "
        f"difference {found.difference:.2g}, same class {found.agreement:.4f}",
    ]
    if found.accuracy is not None:
        lines.append(f"Acc    {result.split}: {found.accuracy:.4f}, the run's own {found.own:.4f}")
        recorded = about["metrics"][f"{result.split}/acc"]
        if abs(recorded - found.own) > _OTHER:
            lines.append(
                f"Note   the run recorded {recorded:.4f}: does its {result.split} step do more "
                "than forward, which is what is exported?"
            )
    if side is None:
        lines.append("Note   no mask goes in: the images of a batch have one size, without padding")
    if result.mixing is not None:
        lines.append(
            f"Note   outputs of an image change by up to {result.mixing:.2g} with the others of "
            "its batch (BatchNorm without running statistics?): serve images one by one"
        )
    return lines
