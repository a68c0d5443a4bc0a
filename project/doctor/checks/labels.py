"""Labels: their kind, their range, how many of each class."""

from collections.abc import Iterator

import torch
from torch import Tensor

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.data_samples import base_of, samples
from project.doctor.checks.data_views import classes, first_few, is_binary, pairs, width
from project.doctor.loop import Broken

IGNORED = (-100, 255)  # PyTorch's, and that of masks


@check("data", seconds=8)
def label_kind(subject: Subject) -> Finding:
    """Labels have a kind that the loss takes: class indices as int64, or probabilities."""
    inputs, targets = pairs(subject, "train")[0]
    kind = f"{targets.dtype} {tuple(targets.shape)}".removeprefix("torch.")
    if len(inputs) != len(targets):
        return fail(
            f"a batch has {len(inputs)} inputs and {len(targets)} targets",
            "Give every input one target.",
        )
    odd = _odd_kind(targets, width(subject))
    if odd is not None and _refused(subject):
        return fail(f"the training step fails with targets {kind}: {odd[0]}", odd[1])
    return passed(kind)


def _odd_kind(targets: Tensor, outputs: int | None) -> tuple[str, str] | None:
    """Return what is unusual about targets for a network with so many outputs, and the cure."""
    flat = targets.reshape(len(targets), -1)
    if targets.dim() == 2 and flat.shape[1] == outputs and outputs > 1:
        if not targets.is_floating_point():
            return "one-hot rows of integers", "Give class indices: targets.argmax(1), or .float()."
        return None
    if targets.is_floating_point() and bool((flat == flat.round()).all()):
        return "class labels as floats", "Convert them with .long(); a loss of classes takes int64."
    if targets.dim() == 2 and flat.shape[1] == 1:
        return "a second dimension of 1", "Take it off with .squeeze(1)."
    if targets.dtype in (torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool):
        return f"integers of type {targets.dtype}", "Convert them with .long()."
    return None


def _refused(subject: Subject) -> bool:
    """Whether a real training step dies of this batch."""
    try:
        subject.train(steps=1, batches=subject.batches("train"), limit_val_batches=0)
    except Broken:
        return True
    return False


@check("data")
def labels_in_range(subject: Subject) -> Finding:
    """Class labels lie between 0 and num_classes - 1."""
    count = classes(subject)
    if count is None:
        raise Skip("neither data nor task nor the network's output says num_classes")
    for split in subject.splits():
        for labels in _class_labels(subject, split, count):
            ignored = (labels == IGNORED[0]) | ((labels == IGNORED[1]) & (labels.dim() > 1))
            wrong = labels[((labels >= count) | (labels < 0)) & ~ignored]
            if len(wrong):
                says = "num_classes is" if subject.num_classes else "the network's outputs are"
                return fail(
                    f"a {split} label is {int(wrong[0])}, {says} {count}",
                    f"Number the classes from 0 to {count - 1}, or raise num_classes.",
                )
    return passed()


def _class_labels(subject: Subject, split: str, count: int) -> Iterator[Tensor]:
    """Yield labels of batches and of samples.

    Raises:
        Skip: If targets are no class indices.
    """
    for _, targets in pairs(subject, split):
        if targets.is_floating_point() or targets.dim() == 0:
            raise Skip(f"targets are {targets.dtype} of {targets.dim()} dimensions")
        if targets.dim() == 2 and targets.shape[1] == count:
            raise Skip("targets have a number for every class")
        yield targets
    try:
        labels = samples(subject, split).labels
    except Skip:
        return
    if labels is not None:
        yield labels


def counts(subject: Subject, split: str) -> Tensor | None:
    """Return how many samples of a split have each label, None if targets are no classes."""
    labels: Tensor | None = None
    try:
        labels = samples(subject, split).labels
    except Skip:
        found = [targets for _, targets in pairs(subject, split)]
        if all(t.dim() == 1 and not t.is_floating_point() for t in found):
            labels = torch.cat(found)
    if labels is None:
        return None
    labels = labels[(labels >= 0) & (labels < 100_000)]
    return torch.bincount(labels, minlength=classes(subject) or 1)


def _is_classification(subject: Subject) -> bool:
    """Whether targets are classes: integers, or floats for a network of several outputs."""
    targets = pairs(subject, "train")[0][1]
    if not targets.is_floating_point() or is_binary(targets):
        return (classes(subject) or 0) > 1
    return (width(subject) or 0) > 1


