"""What a model does not know and what nobody has measured: a section of the model card."""

import numpy as np

from project.confusion import Counts, cell
from project.export.evaluation import Evaluation, wilson
from project.export.seen import Seen

UNKNOWN = "unknown"
_MISTAKES = 3  # pairs of classes
_OFTEN = 3  # fewer mistakes of a pair are chance
_UNEVEN = 4  # times as many training images in one class as in another are worth a line


def card_limits(found: Evaluation, seen: Seen, names: list[str], chosen_by: str) -> list[str]:
    """Return a line for each.

    Args:
        found: The evaluation.
        seen: The data.
        names: Of the rows of the confusion matrix.
        chosen_by: The score that chose the checkpoint, if one did.
    """
    return [
        f"It has seen {count(seen.counts['train'])} training images, and gives every image one of "
        "its classes, also one that shows none of them. A high probability does not say that an "
        "image is like those it has seen. How it does on others was not measured, nor whether its "
        "probabilities are calibrated.",
        f"The figures are of the {found.split} split alone. On images from elsewhere (another "
        "camera, place, time or person) it may do worse.",
        ("The intervals are about chance in the choice of these images. " * bool(found.intervals))
        + "This is one training with one seed; another gives somewhat other figures.",
        *_choice(found.split, chosen_by),
        *(_rarest(found.counts, found.split, names) if names else []),
        *(_mistakes(found.counts, names) if names else []),
        *_uneven(seen.class_counts, names),
    ]


def _choice(split: str, chosen_by: str) -> list[str]:
    if split == "val":
        return [
            "There is no test split. The validation split may have had a part in the training "
            "(early stopping, choice of the checkpoint), so its figures are on the good side."
        ]
    chosen = f"The checkpoint was chosen by {chosen_by}, so the run's validation scores are on the "
    return [f"{chosen}good side; the test split had no part in it."] if chosen_by else []


def _rarest(counts: Counts | None, split: str, names: list[str]) -> list[str]:
    """Say how little the figures of the class with the fewest images are worth."""
    if counts is None or not counts.any():
        return []
    support = counts.sum(axis=1)
    there = np.flatnonzero(support)
    row = int(there[support[there].argmin()])
    right, total = int(counts[row, row]), int(support[row])
    low, high = wilson(right, total)
    return [
        f"Figures of a class are as uncertain as its images are few: {cell(names[row])} has "
        f"{total:,} in the {split} split, and a recall of {right / total:.4f}, 95 % interval "
        f"(Wilson) {low:.4f} – {high:.4f}."
    ]


def _mistakes(counts: Counts | None, names: list[str]) -> list[str]:
    """Name the classes that are taken for others more often than all other pairs, if there are."""
    if counts is None:
        return []
    wrong = counts * (1 - np.eye(len(counts), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")
    others = int(wrong.flat[order[_MISTAKES]]) if len(order) > _MISTAKES else 0
    pairs = [divmod(int(at), len(counts)) for at in order[:_MISTAKES]]
    said = [
        f"{cell(names[true])} for {cell(names[taken])} ({wrong[true, taken]} of "
        f"{counts[true].sum():,})"
        for true, taken in pairs
        if wrong[true, taken] >= max(_OFTEN, others + 1)
    ]
    return [f"Most often it takes {', '.join(said)}."] if said else []


def _uneven(counts: list[int] | None, names: list[str]) -> list[str]:
    if not counts or len(counts) != len(names) or max(counts) < _UNEVEN * max(1, min(counts)):
        return []
    few, many = (counts.index(pick(counts)) for pick in (min, max))
    return [
        f"Training was uneven: {counts[few]:,} images of {cell(names[few])}, {counts[many]:,} of "
        f"{cell(names[many])}."
    ]


def known(value: object) -> str:
    """Say a fact, or that it is unknown."""
    return UNKNOWN if value is None else str(value)


def count(value: int | None) -> str:
    """Say a number of images, or that it is unknown."""
    return UNKNOWN if value is None else f"{value:,}"
