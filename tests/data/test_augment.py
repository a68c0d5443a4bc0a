import pytest
import torch
from torch import Tensor

from project.data.augment import random_erase, random_flip, random_shift, sample_keys
from project.data.hashing import mix, scramble

INDEX = torch.arange(4000)


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


@pytest.mark.parametrize(
    "change",
    [
        lambda images, keys: random_shift(images, keys, 2),
        random_flip,
        lambda images, keys: random_erase(images, keys, 3, torch.zeros(3, 1, 1)),
    ],
)
def test_change_depends_on_seed_epoch_and_index_not_on_the_batch(change):
    images = pictures()
    whole = change(images, sample_keys(1, 2, INDEX))
    part = change(images[100:107], sample_keys(1, 2, INDEX[100:107]))
    assert torch.equal(whole[100:107], part)
    assert whole.dtype == torch.uint8
    assert torch.equal(change(images.float(), sample_keys(1, 2, INDEX)), whole.float())
    for seed, epoch in ((2, 2), (1, 3)):
        assert not torch.equal(whole, change(images, sample_keys(seed, epoch, INDEX)))


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

    def change(device: str) -> Tensor:
        keys = sample_keys(1, 2, INDEX.to(device))
        moved = random_flip(random_shift(images.to(device), keys, 2), keys)
        return random_erase(moved, keys, 3, torch.zeros(3, 1, 1)).cpu()

    assert torch.equal(change("cuda"), change("cpu"))
