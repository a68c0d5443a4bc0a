"""The same image twice: in two splits, or in one under two labels."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.data_samples import Samples, samples
from project.doctor.checks.data_views import first_few

# Shares of a split. Fashion-MNIST, whose splits hold near-duplicates, has 0.6 %, MNIST none.
EXACT = (0.005, 0.02)
NEAR = (0.02, 0.2)
# Where images within a split are as near to one another: simple ones, or copies made too early.
SIMPLE = (0.5, 2.0)
# Images that are looked for, and mirrored; images of the other split, some of which are enough.
QUERIES, MIRRORED, AMONG = 1000, 300, 20_000
# Two thumbnails are of one image if what distinguishes them, 1 - correlation, is below the first
# and below the second times what distinguishes the image from its tenth neighbour. Measured: a
# JPEG of quality 50 with other brightness is below 0.03 in 99 % of 28 x 28 images; different
# digits and clothes are above 0.12 in 99 %.
DISTANCE, RATIO, NEIGHBOUR = 0.03, 0.08, 10


@check("data", seconds=8)
def same_sample_in_two_splits(subject: Subject) -> Iterator[Finding]:
    """No sample is in two splits."""
    found = _all(subject)
    for one, other in _pairs_of_splits(found):
        first, second = found[one], found[other]
        if second.thumbs[0].numel() < 8:
            raise Skip("inputs of fewer than 8 numbers can be equal by chance")
        if len(first) > 10 * len(torch.unique(first.hashes)):
            raise Skip(f"{one} samples come more than ten times each")
        rows, at = _equal(second.hashes, first.hashes)
        yield from _shared(one, other, first, second, rows, at, EXACT, "are also")


@check("data", seconds=8)
def near_duplicates_in_two_splits(subject: Subject) -> Iterator[Finding]:
    """No image is in two splits in another encoding, brightness or mirrored."""
    found = _all(subject)
    for one, other in _pairs_of_splits(found):
        first, second = found[one].head(AMONG), found[other].head(QUERIES)
        if not (first.are_images and second.are_images) or len(first) < 4 * NEIGHBOUR:
            raise Skip("for images, at least 40 of them")
        rows, at = near(second.thumbs, first.thumbs)
        limits = NEAR
        if len(rows) > 1 and not _stands_out(len(rows), first, second):
            limits = SIMPLE
            rows, at = near(second.thumbs, first.thumbs, strictness=10)
        fresh = ~torch.isin(second.hashes[rows], first.hashes)
        said = "show, re-encoded or changed a little, what is also"
        yield from _shared(one, other, first, second, rows[fresh], at[fresh], limits, said)


def _stands_out(count: int, first: Samples, second: Samples) -> bool:
    """Whether images of one split are less often that near to one another."""
    within, _ = near(first.thumbs[:1000], first.thumbs, themselves=True)
    return len(within) / min(1000, len(first)) < 0.5 * count / len(second)


def _all(subject: Subject) -> dict[str, Samples]:
    found = {split: samples(subject, split) for split in subject.splits()}
    if len(found) < 2:
        raise Skip("the data has one split")
    return found


def _pairs_of_splits(found: dict[str, Samples]) -> list[tuple[str, str]]:
    names = list(found)
    return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]


def _equal(queries: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Return which queries there are among others, and where."""
    order = among.argsort()
    place = torch.searchsorted(among[order], queries).clamp(max=len(among) - 1)
    at = order[place]
    rows = (among[at] == queries).nonzero()[:, 0]
    return rows, at[rows]


def _shared(
    one: str,
    other: str,
    first: Samples,
    second: Samples,
    rows: Tensor,
    at: Tensor,
    limits: tuple[float, float],
    said: str,
) -> Iterator[Finding]:
    """Judge the share of a split that another split has too.

    Args:
        one: Name of the split with ``first``.
        other: Name of the split with ``second``.
        first: Samples, of which perhaps not all were read.
        second: Samples that were looked for in ``first``.
        rows: Those that were found.
        at: Where.
        limits: Shares from which it is a WARN and a FAIL.
        said: How they are related.
    """
    share = len(rows) / len(second) * first.total / len(first)
    if len(rows) < 2 or share < limits[0]:
        return
    pairs = zip(rows.tolist(), at.tolist(), strict=True)
    names = first_few([f"{other} {second.name(r)} = {one} {first.name(a)}" for r, a in pairs], 3)
    part = "" if first.complete else f", among {len(first)} of {first.total} of {one}"
    evidence = f"{len(rows)} of {len(second)} {other} samples {said} in {one}{part}: {names}"
    cause = (
        "Split by source (file, person, scene) before copies or crops are made, and once, with a "
        f"fixed seed: {other} measures memory so."
    )
    yield (fail if share >= limits[1] else warn)(evidence, cause)


