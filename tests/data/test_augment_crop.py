import math

import torch
from torchvision.transforms.v2 import RandomResizedCrop
from torchvision.transforms.v2 import functional as F

from project.data.augment.basic import sample_keys
from project.data.augment.crop import random_resized_box, random_resized_crop

KEYS = sample_keys(0, 0, torch.arange(4000))


def boxes(height: int, width: int, scale: tuple[float, float]) -> torch.Tensor:
    return torch.tensor([random_resized_box(k, height, width, scale) for k in KEYS.tolist()])


def test_crop_is_torchvisions_of_the_same_box_to_one_level():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (60, 3, 40, 25), generator=generator, dtype=torch.uint8)
    cropped = random_resized_crop(images, KEYS[:60], (0.08, 1.0))
    for image, key, mine in zip(images, KEYS.tolist(), cropped, strict=False):
        box = random_resized_box(key, 40, 25, (0.08, 1.0))
        reference = F.resized_crop(image, *box, [40, 25], antialias=False)
        # Weights are rounded to a 256th: half a level along each axis at most, and rounding.
        assert (reference.int() - mine.int()).abs().max() <= 2


def test_whole_image_is_left_as_it_is():
    images = torch.arange(4 * 3 * 12 * 12).to(torch.uint8).view(4, 3, 12, 12)
    whole = [k for k in KEYS.tolist() if random_resized_box(k, 12, 12, (1.0, 1.0))[2:] == (12, 12)]
    keys = torch.tensor(whole[:4])
    assert torch.equal(random_resized_crop(images, keys, (1.0, 1.0)), images)


def test_boxes_lie_in_the_image_and_have_the_shares_and_ratios_asked_for():
    top, left, height, width = boxes(300, 400, (0.1, 0.5)).unbind(1)
    assert ((top >= 0) & (left >= 0) & (top + height <= 300) & (left + width <= 400)).all()
    share = height * width / (300 * 400)
    # Sides are whole pixels: half a pixel of about 100.
    assert share.min() > 0.1 * 0.98
    assert share.max() < 0.5 * 1.02
    ratio = width / height
    assert ratio.min() > 3 / 4 * 0.98
    assert ratio.max() < 4 / 3 * 1.02
    # Uniform where every box fits: deviations over sqrt(4000), five of them.
    assert abs(float(share.mean()) - 0.3) < 5 * 0.4 / math.sqrt(12 * 4000)
    spread = 2 * math.log(4 / 3) / math.sqrt(12 * 4000)
    assert abs(float(ratio.log().mean())) < 5 * spread + 0.002


def test_boxes_are_distributed_as_torchvisions():
    torch.manual_seed(0)
    image = torch.empty(3, 48, 64)
    transform = RandomResizedCrop(8, scale=(0.08, 1.0))
    drawn = [transform.make_params([image]) for _ in range(4000)]
    theirs = torch.tensor([[d[k] for k in ("top", "left", "height", "width")] for d in drawn])
    mine = boxes(48, 64, (0.08, 1.0))
    for a, b in zip(mine.float().unbind(1), theirs.float().unbind(1), strict=True):
        # Of the difference of two means, five deviations.
        assert abs(a.mean() - b.mean()) < 5 * math.sqrt((a.var() + b.var()) / 4000)
        assert abs(a.std() / b.std() - 1) < 0.1


def test_where_no_box_fits_the_middle_is_taken():
    assert set(map(tuple, boxes(10, 1000, (0.9, 1.0)).tolist())) == {(0, 493, 10, 13)}
    assert set(map(tuple, boxes(1000, 10, (0.9, 1.0)).tolist())) == {(493, 0, 13, 10)}


def test_a_single_pixel_has_a_box():
    assert set(map(tuple, boxes(1, 1, (0.08, 1.0)).tolist())) == {(0, 0, 1, 1)}
