import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from project.data.augment.augmentation import Augmentation
from project.data.augment.basic import (
    Draw,
    draw,
    random_erase,
    random_flip,
    random_rotation,
    random_shift,
    sample_keys,
    uniform,
)
from project.data.augment.color import color_jitter
from project.data.augment.crop import random_resized_crop
from project.data.augment.rand_augment import rand_augment
from project.data.hashing import mix, scramble

INDEX = torch.arange(4000)
FILL = torch.tensor([7, 8, 9])[:, None, None]
CHANGES = {
    "shift": lambda images, keys: random_shift(images, keys, 2),
    "flip": random_flip,
    "vertical_flip": lambda images, keys: random_flip(images, keys, vertical=True),
    "erase": lambda images, keys: random_erase(images, keys, 3, FILL),
    "rotation": lambda images, keys: random_rotation(images, keys, 90, FILL),
    "random_resized_crop": lambda images, keys: random_resized_crop(images, keys, (0.1, 1.0)),
    "color_jitter": lambda images, keys: color_jitter(images, keys, 0.5),
    "rand_augment": lambda images, keys: rand_augment(images, keys, 9, FILL),
}


def pictures(count: int = 4000, channels: int = 3, size: int = 6) -> Tensor:
    # Every pixel differs from its neighbours and none is 0.
    return (
        (torch.arange(count * channels * size * size) % 251 + 1)
        .to(torch.uint8)
        .view(count, channels, size, size)
    )


def test_scramble_is_the_published_hash_on_tensors_and_integers():
    # The published C code in 32-bit unsigned arithmetic, written once more.
    words = [0, 1, 2, 0xDEADBEEF, 0xFFFFFFFF]

    def reference(x: int) -> int:
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ x >> 16

    expected = [reference(word) for word in words]
    assert [scramble(word) for word in words] == expected
    assert scramble(torch.tensor(words)).tolist() == expected


def test_mix_minds_the_order_of_its_words():
    assert mix(1, 2) != mix(2, 1)
    assert len({mix(a, b) for a in range(100) for b in range(100)}) == 10_000


@pytest.mark.parametrize("name", CHANGES)
def test_change_depends_on_seed_epoch_and_index_not_on_the_batch(name):
    change, images = CHANGES[name], pictures(400, size=12)
    whole = change(images, sample_keys(1, 2, INDEX[:400]))
    part = change(images[100:107], sample_keys(1, 2, INDEX[100:107]))
    assert torch.equal(whole[100:107], part)
    assert torch.equal(change(images[7:8], sample_keys(1, 2, INDEX[7:8])), whole[7:8])
    for seed, epoch in ((2, 2), (1, 3)):
        assert not torch.equal(whole, change(images, sample_keys(seed, epoch, INDEX[:400])))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CHANGES)
def test_change_keeps_shape_and_type_and_leaves_its_input_alone(name, channels):
    images = pictures(50, channels).view(50, channels, 4, 9)
    before = images.clone()
    fill = torch.full((channels, 1, 1), 7)
    change = {
        "erase": lambda images, keys: random_erase(images, keys, 3, fill),
        "rotation": lambda images, keys: random_rotation(images, keys, 90, fill),
        "rand_augment": lambda images, keys: rand_augment(images, keys, 9, fill),
    }.get(name, CHANGES[name])
    changed = change(images, sample_keys(0, 0, INDEX[:50]))
    assert changed.dtype == torch.uint8
    assert changed.shape == images.shape
    assert torch.equal(images, before)
    assert not torch.equal(images, changed)


@pytest.mark.parametrize("name", ["shift", "flip", "vertical_flip", "erase"])
def test_float_images_change_in_the_same_way(name):
    images, keys = pictures(), sample_keys(1, 2, INDEX)
    assert torch.equal(CHANGES[name](images.float(), keys), CHANGES[name](images, keys).float())


def test_one_sample_draws_what_it_draws_in_a_batch():
    keys = sample_keys(3, 4, INDEX[:50])
    assert [sample_keys(3, 4, index) for index in range(50)] == keys.tolist()
    assert [draw(key, Draw.CROP_X, 1000) for key in keys.tolist()] == draw(
        keys, Draw.CROP_X, 1000
    ).tolist()
    ones = [uniform(key, Draw.ANGLE, 0.0, 1.0) for key in keys.tolist()]
    assert ones == uniform(keys, Draw.ANGLE, 0.0, 1.0).tolist()


def test_uniform_is_uniform():
    drawn = uniform(sample_keys(0, 0, INDEX), Draw.ANGLE, -3.0, 5.0)
    counts = torch.histc(drawn, 8, -3, 5)
    assert counts.sum() == len(INDEX)
    # 500 expected each, standard deviation 21: five of them.
    assert (counts - 500).abs().max() < 105


def test_what_a_shift_brings_in_has_the_colour_asked_for():
    shifted = random_shift(pictures(size=8), sample_keys(0, 0, INDEX), 8, FILL)
    gone = (shifted == FILL).flatten(1).all(1)  # by 8 along one axis: 32 + 1 of 289 shifts twice
    assert gone.any()
    corner = random_shift(torch.full((4000, 3, 8, 8), 50), sample_keys(0, 0, INDEX), 1, FILL)
    assert torch.equal(corner.flatten(2).amin((0, 2)), FILL.flatten())


