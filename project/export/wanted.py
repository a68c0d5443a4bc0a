"""What somebody wants exported, checked before torch is imported."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from project.mistakes import UserError

# What files of a format are called; any other suffix will do for all of them.
SUFFIXES = {"onnx": (".onnx",), "pt2": (".pt2",), "torchscript": (".pt",)}
NEEDED = {"onnx": ("onnx", "onnxscript", "onnxruntime")}
# Torch writes operators of 18, and converts; later ones than its own it cannot.
OPSETS = 18, 25


@dataclass(frozen=True)
class Wanted:
    """One export.

    Args:
        format: ``onnx``, ``pt2`` or ``torchscript``.
        output: The file; None for one in the run's folder.
        precision: ``float32``, ``float16`` or ``bfloat16``.
        int8: ``dynamic``, ``static`` or None.
        preprocess: Whether the file takes uint8 images and normalises them; None if that is known.
        softmax: Whether probs come out, else logits.
        opset: Version of ONNX's operators.
        tolerance: See ``check``; None for the one of the precision.
        benchmark: Whether to measure latencies.

    Raises:
        UserError: If a format cannot do that, or needs what is not installed.
    """

    format: str = "onnx"
    output: Path | None = None
    precision: str = "float32"
    int8: str | None = None
    preprocess: bool | None = None
    softmax: bool = True
    opset: int = 18
    tolerance: float | None = None
    benchmark: bool = False

    def __post_init__(self) -> None:
        for package in NEEDED.get(self.format, ()):
            require(package, f"--format {self.format}")
        if self.output is not None:
            _check_suffix(self.output, self.format)
        if self.int8 and self.format != "onnx":
            raise UserError(
                f"--format {self.format} has no int8: ONNX Runtime computes it.\nSay --format onnx "
                "--int8 static."
            )
        if self.int8 and self.precision != "float32":
            raise UserError(f"--int8 {self.int8} and --precision {self.precision}: give one.")
        if self.precision == "bfloat16" and self.format == "onnx":
            raise UserError(
                "ONNX Runtime computes no bfloat16 on CPUs, so such a file could not be checked.\n"
                "Say --precision float16, or --format pt2."
            )
        if not OPSETS[0] <= self.opset <= OPSETS[1]:
            raise UserError(f"--opset is from {OPSETS[0]} to {OPSETS[1]}, got {self.opset}.")
        if self.tolerance is not None and not 0 <= self.tolerance <= 1:
            raise UserError(f"--tolerance is a fraction in [0, 1], got {self.tolerance}.")

    @property
    def kind(self) -> str:
        """The precision as the metadata has it."""
        return f"int8-{self.int8}" if self.int8 else self.precision


def _check_suffix(output: Path, kind: str) -> None:
    """Refuse the name of another format."""
    other = next((name for name, known in SUFFIXES.items() if output.suffix in known), kind)
    if other != kind:
        raise UserError(
            f"--output {output} is the name of a file of {other}, and --format is {kind}.\n"
            f"Say --format {other}, or --output {output.with_suffix(SUFFIXES[kind][0])}."
        )


def require(package: str, what: str) -> None:
    """Make sure that an optional package is there.

    Raises:
        UserError: If it is not.
    """
    if find_spec(package) is None:
        raise UserError(
            f"{what} needs {package}, which is not installed:\npip install -e '.[export]'"
        )
