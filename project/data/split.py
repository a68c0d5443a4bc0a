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


def split_by_content(
    labels: Tensor, contents: Tensor, fraction: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Hold out ``fraction`` of every class, with all copies of an image on the same side.

    At least one image of a class that has two different ones, and never all. An image that stands
    in two classes stays where training is: nobody knows what would be right for it.

    Args:
        labels: int64 ``(N,)``.
        contents: Hash of every image, int64 ``(N,)``; equal for copies.
        fraction: Share to hold out, in (0, 1).
        seed: The split depends on it, on the contents and the labels; not on names or order.

    Returns:
        Rows that stay and rows held out, both rising.
    """
    groups, group_of, sizes = torch.unique(contents, return_inverse=True, return_counts=True)
    label_of = torch.full_like(groups, -1).scatter_reduce_(0, group_of, labels, "amax")
    torn = torch.zeros(len(groups), dtype=torch.bool)
    torn[group_of[labels != label_of[group_of]]] = True
    # Of both halves, for a hash of contents may keep what tells images apart in either.
    keys = join(mix(seed), groups & 0xFFFFFFFF) ^ join(mix(seed, 1), groups >> 32 & 0xFFFFFFFF)
    chosen = torch.zeros(len(groups), dtype=torch.bool)
    for label, total in enumerate(torch.bincount(labels).tolist()):
        mine = ((label_of == label) & ~torn).nonzero()[:, 0]
        goal = min(max(round(fraction * total), 1), total - 1)
        order = mine[keys[mine].argsort(stable=True)]
        small = order[sizes[order] <= goal]
        taken = small[sizes[small].cumsum(0) <= goal]
        if len(taken) == 0 and goal > 0 and (len(order) > 1 or sizes[order].sum() < total):
            taken = order[sizes[order].argsort(stable=True)[:1]]  # copies only: the fewest
        chosen[taken] = True
    held_out = chosen[group_of]
    return (~held_out).nonzero()[:, 0], held_out.nonzero()[:, 0]
