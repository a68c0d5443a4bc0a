"""Training and validation: which samples are held out."""

import torch
from torch import Tensor

from project.data.hashing import join, mix


def stratified_split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out ``fraction`` of every class; at least one of two samples, and never the only one.

    Args:
        labels: int64 ``(N,)``.
        fraction: Share to hold out, in (0, 1).
        seed: The split depends on it and on the labels, on nothing else.

    Returns:
        Rows that stay and rows held out, both rising.
    """
    keys = join(mix(seed), torch.arange(len(labels)))
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in torch.unique(labels):
        rows = (labels == label).nonzero()[:, 0]
        count = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        held_out[rows[keys[rows].argsort(stable=True)[:count]]] = True
    return (~held_out).nonzero()[:, 0], held_out.nonzero()[:, 0]
