import pytest
import torch
from torchvision.transforms.v2 import InterpolationMode, RandAugment

from project.data.augment.basic import Draw, draw, sample_keys
from project.data.augment.rand_augment import COLOR, GEOMETRIC, rand_augment

OPERATIONS = [*GEOMETRIC, *COLOR]
KEYS = sample_keys(0, 0, torch.arange(4000))
FILL = torch.tensor([10.0, 20.0, 30.0])[:, None, None]


def pictures(count: int, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (count, channels, 24, 17)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("magnitude", [0, 9, 22, 30])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_operation_is_torchvisions(magnitude: int, channels: int):
    images, fill = pictures(2, channels), FILL.flatten().tolist()[:channels]
    theirs = RandAugment(fill=fill)
    names = list(theirs._AUGMENTATION_SPACE)
    assert len(names) == len(OPERATIONS)
    for name, operation in zip(names, OPERATIONS, strict=True):
        values, signed = theirs._AUGMENTATION_SPACE[name]
        table = values(31, 24, 17)
        for sign in (1, -1):
            value = 0.0 if table is None else float(table[magnitude])
            expected = theirs._apply_image_or_video_transform(
                images,
                name,
                value * (sign if signed else 1),
                InterpolationMode.NEAREST,
                theirs._fill,
            )
            got = operation(images, sign * magnitude / 30, fill)
            # One level: torchvision has strengths in float32.
            assert (got.int() - expected.int()).abs().max() <= 1, (name, sign)


def test_every_image_gets_its_two_operations_in_order():
    images = pictures(200)
    changed = rand_augment(images, KEYS[:200], 12, FILL)
    for row, key in enumerate(KEYS[:200].tolist()):
        image = images[row : row + 1]
        for turn in (0, 1):
            operation = OPERATIONS[draw(key, Draw.OPERATION + turn, len(OPERATIONS))]
            sign = -1 if draw(key, Draw.SIGN + turn, 2) else 1
            image = operation(image, sign * 12 / 30, FILL.flatten().tolist())
        assert torch.equal(changed[row], image[0])


def test_operations_and_signs_are_drawn_equally_often_and_independently():
    first, second = (draw(KEYS, Draw.OPERATION + turn, 14) for turn in (0, 1))
    for chosen in (first, second):
        # 286 expected each, standard deviation 16: five of them.
        assert (torch.bincount(chosen, minlength=14) - 4000 / 14).abs().max() < 82
    pairs = torch.bincount(first * 14 + second, minlength=196)
    # 20 expected each, standard deviation 4.5: five of them.
    assert (pairs - 4000 / 196).abs().max() < 23
    signs = draw(KEYS, Draw.SIGN, 2) * 2 + draw(KEYS, Draw.SIGN + 1, 2)
    assert (torch.bincount(signs, minlength=4) - 1000).abs().max() < 137


def test_images_that_are_neither_grey_nor_rgb_are_only_moved():
    images = torch.full((300, 4, 12, 12), 77, dtype=torch.uint8)
    changed = rand_augment(images, KEYS[:300], 20, torch.full((4, 1, 1), 5.0))
    assert set(changed.unique().tolist()) == {5, 77}
