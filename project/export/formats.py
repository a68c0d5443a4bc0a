"""A network as a file: one program from torch.export, written as ONNX, .pt2 or TorchScript."""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from project.export import fault
from project.export.exported import METADATA
from project.export.whole import Whole

NAMES = {"onnx": "model.onnx", "pt2": "model.pt2", "torchscript": "model.pt"}


def to_program(whole: Whole, example: Tensor, sizes_vary: bool) -> ExportedProgram:
    """Record what a network computes, for batches of any size.

    Args:
        whole: The network.
        example: Images ``(B, C, H, W)`` with at least two, since 1 has a meaning of its own in
            shapes.
        sizes_vary: Whether height and width may be others, too.

    Raises:
        RunFailed: If it computes something that cannot be recorded.
    """
    varies: dict[int, Any] = {0: Dim("batch", min=1)}
    if sizes_vary:
        varies |= {2: Dim.AUTO, 3: Dim.AUTO}
    shapes = (varies,)
    with quietly(), torch.no_grad():
        try:
            return torch.export.export(whole, (example,), dynamic_shapes=shapes)
        except Exception as error:  # torch raises what the user's code meets, of any kind
            lines = []
            if "onstraints violated" in str(error):
                lines = fault.fixed_batch(whole, (example,), shapes)
            raise fault.explain(error, whole, lines) from error


def write_onnx(program: ExportedProgram, whole: Whole, path: Path, opset: int) -> None:
    """Write an ONNX file.

    Raises:
        RunFailed: If ONNX has no such operator.
    """
    output = "probs" if whole.softmax else "logits"
    with quietly():
        try:
            made = torch.onnx.export(
                program,
                dynamo=True,
                input_names=["images"],
                output_names=[output],
                opset_version=opset,
                external_data=False,
                verbose=False,
            )
            assert made is not None
        except Exception as error:  # as above
            raise fault.explain(error, whole, fault.at_node(error, program)) from error
    for node in made.model.graph.all_nodes():
        node.metadata_props.clear()  # stack traces, with the paths of this machine
    made.save(path)


def write_pt2(program: ExportedProgram, path: Path, metadata: dict[str, Any]) -> None:
    """Write a file of torch.export."""
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # with the paths of this machine
    content = io.BytesIO()  # on a full disk torch's writer ends the process
    with quietly():
        torch.export.save(program, content, extra_files={METADATA: json.dumps(metadata)})
    path.write_bytes(content.getbuffer())


def write_torchscript(
    program: ExportedProgram, whole: Whole, example: Tensor, path: Path, metadata: dict[str, Any]
) -> None:
    """Write a TorchScript file, traced from the program: nothing in it depends on values any more.

    Raises:
        RunFailed: If it cannot be traced.
    """
    with quietly(), torch.no_grad():
        try:
            trace: Any = torch.jit.trace
            script = trace(program.module(), (example,), check_trace=False)
            content = io.BytesIO()  # as above
            torch.jit.save(script, content, _extra_files={METADATA: json.dumps(metadata)})
        except Exception as error:  # as above
            raise fault.explain(error, whole) from error
    path.write_bytes(content.getbuffer())


def put_into_onnx(path: Path, metadata: dict[str, Any]) -> None:
    """Add what a file says about itself."""
    import onnx

    model = onnx.load(path)
    onnx.helper.set_model_props(model, {METADATA: json.dumps(metadata)})
    onnx.save(model, path)


def opset_of(path: Path) -> int:
    """Return the version of ONNX's operators that a file has."""
    import onnx

    model = onnx.load(path)
    return next(int(entry.version) for entry in model.opset_import if not entry.domain)


@contextmanager
def quietly() -> Iterator[None]:
    """Keep back what the exporters say about themselves; their errors are raised."""
    before, said = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            redirect_stdout(said),
            redirect_stderr(said),
        ):
            yield
    finally:
        logging.disable(before)