@check("data")
def labels_vary(subject: Subject) -> Iterator[Finding]:
    """Targets are not all the same."""
    for split in subject.splits():
        found = [targets for _, targets in pairs(subject, split)]
        if len({t.shape[1:] for t in found}) > 1 or sum(map(len, found)) < 2:
            continue
        whole = torch.cat(found).flatten(1) if found[0].dim() > 1 else torch.cat(found)[:, None]
        if bool((whole == whole[:1]).all()) and _sampled_constant(subject, split):
            value = f" {float(whole[0, 0]):.4g}" if whole.shape[1] == 1 else ""
            why = "A network learns to say this and nothing else. Look at how labels are read"
            yield (warn if split == "test" else fail)(
                f"all {len(whole)} {split} targets are the same:{value}",
                f"{why}; if the data are sorted by class, shuffle before splitting.",
            )


def _sampled_constant(subject: Subject, split: str) -> bool:
    """Whether that holds for samples from everywhere in the split, too."""
    try:
        labels = samples(subject, split).labels
    except Skip:
        return True
    return labels is None or bool((labels == labels[0]).all())


@check("data")
def classes_complete(subject: Subject) -> Iterator[Finding]:
    """Every class is in every split, and class indices have no gaps."""
    known = {split: counts(subject, split) for split in subject.splits()}
    found = {split: count for split, count in known.items() if count is not None}
    if "train" not in found or not _is_classification(subject):
        raise Skip("targets are no class indices")
    size = max(map(len, found.values()))
    found = {split: torch.cat([c, c.new_zeros(size - len(c))]) for split, c in found.items()}
    train, present = found.pop("train"), sum(found.values()) > 0
    missing = [k for k in range(size) if not train[k]]
    few = int(train.sum()) < 20 * size
    untaught = [k for k in missing if isinstance(present, Tensor) and present[k]]
    if untaught and not few:
        yield fail(
            f"train has no sample of class {_named(subject, untaught)}, other splits have",
            "Split so that every class is in train (stratified).",
        )
    elif missing and not few:
        yield warn(
            f"no split has a sample of class {_named(subject, missing)} of {size}",
            "Number the classes without gaps from 0, and set num_classes to how many there are.",
        )
    for split, count in found.items():
        expected = train / train.sum().clamp_min(1) * count.sum()
        lost = [k for k in range(size) if train[k] and not count[k] and expected[k] > 5]
        if lost:
            yield warn(
                f"{split} has no sample of class {_named(subject, lost)}",
                "Split every class in the same proportion (stratified), after shuffling.",
            )


def _named(subject: Subject, found: list[int]) -> str:
    names = subject.class_names
    fits = names is not None and max(found) < len(names)
    return first_few([f"{k} ({names[k]})" if fits and names else str(k) for k in found])


@check("data")
def class_balance(subject: Subject) -> Finding:
    """No class has far fewer training samples than another, unless something makes up for it."""
    count = counts(subject, "train")
    if count is None or not _is_classification(subject) or len(count) < 2:
        raise Skip("targets are no class indices")
    count = count[count > 0]
    most, least = int(count.max()), int(count.min())
    told = f"the largest class has {most} samples, the smallest {least} of {int(count.sum())} seen"
    if len(count) < 2 or most < 10 * least or most < 30:
        return passed(told)
    if remedy := _remedy(subject):
        return passed(f"{told}; {remedy} makes up for it")
    share = most / int(count.sum())
    return warn(
        told,
        f"Always saying the largest class is right in {share:.0%}: look at macro averages, and "
        "weigh the classes in the loss or draw them alike.",
    )


def _remedy(subject: Subject) -> str | None:
    """Return what makes up for unequal classes, as far as it can be seen."""
    sampler = type(getattr(subject.loader("train"), "sampler", None)).__name__
    if sampler in ("WeightedRandomSampler", "BalancedSampler"):
        return sampler
    task = subject.fresh_task()
    for module in task.modules():
        for name in ("weight", "class_weights", "pos_weight"):
            value = getattr(module, name, None)
            is_loss = "loss" in type(module).__name__.lower() or module is task
            if value is not None and is_loss:
                return f"{type(module).__name__}.{name}"
    return "class_weights" if task.hparams.get("class_weights") is not None else None


@check("data")
def class_order(subject: Subject) -> Finding:
    """Every split gives the classes the same numbers."""
    known: dict[str, object] = {}
    for split in subject.splits():
        dataset = base_of(getattr(subject.loader(split), "dataset", None))
        found = getattr(dataset, "class_to_idx", None) or getattr(dataset, "classes", None)
        if isinstance(found, dict):
            known[split] = dict(found)
        elif isinstance(found, list | tuple):
            known[split] = {str(name): i for i, name in enumerate(found)}
    for split, numbers in known.items():
        first, reference = next(iter(known.items()))
        assert isinstance(numbers, dict)
        assert isinstance(reference, dict)
        for name, number in numbers.items():
            if name in reference and reference[name] != number:
                return fail(
                    f"class {name} is {reference[name]} in {first} and {number} in {split}",
                    "Number the classes from one list for all splits: a folder that lacks a class, "
                    "or has one more, shifts the others.",
                )
    return passed()
