"""Inputs as such: shape and kind in every split, finite, varied, not scrambled."""

from collections.abc import Iterator

import torch
from torch import Tensor

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.data_samples import samples
from project.doctor.checks.data_views import arrived, first_few, pairs
from project.doctor.loop import Broken


@check("data")
def input_shapes(subject: Subject) -> Iterator[Finding]:
    """Inputs have the same kind of shape and the same dtype in every split."""
    seen: dict[str, Tensor] = {}
    sizes: dict[str, set[tuple[int, ...]]] = {}
    for split in subject.splits():
        found = [inputs for inputs, _ in pairs(subject, split)]
        seen[split], sizes[split] = found[0], {tuple(x.shape[1:]) for x in found}
    if "train" not in seen:
        raise Skip("the data has no train split")
    train = seen.pop("train")
    yield _own_shape(train, subject)
    for split, inputs in seen.items():
        yield from _compared(split, inputs, train, sizes)


def _own_shape(inputs: Tensor, subject: Subject) -> Finding:
    told = f"{inputs.dtype} {tuple(inputs.shape)}".removeprefix("torch.")
    weights = next((p.dtype for p in subject.fresh_task().parameters() if p.is_floating_point()), 0)
    double = str(subject.trainer_settings.get("precision")).startswith("64")
    if inputs.dtype == torch.float64 and weights == torch.float32 and not double:
        return warn(
            f"training inputs are float64, the weights float32: {told}",
            "Convert them with .float(); numpy makes float64 unless told otherwise.",
        )
    if _channels_last(inputs) and _taken_as_they_are(subject):
        return warn(
            f"training images have their channels last: {told}",
            "Layers for images take (B, C, H, W): permute(0, 3, 1, 2), not reshape.",
        )
    return passed(told)


def _channels_last(inputs: Tensor) -> bool:
    return inputs.dim() == 4 and inputs.shape[3] in (1, 3) and inputs.shape[1] > 4


def _taken_as_they_are(subject: Subject) -> bool:
    """Whether a layer that wants channels first gets images so, or dies of it."""
    try:
        seen = arrived(subject, "train")
    except Skip:
        return False
    except Broken:
        return True
    return seen.kind.startswith("Conv") and _channels_last(seen.inputs[0])


def _compared(
    split: str, inputs: Tensor, train: Tensor, sizes: dict[str, set[tuple[int, ...]]]
) -> Iterator[Finding]:
    there, here = (tuple(x.shape) for x in (inputs, train))
    if inputs.dtype != train.dtype:
        yield fail(
            f"inputs are {inputs.dtype} in {split}, {train.dtype} in train",
            "Give all splits the same conversion.",
        )
    if inputs.dim() != train.dim() or (inputs.dim() == 4 and there[1] != here[1]):
        yield fail(
            f"a batch of {split} is {there}, one of train {here}",
            "Give all splits the same conversion; only the batch size may differ.",
        )
    elif len(sizes[split]) == len(sizes["train"]) == 1 and there[1:] != here[1:]:
        yield warn(
            f"inputs are {there[1:]} in {split}, {here[1:]} in train",
            "Resize and crop to one size, unless another one is meant for evaluation.",
        )


@check("data", seconds=8)
def finite_data(subject: Subject) -> Iterator[Finding]:
    """No input and no target is NaN or infinite."""
    for split in subject.splits():
        for inputs, targets in pairs(subject, split):
            for what, values in (("input", inputs), ("target", targets)):
                if values.is_floating_point() and not torch.isfinite(values).all():
                    yield _not_finite(split, what, values)
                    return
        try:
            found = samples(subject, split)
        except Skip:
            continue
        rows = (~found.finite).nonzero()[:, 0].tolist()
        if rows:
            names = first_few([found.name(row) for row in rows])
            yield fail(
                f"{len(rows)} of {len(found)} {split} samples hold NaN or infinity: {names}",
                "Correct these, or leave them out.",
            )


def _not_finite(split: str, what: str, values: Tensor) -> Finding:
    wrong = ~torch.isfinite(values.flatten(1) if values.dim() > 1 else values[:, None])
    rows = int(wrong.any(1).sum())
    kind = "NaN" if bool(torch.isnan(values).any()) else "infinity"
    return fail(
        f"{kind} in the {what}s of a {split} batch, in {rows} of its {len(values)} samples",
        "One such value makes every weight NaN. Look for a division by 0 (a constant channel or "
        "image), a logarithm of 0, or a missing value in the source.",
    )


@check("data", seconds=8)
def inputs_vary(subject: Subject) -> Iterator[Finding]:
    """Inputs differ from one another and are not all flat."""
    for split in subject.splits():
        found = [inputs for inputs, _ in pairs(subject, split, 4)]
        flat = torch.cat([x.flatten(1).float().std(1, correction=0) for x in found])
        if any(x[0].numel() < 8 for x in found) or not torch.isfinite(flat).all():
            continue
        share = float((flat < 1e-6).float().mean())
        first = found[0][:1]
        same = all(x.shape[1:] == first.shape[1:] and bool((x == first).all()) for x in found)
        if same and sum(map(len, found)) > 1:
            yield fail(f"all {split} inputs are the same", "Look at how a sample is read.")
        elif share > 0.5:
            yield fail(
                f"{share:.0%} of the {split} inputs have one value everywhere",
                "Look at how they are read: an integer division, a mask, a wrong scale?",
            )
        elif share > 0.05:
            yield warn(
                f"{share:.0%} of the {split} inputs have one value everywhere",
                "Look at them: empty files, a crop beside the object, a failed download?",
            )


@check("data")
def image_layout(subject: Subject) -> Finding:
    """Images have their pixels in place: no reshape where a permute was needed."""
    images = pairs(subject, "train")[0][0].float()
    if images.dim() != 4 or images.shape[1] != 3 or min(images.shape[2:]) < 16:
        raise Skip("for images of 3 channels and at least 16 pixels a side")
    size, channels = images.shape[0], images.shape[1]
    high, wide = images.shape[2:]
    now = _roughness(images)
    # The same numbers in memory, read as channels last; per-channel normalisation hides little.
    other = _roughness(images.reshape(size, high, wide, channels).permute(0, 3, 1, 2))
    if other < 0.6 * now:
        return fail(
            f"neighbouring pixels differ by {now:.2f} deviations, by {other:.2f} if the same "
            "numbers are read as (H, W, C)",
            "Use permute(2, 0, 1), not reshape or view: the channels are scrambled.",
        )
    return passed(f"neighbouring pixels differ by {now:.2f} deviations")


def _roughness(images: Tensor) -> float:
    """Return the mean difference of neighbours in a row, in standard deviations of the image."""
    spread = images.std((1, 2, 3), keepdim=True).clamp_min(1e-6)
    return float(((images[..., 1:] - images[..., :-1]).abs() / spread).mean())
