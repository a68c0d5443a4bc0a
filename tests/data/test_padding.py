import torch

from project.data.padding import blank, pad

SIZES = [(3, 5), (6, 2), (1, 1)]


def images() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(1, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in SIZES
    ]


def test_batch_is_as_large_as_the_largest_height_and_width():
    batch, mask = pad(images())
    assert batch.shape == (3, 3, 6, 5)
    assert mask.shape == (3, 6, 5)
    assert batch.dtype == torch.uint8
    assert mask.dtype == torch.bool


def test_image_is_in_the_top_left_corner_and_the_mask_covers_exactly_it():
    batch, mask = pad(images())
    for (height, width), image, padded, inside in zip(SIZES, images(), batch, mask, strict=True):
        assert torch.equal(padded[:, :height, :width], image)
        assert inside[:height, :width].all()
        assert int(inside.sum()) == height * width
        assert (padded[:, ~inside] == 0).all()


def test_images_of_one_size_are_not_padded():
    same = [torch.full((1, 4, 4), value, dtype=torch.uint8) for value in (1, 2)]
    batch, mask = pad(same)
    assert torch.equal(batch, torch.stack(same))
    assert mask.all()


def test_padding_is_zero_after_normalisation_and_the_image_stays():
    batch, mask = pad(images())
    normalised = batch.float().sub_(100).div_(50)
    expected = normalised.clone()
    blanked = blank(normalised, mask)
    assert (blanked.permute(0, 2, 3, 1)[~mask] == 0).all()
    assert torch.equal(blanked.permute(0, 2, 3, 1)[mask], expected.permute(0, 2, 3, 1)[mask])
