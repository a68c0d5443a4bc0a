"""How many samples there are in what a loader makes."""

import pytest
import torch

from project.batches import samples_of

IMAGES = torch.zeros(7, 1, 2, 2)


@pytest.mark.parametrize(
    "batch",
    [
        IMAGES,
        [IMAGES, 3],
        {"x": (IMAGES, None)},
        {"meta": {"name": "a"}, "scale": torch.tensor(2.0), "x": IMAGES},
        ({}, [], IMAGES),
    ],
)
def test_samples_are_counted_in_whatever_a_batch_is(batch: object) -> None:
    assert samples_of(batch) == 7


@pytest.mark.parametrize("batch", [torch.tensor(1.0), "text", [], {}, None])
def test_what_has_no_length_is_one_sample(batch: object) -> None:
    assert samples_of(batch) == 1
