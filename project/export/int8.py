"""Eight bits for weights and activations of an ONNX file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import Tensor

from project.export.formats import quietly

CALIBRATION = 256  # images; more change the ranges little
# What takes the time. Normalisation and softmax stay in float32, where they cost nothing.
_OPERATORS = ["Conv", "Gemm", "MatMul", "Add", "MaxPool", "GlobalAveragePool", "Relu", "Clip"]


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, batches: Iterator[Tensor]) -> None:
        self.batches = batches

    def get_next(self) -> dict[str, Any] | None:
        """Return the next batch, or None after the last one."""
        batch = next(self.batches, None)
        return None if batch is None else {"images": batch.numpy()}


def quantise(path: Path, how: str, batches: Iterator[Tensor]) -> None:
    """Turn a float32 file into one of int8, in its place.

    Args:
        path: The file.
        how: ``dynamic`` measures the range of activations in every call; ``static`` has fixed them
            with ``batches``, which is faster for convolutions.
        batches: Images as the file takes them.
    """
    prepared = path.with_name(f"{path.name}.prepared")
    try:
        with quietly():  # it advises what is done here
            # Symbolic shapes, which it does not find for every operator, are not needed.
            quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
            if how == "dynamic":
                # uint8, since ONNX Runtime has no ConvInteger with signed weights on CPUs.
                quantize_dynamic(prepared, path, weight_type=QuantType.QUInt8)
            else:
                quantize_static(
                    *(str(prepared), str(path), _Reader(batches)),
                    quant_format=QuantFormat.QDQ,
                    per_channel=True,
                    op_types_to_quantize=_OPERATORS,
                )
    finally:
        prepared.unlink(missing_ok=True)