def test_vertical_flip_turns_half_of_the_images_upside_down_whatever_flip_does():
    images, keys = pictures(channels=1), sample_keys(0, 0, INDEX)
    upside = random_flip(images, keys, vertical=True)
    turned = (upside == images.flip(-2)).flatten(1).all(1)
    assert (turned ^ (upside == images).flatten(1).all(1)).all()
    mirrored = (random_flip(images, keys) == images.flip(-1)).flatten(1).all(1)
    # 1000 expected of each pair, standard deviation 27: five of them.
    pairs = torch.bincount(turned.int() * 2 + mirrored.int(), minlength=4)
    assert (pairs - 1000).abs().max() < 137


@pytest.mark.parametrize("size", [(16, 16), (11, 20)])
def test_rotation_is_torchvisions_with_an_angle_in_the_range(size):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 3, *size), generator=generator, dtype=torch.uint8)
    keys = sample_keys(0, 0, INDEX[:40])
    rotated = random_rotation(images, keys, 50, FILL)
    angles = uniform(keys, Draw.ANGLE, -50.0, 50.0).tolist()
    assert min(angles) < -40
    assert max(angles) > 40
    # In a wide frame of the fill, whose own border, where torchvision fades twice, is far away.
    framed = FILL.byte().expand(40, 3, size[0] + 32, size[1] + 32).clone()
    framed[..., 16:-16, 16:-16] = images
    for image, angle, turned in zip(framed, angles, rotated, strict=True):
        reference = F.rotate(image, angle, F.InterpolationMode.BILINEAR)[..., 16:-16, 16:-16]
        # One level: coordinates of another size are rounded otherwise.
        assert (reference.int() - turned.int()).abs().max() <= 1


def test_shift_is_a_padded_crop_and_reaches_every_offset_equally():
    images = pictures()
    shifted = random_shift(images, sample_keys(0, 0, INDEX), 1)
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
    crops = torch.stack([padded[:, :, y : y + 6, x : x + 6] for y in range(3) for x in range(3)])
    hits = (crops == shifted).flatten(2).all(-1)  # (9, N)
    assert (hits.sum(0) == 1).all()
    # 444 expected each, standard deviation 20: five of them.
    assert (hits.sum(1) - 444).abs().max() < 100


def test_flip_mirrors_half_of_the_images():
    images = pictures()
    flipped = random_flip(images, sample_keys(0, 0, INDEX))
    mirrored = (flipped == images.flip(-1)).flatten(1).all(1)
    same = (flipped == images).flatten(1).all(1)
    assert (mirrored ^ same).all()
    # 2000 expected, standard deviation 32: five of them.
    assert abs(int(mirrored.sum()) - 2000) < 160


@pytest.mark.parametrize("axis", [-1, -2])
def test_large_images_are_mirrored_as_small_ones(axis: int):
    large = torch.randint(256, (40, 3, 120, 110), dtype=torch.uint8)
    keys = sample_keys(0, 0, torch.arange(40))
    whole = random_flip(large, keys, vertical=axis == -2)
    corner = random_flip(large[..., :8, :8], keys, vertical=axis == -2)
    small = torch.where((corner == large[..., :8, :8]).flatten(1).all(1)[:, None, None, None], 0, 1)
    assert 0 < small.sum() < 40
    assert torch.equal(whole, torch.where(small == 1, large.flip(axis), large))


def test_shift_and_flip_of_an_image_are_independent():
    images = pictures(channels=1)
    keys = sample_keys(0, 0, INDEX)
    flipped = (random_flip(images, keys) == images.flip(-1)).flatten(1).all(1)
    # Shifted down if the first row came in as zeros.
    down = (random_shift(images, keys, 1)[:, 0, 0] == 0).all(1)
    together = torch.corrcoef(torch.stack([flipped.float(), down.float()]))[0, 1]
    # The deviation of a correlation of 0 over 4000 pairs is 0.016.
    assert together.abs() < 0.08


def test_erase_paints_one_square_in_every_image():
    images = pictures(size=16)
    fill = torch.tensor([7, 8, 9])[:, None, None]
    erased = random_erase(images, sample_keys(0, 0, INDEX), 4, fill)
    changed = (erased != images).any(1)
    rows, cols = changed.any(2).sum(1), changed.any(1).sum(1)
    # Parts may lie outside, so at least half of it remains along each axis.
    assert (rows <= 4).all()
    assert (rows >= 2).all()
    assert (cols >= 2).all()
    assert torch.equal(erased[:, :, 8, 8][changed[:, 8, 8]].unique(dim=0), fill.view(1, 3))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_changes_images_as_the_cpu_does():
    images = pictures()

    for name, change in CHANGES.items():
        on_cpu = change(images, sample_keys(1, 2, INDEX))
        for index in (INDEX, INDEX.cuda()):
            on_cuda = change(images.cuda(), sample_keys(1, 2, index)).cpu()
            # Interpolation of rotations, and torchvision's of colours, is float.
            tolerance = 1 if name in ("rotation", "rand_augment") else 0
            differs = (on_cuda.int() - on_cpu.int()).abs() > tolerance
            # A nearest neighbour that is a tie may be another one, and so may equalize's bin.
            assert differs.float().mean() <= (0.001 if name == "rand_augment" else 0), name


def test_alternating_flips_show_every_image_from_both_sides_in_two_epochs():
    class Data(Augmentation):
        pass

    data, images = (
        Data(flip="alternating"),
        torch.arange(64 * 12, dtype=torch.uint8).view(64, 1, 3, 4),
    )
    first, second, third = (data.augment(images, torch.arange(64), epoch) for epoch in range(3))
    assert torch.equal(second, first.flip(-1))
    assert torch.equal(third, first)
    mirrored = (first != images).flatten(1).any(1)
    assert 16 < int(mirrored.sum()) < 48  # at random, half of them
