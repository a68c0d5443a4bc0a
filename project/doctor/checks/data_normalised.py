"""Scale of what the network gets, the same in every split, and where its constants are from."""

from collections.abc import Iterator

import torch
from torch import Tensor

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.data_samples import hashes, length
from project.doctor.checks.data_views import Arrived, arrived, pairs
from project.doctor.loop import Broken

# Beyond these, networks with the usual initialisation learn worse or not at all.
MEAN = 1.0
STD = (0.35, 2.5)
# Distance of a mean from 0 that chance does not bring about.
SURE = 2e-5
# Numbers of a split up to which all of it is read, to tell an exact mean of 0.
ROOM = 30_000_000


def _channels(inputs: list[Tensor]) -> Tensor:
    """Return ``(C, N)``: all numbers of a channel, one channel where there are no images."""
    if inputs[0].dim() == 4 and inputs[0].shape[1] <= 16:
        return torch.cat([x.transpose(0, 1).flatten(1) for x in inputs], 1)
    return torch.cat([x.flatten() for x in inputs])[None]


@check("data", seconds=8)
def normalised(subject: Subject) -> Finding:
    """What the first layer gets has a mean of about 0 and a deviation of about 1."""
    seen = arrived(subject, "train")
    values = _channels(seen.inputs)
    mean, std, low, high = (float(f(values)) for f in (torch.mean, torch.std, torch.min, torch.max))
    told = f"mean {mean:.3g}, deviation {std:.3g}, from {low:.3g} to {high:.3g}"
    if seen.normalises:
        return passed(f"{told}; the first layer, a {seen.kind}, normalises them")
    if bool(((values == 0) | (values == 1)).all()):
        raise Skip(f"the first layer gets zeros and ones: {told}")
    found = _wrong_scale(mean, std, low, high)
    if found is not None:
        status, why = found
        inputs, targets = pairs(subject, "train")[0]
        if not status and targets.is_floating_point() and targets.shape == inputs.shape:
            return passed(f"{told}; targets are images, too")
        advice = f"{why} Aim at (x - mean) / std with the training split's constants, once."
        return (fail if status else warn)(f"{seen.layer} gets {told}", advice)
    means = values.mean(1)
    if len(means) > 1 and float(means.max() - means.min()) > 1.5:
        constants = ", ".join(f"{value:.2f}" for value in means.tolist())
        return warn(
            f"the channels that {seen.layer} gets have means {constants}",
            "Are mean and std those of this data, and in the order of its channels (RGB or BGR)?",
        )
    return passed(told)


def _wrong_scale(mean: float, std: float, low: float, high: float) -> tuple[bool, str] | None:
    """Return whether it is sure to harm, and what it looks like; None if all is well."""
    if max(abs(mean), std) > 20 or high > 200:
        return True, "This looks like 0 to 255 that nobody has scaled."
    if std < 0.03:
        return True, "This looks like a division by 255 too many, or constants of another scale."
    if low >= 0 and high <= 1.001 and (std < STD[0] or mean > 0.2):
        return False, "This looks like 0 to 1, without normalisation."
    if std > STD[1]:
        return False, "This looks like normalisation done twice, or constants of another scale."
    if abs(mean) > MEAN or std < STD[0]:
        return False, "Mean and std do not fit these data."
    return None


@check("data", seconds=8)
def same_preprocessing(subject: Subject) -> Iterator[Finding]:
    """What the first layer gets is on one scale in training and evaluation."""
    train = arrived(subject, "train")
    for split in subject.splits():
        if split == "train":
            continue
        try:
            other = arrived(subject, split)
        except (Skip, Broken):
            continue
        if other.layer == train.layer and other.inputs[0].dim() == train.inputs[0].dim():
            found = list(_other_scale(split, other, train))
            yield from found or _swapped(split, _images(subject, "train"), _images(subject, split))


def _other_scale(split: str, other: Arrived, train: Arrived) -> Iterator[Finding]:
    here, there = _channels(train.inputs), _channels(other.inputs)
    if len(here) != len(there):
        return
    mean, std = (float(x) for x in (here.mean(), here.std()))
    mean_there, std_there = (float(x) for x in (there.mean(), there.std()))
    ratio, spread = std_there / max(std, 1e-9), max(std, std_there, 1e-9)
    shift = abs(mean - mean_there) / spread
    told = (
        f"{train.layer} gets mean {mean:.3g} and deviation {std:.3g} in train, "
        f"{mean_there:.3g} and {std_there:.3g} in {split}"
    )
    if not 0.5 < ratio < 2 or shift > 0.75:
        yield fail(told, f"Give {split} the same scaling and normalisation as train.")
    elif not 0.7 < ratio < 1.5 or shift > 0.35:
        yield warn(told, f"Is the preprocessing of {split} that of train?")


def _images(subject: Subject, split: str) -> Tensor:
    """Return the numbers of each channel of a split's images, ``(C, N)``."""
    seen = arrived(subject, split).inputs
    if seen[0].dim() != 4:
        seen = [inputs.float() for inputs, _ in pairs(subject, split, 4)]
    return _channels(seen)


