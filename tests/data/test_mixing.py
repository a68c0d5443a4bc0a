import pytest
import torch

from project.data.augment.mixing import mix_batch, probabilities
from project.data.hashing import mix
from project.mistakes import UserError

CLASSES = 7


def batch(count: int = 12, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    # Every image has one value, its own, so that one sees what came from where.
    values = torch.arange(1, count + 1).float()[:, None, None, None]
    return values.expand(count, 3, size, size).clone(), torch.arange(count) % CLASSES


def partner_of(labels: torch.Tensor, targets: torch.Tensor) -> int:
    """How many places ahead the other image is."""
    count = len(labels)
    own = torch.nn.functional.one_hot(labels, CLASSES).float()
    for ahead in range(1, count):
        other = own.roll(ahead, 0)
        shares = ((targets - other) / (own - other)).nan_to_num(posinf=0, neginf=0)
        share = shares.flatten()[shares.flatten().nonzero()[0, 0]] if shares.any() else 0.0
        if torch.allclose(own * share + other * (1 - share), targets, atol=1e-5):
            return ahead
    raise AssertionError("no partner explains the targets")


@pytest.mark.parametrize("key", range(5))
def test_mixup_blends_images_as_it_blends_labels(key: int):
    images, _ = batch()
    labels = torch.arange(12) % 4 + 3 * (torch.arange(12) > 9)
    mixed, targets = mix_batch(images, labels, CLASSES, mix(key), mixup=1.0)
    assert targets.dtype == torch.float32
    # Rounding of float32 in a sum of two.
    assert torch.allclose(targets.sum(1), torch.ones(12), atol=1e-6)
    own = torch.nn.functional.one_hot(labels, CLASSES).float()
    ahead = partner_of(labels, targets)
    differs = (own != own.roll(ahead, 0)).any(1)
    share = targets.gather(1, labels[:, None])[differs][0]
    expected = images * share + images.roll(ahead, 0) * (1 - share)
    assert torch.allclose(mixed, expected, atol=1e-5)


@pytest.mark.parametrize("key", range(20))
def test_cutmix_labels_are_the_shares_of_the_pixels(key: int):
    images, _ = batch(CLASSES, size=13)
    labels = torch.arange(CLASSES)  # the label is the value less one
    mixed, targets = mix_batch(images, labels, CLASSES, mix(key), cutmix=1.0)
    for image, target in zip(mixed, targets, strict=True):
        shares = torch.bincount(image[0].flatten().long() - 1, minlength=CLASSES) / 13**2
        assert torch.allclose(shares, target, atol=1e-6)
        assert (image == image[:1]).all()


def test_cutmix_pastes_one_box():
    images, labels = batch()
    for key in range(30):
        mixed, _ = mix_batch(images, labels, CLASSES, mix(key), cutmix=1.0)
        pasted = (mixed != images)[0, 0]
        rows, columns = pasted.any(1), pasted.any(0)
        assert pasted.sum() == rows.sum() * columns.sum()
        for line in (rows, columns):
            where = line.nonzero()[:, 0]
            assert len(where) == 0 or where[-1] - where[0] + 1 == len(where)


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_weights_are_beta_distributed(alpha: float):
    images, labels = torch.zeros(2, 1, 1, 1), torch.tensor([0, 1])
    shares = torch.stack(
        [mix_batch(images, labels, 2, mix(key), mixup=alpha)[1][0, 0] for key in range(3000)]
    )
    deviation = (4 * (2 * alpha + 1)) ** -0.5
    # Five deviations of a mean of 3000, and of a variance at most twice as much.
    assert abs(float(shares.mean()) - 0.5) < 5 * deviation / 3000**0.5
    assert abs(float(shares.std()) - deviation) < 5 * deviation / 3000**0.5


def test_no_image_is_its_own_partner_and_every_other_one_may_be():
    images, labels = torch.arange(5).float().view(5, 1, 1, 1), torch.arange(5)
    seen = set()
    for key in range(200):
        _, targets = mix_batch(images, labels, 5, mix(key), mixup=1.0)
        [other] = (targets[0, 1:] > 0).nonzero()[:, 0].tolist()
        seen.add(other + 1)
    assert seen == {1, 2, 3, 4}


def test_a_sample_without_a_label_is_left_alone():
    images, labels = batch()
    labels[4] = -100
    for key in range(20):
        for method in ({"mixup": 1.0}, {"cutmix": 1.0}):
            mixed, targets = mix_batch(images, labels, CLASSES, mix(key), **method)
            assert torch.equal(mixed[4], images[4])
            assert (targets[4] == 0).all()
            sums = targets.sum(1)[labels >= 0]
            assert torch.allclose(sums, torch.ones(11), atol=1e-6)
            # Its value, 5, is in no other image, and whose partner it would be stays as it is.
            alone = (mixed == images).flatten(1).all(1)
            assert alone.sum() >= 2


def test_with_both_every_batch_gets_one_of_them_at_random():
    images, labels = batch()
    blended = 0
    for key in range(400):
        mixed, _ = mix_batch(images, labels, CLASSES, mix(key), mixup=1.0, cutmix=1.0)
        blended += not bool((mixed[0] == mixed[0].round()).all())
    # 200 expected, standard deviation 10: five of them.
    assert abs(blended - 200) < 50


def test_input_is_not_changed_and_the_key_decides_everything():
    images, labels = batch()
    kept = images.clone(), labels.clone()
    one, two = (mix_batch(images, labels, CLASSES, 9, 0.5, 0.5) for _ in range(2))
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
    assert torch.equal(images, kept[0])
    assert torch.equal(labels, kept[1])
    assert not torch.equal(one[1], mix_batch(images, labels, CLASSES, 10, 0.5, 0.5)[1])


def test_a_batch_of_one_has_nothing_to_mix_with():
    images, labels = batch(1)
    mixed, targets = mix_batch(images, labels, CLASSES, 0, mixup=1.0)
    assert torch.equal(mixed, images)
    assert torch.equal(targets, probabilities(labels, CLASSES))


def test_too_large_a_label_is_named():
    with pytest.raises(UserError, match="label is 7, but there are 7 classes"):
        probabilities(torch.tensor([1, 7]), 7)
