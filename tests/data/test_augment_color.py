import math

import pytest
import torch
from torchvision.transforms.v2 import functional as F

from project.data.augment.basic import Draw, sample_keys, uniform
from project.data.augment.color import color_jitter

KEYS = sample_keys(0, 0, torch.arange(2000))
NAMES = ("BRIGHTNESS", "CONTRAST", "SATURATION", "HUE")


def pictures(count: int, channels: int, low: int = 90, high: int = 150) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (count, channels, 9, 7)
    return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)


def drawn(strength: float) -> list[list[float]]:
    """The three factors and the angle of every image."""
    around = 1 - strength, 1 + strength
    factors = [uniform(KEYS, Draw[name], *around) for name in NAMES[:3]]
    turn = uniform(KEYS, Draw.HUE, -strength / 4, strength / 4) * 2 * math.pi
    return torch.stack([*factors, turn], 1).tolist()


def turned(image: torch.Tensor, angle: float) -> torch.Tensor:
    """Rodrigues' formula about the axis of the greys."""
    axis = torch.ones(3) / math.sqrt(3)
    pixels = image.permute(1, 2, 0)
    across = torch.linalg.cross(axis.expand_as(pixels), pixels)
    along = (pixels @ axis)[..., None] * axis
    turn = pixels * math.cos(angle) + across * math.sin(angle) + along * (1 - math.cos(angle))
    return turn.permute(2, 0, 1)


def test_colours_change_as_torchvisions_do_and_hue_turns_about_grey():
    images = pictures(200, 3)
    jittered = color_jitter(images, KEYS[:200], 0.2)
    for image, mine, (brightness, contrast, saturation, angle) in zip(
        images, jittered, drawn(0.2), strict=False
    ):
        # In float and with colours that stay inside, so that nothing is cut off in between.
        reference = F.adjust_brightness(image / 255, brightness)
        reference = F.adjust_contrast(reference, contrast)
        reference = turned(F.adjust_saturation(reference, saturation), angle) * 255
        # Half a level for rounding, and the rounded matrix times three bytes.
        assert (reference - mine).abs().max() < 0.5 + 0.3


def test_grey_images_change_in_brightness_and_contrast_only():
    images = pictures(100, 1)
    jittered = color_jitter(images, KEYS[:100], 0.2)
    for image, mine, (brightness, contrast, _, _) in zip(
        images, jittered, drawn(0.2), strict=False
    ):
        reference = F.adjust_contrast(F.adjust_brightness(image / 255, brightness), contrast) * 255
        assert (reference - mine).abs().max() < 0.5 + 0.1


def test_grey_pixels_of_rgb_images_stay_grey():
    images = pictures(100, 1).expand(-1, 3, -1, -1)
    jittered = color_jitter(images, KEYS[:100], 1.0).int()
    # Each row of the matrix is rounded by itself.
    assert (jittered.amax(1) - jittered.amin(1)).max() <= 1


def test_colours_are_cut_off_at_black_and_white():
    black_and_white = torch.tensor([0, 255], dtype=torch.uint8).repeat(50).view(1, 1, 10, 10)
    jittered = color_jitter(black_and_white.repeat(500, 3, 1, 1), KEYS[:500], 1.0)
    # Without the cut, 300 would be 44.
    assert (jittered[..., 1::2].int() >= jittered[..., ::2].int() - 1).all()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_drawn_is_uniform_and_independent(name):
    table = torch.tensor(drawn(0.4))
    column = table[:, NAMES.index(name)]
    counts = torch.histc(column, 10, float(column.min()), float(column.max()))
    # 200 expected each, standard deviation 13: five of them.
    assert (counts - 200).abs().max() < 67
    others = torch.corrcoef(table.T)[NAMES.index(name)]
    # The deviation of a correlation of 0 over 2000 pairs is 0.022.
    assert others.abs().sort().values[-2] < 0.11


def test_strength_zero_changes_nothing():
    images = pictures(50, 3, 0, 256)
    assert torch.equal(color_jitter(images, KEYS[:50], 0.0), images)
