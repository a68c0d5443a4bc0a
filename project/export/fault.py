"""Why a network cannot be exported: the module and the line at fault, and what to use instead."""

import importlib
import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from inspect import getsourcefile, getsourcelines
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from project.mistakes import RunFailed

_TORCH = str(Path(torch.__file__).parent)
_STDLIB = sysconfig.get_path("stdlib")
_OWN = str(Path(__file__).parent)

# What is found in the error, or in the line at fault, and what to write instead.
_VALUE = "keep it a tensor: torch functions take one where they take a number"
ADVICE = (
    (
        r"\.numpy\(\)|\bnp\.|numpy",
        "NumPy is called on a tensor",
        "use the torch function of that name",
    ),
    (r"\.tolist\(\)", "tensor values become Python numbers", _VALUE),
    (
        r"data-dependent.*\.item\(\)",
        "Python decides by a value that .item() reads",
        f"{_VALUE}; torch.where(condition, a, b) decides for each element, torch.cond in whole",
    ),
    (
        r"data-dependent",
        "Python decides by the values of a tensor (if, while, for, or a size made from them)",
        "torch.where(condition, a, b) for each element, or torch.cond for two computations",
    ),
    (r"\.item\(\)", "a tensor value becomes a Python number", _VALUE),
    (
        r"[Cc]onstraints violated|specialized|cannot be multiplied|is invalid for input of size",
        "Python arithmetic or control flow with the size fixes it to that of one batch",
        "images.shape[0] as it is, or -1 in reshape and view; no int(), if or for with it",
    ),
    (
        r"No ONNX function found",
        "ONNX has no such operator",
        "--format pt2, which has all operators of torch; or compute it with others",
    ),
    (
        r"TorchScript|torch\.jit|prim::|Tracer",
        "TorchScript cannot hold it",
        "--format pt2, or onnx",
    ),
)


class Line(NamedTuple):
    """A line of source that was being executed."""

    file: str
    number: int


def explain(error: BaseException, whole: nn.Module, stack: Iterable[Line] = ()) -> RunFailed:
    """Turn an exporter's error into its place and its cure.

    Args:
        error: What torch raised.
        whole: What was to be exported.
        stack: Lines that led to it, innermost first; by default those of the error.
    """
    lines = list(stack) or list(_lines(error))
    place = next((line for line in lines if not _foreign(line.file)), None)
    code = "" if place is None else linecache.getline(*place).strip()
    what, instead = _advice(_messages(error), code)
    owner = _module_at(lines, whole)
    where = f" in {owner}" if owner else ""
    spot = f"\n{_short(place.file)}, line {place.number}: {code}" if place else ""
    return RunFailed(f"It cannot be exported{where}: {what}.{spot}\nInstead: {instead}.")


def fixed_batch(whole: nn.Module, args: tuple[Any, ...], shapes: Any) -> list[Line]:  # noqa: ANN401
    """Find the line that fixes a size which has to vary, innermost first."""
    try:
        # It goes on after an error, and keeps where it was; torch 2.6 does not have it yet.
        program: Any = torch.export.draft_export(whole, args, dynamic_shapes=shapes)
        # Its own table of files lacks those that an earlier export of the process has met.
        table: Any = importlib.import_module("torch._logging.structured").INTERN_TABLE
        files = {number: name for name, number in table.items()}
        for failure in program._report.failures:
            frames = failure.data.get("user_stack") or failure.data.get("stack") or []
            lines = [Line(_file(frame, files), int(frame["line"])) for frame in reversed(frames)]
            if any(not _foreign(line.file) for line in lines):
                return lines
    except Exception:  # whatever goes wrong here: the first error is what the user has to see
        return []
    return []


def at_node(error: BaseException, program: Any) -> list[Line]:  # noqa: ANN401
    """Find the line of the operator that ONNX does not have, innermost first."""
    said = "\n".join(_messages(error))
    node_name = re.search(r"translating node %(\w+)", said)
    operator = re.search(r"OpOverload\(op='\w+\.(\w+)'", said)
    for graph in (program.graph, program.run_decompositions().graph):
        for node in graph.nodes:
            same = operator and operator[1].removeprefix("special_") in str(node.target)
            if same or (node_name and node.name == node_name[1]):
                found = re.findall(r'File "([^"]+)", line (\d+)', node.stack_trace or "")
                return [Line(file, int(number)) for file, number in reversed(found)]
    return []


def _file(frame: dict[str, Any], files: dict[int, str]) -> str:
    name = frame["filename"]
    return files.get(name, "") if isinstance(name, int) else str(name)


def _lines(error: BaseException) -> Iterator[Line]:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        yield Line(frame.filename, frame.lineno or 0)


def _messages(error: BaseException | None) -> list[str]:
    """Return what an error and its causes say, the first cause last."""
    said = []
    while error is not None:
        said.append(str(error).strip() or type(error).__name__)
        error = error.__cause__
    return said


def _advice(said: list[str], code: str) -> tuple[str, str]:
    for pattern, what, instead in ADVICE:
        if re.search(pattern, "\n".join([*said, code]), re.DOTALL):
            return what, instead
    first_cause = said[-1].splitlines()[0]
    return first_cause.rstrip(".:"), "another format, or simpler operations at this place"


def _foreign(file: str) -> bool:
    inside = file.startswith((_TORCH, _OWN, "<")) or not file
    # Installed packages lie below the standard library: torchvision's lines may be at fault.
    return inside or (file.startswith(_STDLIB) and "site-packages" not in file)


def _module_at(lines: Iterable[Line], whole: nn.Module) -> str:
    """Name the innermost module whose class has one of the lines, e.g. ``net.features.0``."""
    spans = []
    for name, module in whole.named_modules():
        if not name:
            continue
        try:
            source, first = getsourcelines(type(module))
            spans.append((getsourcefile(type(module)), first, first + len(source), name, module))
        except (OSError, TypeError):  # written in C, or typed into an interpreter
            continue
    for line in lines:
        for file, first, end, name, module in spans:
            if line.file == file and first <= line.number < end:
                return f"{name.removeprefix('task.')} ({type(module).__name__})"
    return ""


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