def unit(thumbs: Tensor) -> tuple[Tensor, Tensor]:
    """Return grey thumbnails with mean 0 and length 1 ``(N, D)``, and which are not flat."""
    channels = thumbs.shape[1]
    # What JPEG keeps best is the brightness that the eye sees (ITU-R BT.601).
    weights = torch.tensor([0.299, 0.587, 0.114] if channels == 3 else [1 / channels] * channels)
    grey = torch.einsum("nchw,c->nhw", thumbs, weights).flatten(1)
    grey = grey - grey.mean(1, keepdim=True)
    lengths = grey.norm(dim=1)
    return F.normalize(grey, dim=1), lengths > 0.1 * lengths.median()


def near(
    queries: Tensor, among: Tensor, themselves: bool = False, strictness: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return which images show what another one shows, and which one that is.

    Args:
        queries: Thumbnails ``(N, C, SIDE, SIDE)``.
        among: Thumbnails ``(M, C, SIDE, SIDE)``.
        themselves: Whether the queries are the first of ``among``.
        strictness: What distances and their ratio are divided by.
    """
    seen, structured = unit(queries)
    others, usable = unit(among)
    own = torch.arange(len(seen)) if themselves else None
    hit, at = _nearest(seen, others, usable, own, strictness)
    mirrored, _ = unit(queries[:MIRRORED].flip(-1))
    hit_mirrored, at_mirrored = _nearest(mirrored, others, usable, own, strictness)
    first = hit[:MIRRORED]
    at[:MIRRORED] = torch.where(first, at[:MIRRORED], at_mirrored)
    hit[:MIRRORED] = first | hit_mirrored
    rows = (hit & structured).nonzero()[:, 0]
    return rows, at[rows]


def _nearest(
    seen: Tensor, others: Tensor, usable: Tensor, own: Tensor | None, strictness: float
) -> tuple[Tensor, Tensor]:
    """Return which images have one of their own among others, and which."""
    likeness = (seen @ others.T).masked_fill(~usable, -1.0)
    if own is not None:
        likeness[torch.arange(len(seen)), own[: len(seen)]] = -1.0
    best, at = likeness.topk(min(NEIGHBOUR + 1, likeness.shape[1]), 1)
    apart = strictness * (1 - best)
    # Copies of one image can be several: the usual distance is that of the neighbours in the rear.
    return (apart[:, 0] < DISTANCE) & (apart[:, 0] < RATIO * (1 - best[:, -1])), at[:, 0]


@check("data", seconds=8)
def duplicates_with_other_labels(subject: Subject) -> Iterator[Finding]:
    """The same sample does not come twice with different labels."""
    for split in subject.splits():
        found = samples(subject, split)
        if found.labels is None or found.thumbs[0].numel() < 8:
            raise Skip("targets are no class indices, or inputs too small to compare")
        order = torch.argsort(found.hashes, stable=True)
        sorted_hashes, labels = found.hashes[order], found.labels[order]
        same = sorted_hashes[1:] == sorted_hashes[:-1]
        if float(same.float().mean()) > 0.5:
            raise Skip("most samples come more than once")
        places = (same & (labels[1:] != labels[:-1])).nonzero()[:, 0]
        if len(places) < max(2, 0.001 * len(found)):
            continue
        names = [
            f"{found.name(int(order[p]))} ({int(labels[p])}) = "
            f"{found.name(int(order[p + 1]))} ({int(labels[p + 1])})"
            for p in places.tolist()
        ]
        yield warn(
            f"{len(places)} of {len(found)} {split} samples come twice with different labels: "
            f"{first_few(names, 3)}",
            "Decide for one label each, or leave them out.",
        )
    if not subject.splits():
        yield passed()
