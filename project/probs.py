"""What a ``predict_step`` has to return, and what to say where it returns something else."""

from torch import Tensor

from project.mistakes import UserError

# How far a sum may be from 1. Above the rounding of bfloat16, whose steps are 0.004 below 1.
_TOLERANCE = 0.02


def check_probs(probs: object, batch: object, otherwise: str = "") -> Tensor:
    """Return probabilities ``(B, num_classes)`` on the CPU.

    Args:
        probs: What ``predict_step`` returned.
        batch: Its batch.
        otherwise: A last line: what to do without them.

    Raises:
        UserError: If it is something else, e.g. logits.
    """
    expected = "predict_step must return probabilities (B, num_classes)"
    end = otherwise and f"\n{otherwise}"
    if not isinstance(probs, Tensor) or probs.ndim != 2:
        shape = f" {tuple(probs.shape)} of {probs.dtype}" if isinstance(probs, Tensor) else ""
        raise UserError(f"{expected}, it returned {type(probs).__name__}{shape}.{end}")
    images = batch[0] if isinstance(batch, tuple | list) else batch
    if isinstance(images, Tensor) and len(images) != len(probs):
        raise UserError(f"{expected}, it returned {len(probs)} rows for {len(images)} images.{end}")
    probs = probs.detach().cpu()
    wrong = ~((probs >= 0).all(1) & ((probs.sum(1) - 1).abs() < _TOLERANCE))  # also nan
    if wrong.any():
        row = probs[wrong][0]
        raise UserError(
            f"{expected}, 0 or more and with a sum of 1 in a row.\nIt returned values from "
            f"{float(row.min()):.4g} to {float(row.max()):.4g} with a sum of {float(row.sum()):.4g}"
            f"{'.' if row.isnan().any() else ': logits? They need a softmax.'}{end}"
        )
    return probs
