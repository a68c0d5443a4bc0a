"""An exported file, opened again: what it says about itself, and what it predicts.

An ONNX file is data. A file of torch.export or TorchScript holds a program, and torch's loaders are
not meant for files from strangers: open only those that you or people you trust have exported.
"""

import json
import zipfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from project.mistakes import UserError

METADATA = "metadata.json"
Array = npt.NDArray[Any]


class Runner(Protocol):
    """What computes the outputs of a file."""

    def __call__(self, images: Array) -> Array:
        """Map images ``(B, C, H, W)`` to what the file was exported with, float32 ``(B, K)``."""


class Exported:
    """An exported file that predicts.

    Args:
        path: The file.
        kind: ``onnx``, ``pt2`` or ``torchscript``.
        metadata: What the file says about itself: classes, image size, mean and deviation, the run
            and its metrics, versions.
        run: Computes its outputs.
    """

    def __init__(self, path: Path, kind: str, metadata: dict[str, Any], run: Runner) -> None:
        self.path, self.kind, self.metadata, self.run = path, kind, metadata, run

    def predict(self, images: Any) -> npt.NDArray[np.float32]:  # noqa: ANN401
        """Return probs float32 ``(B, num_classes)``, whatever was left out of the file.

        Args:
            images: uint8 ``(B, C, H, W)`` from 0 to 255, of the file's image size; normalised
                float32 only if the file does not normalise. A NumPy array, or a tensor on the CPU.

        Raises:
            ValueError: If they are of another kind or shape.
        """
        given = np.asarray(images)
        self._check(given)
        if not self.metadata["preprocess"] and given.dtype == np.uint8:
            mean, std = self.metadata["mean"], self.metadata["std"]
            if mean is None or std is None:
                raise ValueError("this file takes normalised float32, and does not say how to")
            shape = (-1, 1, 1)
            given = given.astype(np.float32) - np.float32(mean).reshape(shape) * np.float32(255)
            given /= np.float32(std).reshape(shape) * np.float32(255)
        outputs = self.run(given).astype(np.float32)
        return outputs if self.metadata["softmax"] else _softmax(outputs)

    def _check(self, given: Array) -> None:
        channels, size = self.metadata["in_channels"], self.metadata["image_size"]
        side = ("H", "W") if size is None else (size, size)
        shape_fits = given.ndim == 4 and given.shape[1] == channels
        if not shape_fits or (size is not None and given.shape[2:] != (size, size)):
            wanted = ", ".join(map(str, ("B", channels, *side)))
            raise ValueError(f"images must be ({wanted}), got {given.shape}")
        if given.dtype != np.uint8 and (self.metadata["preprocess"] or given.dtype != np.float32):
            other = "" if self.metadata["preprocess"] else " or normalised float32"
            raise ValueError(f"images must be uint8{other}, got {given.dtype}")


def open_exported(path: str | Path, threads: int | None = None) -> Exported:
    """Open a file that `lightning export` has made, of whatever format.

    Args:
        path: The file.
        threads: How many it computes with, in ONNX Runtime for this file, in torch for all; by
            default what these libraries choose.

    Raises:
        UserError: If it is none, or the library that runs it is missing.
    """
    file = Path(path)
    if not file.is_file():
        raise UserError(f"No file {file}. Make one: lightning export --run last")
    kind = _kind(file)
    opener = {"onnx": _open_onnx, "pt2": _open_pt2, "torchscript": _open_torchscript}[kind]
    try:
        text, run = opener(file, threads)
        metadata = json.loads(text)
    except ImportError:
        raise UserError(f"{file} needs ONNX Runtime: pip install -e '.[export]'") from None
    except Exception as error:  # what a library raises depends on the content, whatever that is
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{file} is no exported model, or it is damaged: {reason}") from error
    return Exported(file, kind, metadata, run)


def _kind(file: Path) -> str:
    if not zipfile.is_zipfile(file):
        return "onnx"
    with zipfile.ZipFile(file) as archive:
        has_code = any("/code/" in name for name in archive.namelist())
    return "torchscript" if has_code else "pt2"


def _open_onnx(file: Path, threads: int | None) -> tuple[str, Runner]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only: its warnings are about how it optimises
    if threads is not None:
        options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
    properties = session.get_modelmeta().custom_metadata_map
    if METADATA not in properties:
        raise ValueError("it was not made by lightning export")
    name = session.get_inputs()[0].name
    return properties[METADATA], lambda images: np.asarray(session.run(None, {name: images})[0])


def _open_pt2(file: Path, threads: int | None) -> tuple[str, Runner]:
    import torch

    extra = {METADATA: ""}
    with file.open("rb") as content:  # by its name it would have to end in .pt2
        program = torch.export.load(content, extra_files=extra)
    return extra[METADATA], _torch_runner(program.module(), threads)


def _open_torchscript(file: Path, threads: int | None) -> tuple[str, Runner]:
    import warnings

    import torch

    extra: dict[str, Any] = {METADATA: ""}
    with warnings.catch_warnings(action="ignore"):  # that it is deprecated: export has said so
        load: Any = torch.jit.load
        module = load(file, map_location="cpu", _extra_files=extra)
    return extra[METADATA], _torch_runner(module, threads)


def _torch_runner(module: Any, threads: int | None) -> Runner:  # noqa: ANN401
    import torch

    if threads is not None:
        torch.set_num_threads(threads)

    def run(images: Array) -> Array:
        with torch.inference_mode():
            outputs: Array = module(torch.from_numpy(images)).numpy()
        return outputs

    return run


def _softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs: npt.NDArray[np.float32] = powers / powers.sum(axis=1, keepdims=True)
    return probs
