"""What a comparison of a file with its run accepts and refuses."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from project.export.check import Outcome, compare, refer
from project.export.samples import find_samples
from project.export.whole import Whole
from project.mistakes import RunFailed, UserError
from project.runs import LoadedRun


def outcome(**found) -> Outcome:
    same = {"difference": 1e-6, "scale": 1.0, "accuracy": 0.9, "own": 0.9, "agreement": 1.0}
    return Outcome(**{**same, "images": 100, "tolerance": 0.02, **found})


@pytest.mark.parametrize(
    ("found", "int8", "said"),
    [
        ({}, False, None),
        ({"difference": 0.03}, False, "differ by 0.03"),
        ({"difference": 0.03, "scale": 10.0}, False, None),  # of logits, which are large
        ({"difference": float("nan")}, False, "not finite"),
        ({"difference": float("nan")}, True, "not finite"),
        ({"difference": 0.5}, True, None),
        ({"accuracy": 0.87}, True, "accuracy falls from 0.9000 to 0.8700"),
        ({"accuracy": 0.95}, True, None),
        ({"accuracy": None, "own": None}, True, None),
        ({"agreement": 0.95}, True, "5.0% of the images"),
    ],
)
def test_a_verdict(found: dict[str, float], int8: bool, said: str | None) -> None:
    failure = outcome(**found).failure(int8)
    assert (failure is None) if said is None else (failure is not None and said in failure)


class DropsAlways(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return F.dropout(images.flatten(1))


class TakesPairs(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.reshape(2, 64)


class DividesByZero(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) / 0


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (DropsAlways, "differ from call to call"),
        (TakesPairs, r"in task \(TakesPairs\).*fixes it(.|\n)*images.reshape"),
        (DividesByZero, "own outputs for its test images are not finite"),
    ],
)
def test_a_run_that_nothing_can_be_compared_with(
    net: type[nn.Module], said: str, untrained: LoadedRun
) -> None:
    samples = find_samples(untrained.datamodule, preprocess=True)
    with pytest.raises(RunFailed, match=said):
        refer(Whole(net(), samples.preprocess, softmax=False), samples)


def test_of_many_classes_all_probs_are_small(untrained: LoadedRun) -> None:
    samples = find_samples(untrained.datamodule, preprocess=True)
    whole = Whole(nn.Sequential(nn.Flatten(), nn.Linear(64, 1000)), samples.preprocess, True)
    uniform = SimpleNamespace(outputs=lambda batch: torch.full((len(batch), 1000), 1e-3))
    reference = refer(whole, samples)
    assert reference.every.max() < 0.02  # a tolerance of float16
    assert compare(uniform, samples, reference, tolerance=0.02).failure(int8=False)


def test_preprocess_has_to_be_what_a_test_does(
    untrained: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = untrained.datamodule
    monkeypatch.setattr(data, "on_after_batch_transfer", lambda batch, _: (batch[0] / 255, None))
    with pytest.raises(UserError, match="something else than its batches have"):
        find_samples(data, preprocess=None)
    assert find_samples(data, preprocess=False).first(1).max() == torch.tensor(1)