def _swapped(split: str, here: Tensor, there: Tensor) -> Iterator[Finding]:
    """Tell RGB from BGR by means and deviations of the channels."""
    if len(here) != 3 or len(there) != 3:
        return
    one, two = (torch.cat([x.mean(1), x.std(1)]) for x in (here, there))
    order = torch.tensor([2, 1, 0, 5, 4, 3])
    straight, swapped = float((one - two).norm()), float((one - two[order]).norm())
    if straight > 0.2 and swapped < 0.3 * straight:
        yield warn(
            f"red and blue seem swapped in {split}: channel means "
            f"{_row(there.mean(1))}, in train {_row(here.mean(1))}",
            "OpenCV reads BGR, Pillow RGB: read all splits in one way.",
        )


def _row(values: Tensor) -> str:
    return " ".join(f"{value:.2f}" for value in values.tolist())


@check("data", seconds=8)
def statistics_of_train(subject: Subject) -> Finding:
    """Constants of the normalisation are from the training split alone."""
    whole = {split: _whole(subject, split) for split in subject.splits()}
    if len(whole) < 2 or "train" not in whole:
        raise Skip("needs train and another split")
    if len({len(values) for values in whole.values()}) > 1:
        raise Skip("the splits differ in their channels")
    train = whole["train"]
    if _is_standard(train, _left_out(subject)):
        others = [name for name, values in whole.items() if _is_standard(values)]
        if len(others) > 1 and not _by_sample(subject):
            return warn(
                f"{', '.join(others)} have mean 0 and deviation 1 exactly, each by itself: every "
                "split is normalised by constants of its own",
                "Use the training split's for all: a single new image has none of its own.",
            )
        return passed("train has mean 0 and deviation 1 exactly")
    mean, std = float(train.mean()), float(train.std())
    exact = [split for split, values in whole.items() if _is_standard(values, room=SURE)]
    # Several by constants of their own: augmentation may be what moves train.
    rest = torch.cat([values for split, values in whole.items() if split not in exact], 1)
    own = _is_standard(rest)
    told = f"train: mean {mean:.3g}, deviation {std:.3g}"
    if not _stable(subject):
        return passed(f"{told}, augmented or drawn")
    if len(exact) == 1 and not own and max(abs(mean), abs(std - 1)) > 1e-3:
        split = exact[0]
        return fail(
            f"{split} has mean 0 and deviation 1 exactly, train {mean:.3g} and {std:.3g}: the "
            f"constants of the normalisation are from {split}",
            "Compute them from the training split.",
        )
    if not exact and _is_standard(torch.cat(list(whole.values()), 1), room=SURE):
        return warn(
            f"{', '.join(whole)} together have mean 0 and deviation 1 exactly: the constants of "
            "the normalisation are from all data",
            "Compute them from the training split alone, after the split.",
        )
    return passed(told)


def _by_sample(subject: Subject) -> bool:
    """Whether every input has a mean of 0 by itself."""
    inputs = pairs(subject, "train", 1)[0][0].float().flatten(1)
    return float(inputs.mean(1).abs().max()) < 1e-2


def _whole(subject: Subject, split: str) -> Tensor:
    """Return all numbers of a split by channel, or by feature.

    Raises:
        Skip: If they are too many.
    """
    loader = subject.loader(split)
    try:
        count = len(loader)
    except TypeError as error:
        raise Skip(f"the {split} loader has no length") from error
    first = pairs(subject, split, 1)[0][0]
    if not first.is_floating_point() or first.numel() * count > ROOM:
        raise Skip(f"inputs of {split} are too many, or no floats, to tell an exact mean")
    reading = subject.reading(split, max(count, 1) + 1)
    if not reading.complete:
        raise Skip(f"no time to read all of {split}")
    found = [batch[0].float() for batch in reading.batches]
    if len({x.shape[1:] for x in found}) > 1:
        raise Skip("inputs have different sizes")
    if found[0].dim() == 2:
        return torch.cat(found).T
    return _channels(found)


def _stable(subject: Subject) -> bool:
    """Whether two passes train on the same inputs: else their mean says little of the data."""
    count = len(subject.loader("train")) + 1
    one, two = (
        torch.cat([hashes(batch[0]) for batch in subject.reading("train", count, seed).batches])
        for seed in (None, subject.seed + 1)
    )
    return float(torch.isin(torch.unique(one), two).sum()) > 0.8 * len(one)


def _left_out(subject: Subject) -> float:
    """Return the share of training samples that fill no batch."""
    dataset = getattr(subject.loader("train"), "dataset", None)
    read = sum(len(batch[0]) for batch in subject.reading("train", 1).batches)
    return 0.0 if dataset is None else max(0.0, 1 - read / max(1, length(dataset)))


def _is_standard(values: Tensor, missing: float = 0.0, room: float = 1e-4) -> bool:
    """Whether a mean of 0 and a deviation of 1 were computed from these very numbers.

    Args:
        values: ``(C, N)``.
        missing: Share of the numbers that are missing here, which may have moved both.
        room: How near to 0 a mean must be.
    """
    numbers, room = values.double(), room + 3 * missing
    # Deviations are computed with N or with N - 1.
    spread = 10 * room + 1 / numbers.shape[1]
    mean, std = numbers.mean(1), numbers.std(1)
    whole = abs(numbers.mean()) < room and abs(numbers.std() - 1) < spread
    return bool(whole) or bool(((mean.abs() < room) & ((std - 1).abs() < spread)).all())
