"""What is in a batch, however the data module makes it."""

from torch import Tensor


def samples_of(batch: object) -> int:
    """Return the number of samples of a batch: the length of its first tensor that has one."""
    first = batch[0] if isinstance(batch, list | tuple) and batch else batch
    if isinstance(first, Tensor) and first.dim():  # the usual case, asked for at every step
        return first.shape[0] or 1
    return _length(batch) or 1


def _length(batch: object) -> int:
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else 0
    if isinstance(batch, dict):
        batch = list(batch.values())
    inside = batch if isinstance(batch, list | tuple) else ()
    return next((length for part in inside if (length := _length(part))), 0)
