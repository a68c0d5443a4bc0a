import pytest
import torch
import torch.nn.functional as F

from project.models.masked_convnet import MaskedConvNet

SIZES = [(8, 8), (5, 11), (13, 7), (1, 1), (16, 3), (9, 16)]


def net(num_classes: int = 10) -> MaskedConvNet:
    return MaskedConvNet(1, num_classes)


def padded(images: list[torch.Tensor], fill: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = (max(image.shape[axis] for image in images) for axis in (1, 2))
    batch = torch.full((len(images), len(images[0]), height, width), fill)
    mask = torch.zeros(len(images), height, width, dtype=torch.bool)
    for image, room, inside in zip(images, batch, mask, strict=True):
        room[:, : image.shape[1], : image.shape[2]] = image
        inside[: image.shape[1], : image.shape[2]] = True
    return batch, mask


def unlike_zero(of: MaskedConvNet) -> MaskedConvNet:
    """Weights of no initial symmetry, so that a leak of the padding shows."""
    with torch.no_grad():
        for parameter in of.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    return of


@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_initial_loss_is_that_of_guessing(guesses_at_first, num_classes):
    guesses_at_first(net, num_classes)


def test_gradient_reaches_every_parameter(reaches_every_parameter):
    reaches_every_parameter(net)


def test_one_batch_is_learnt_by_heart(learns_by_heart):
    learns_by_heart(net)


@pytest.mark.parametrize("fill", [0.0, 7.0])
@pytest.mark.parametrize("training", [False, True])
def test_logits_of_an_image_do_not_depend_on_its_neighbours(training: bool, fill: float):
    images = [torch.randn(3, *size) for size in SIZES]
    # Without dropout, which draws other numbers for another batch.
    of = unlike_zero(MaskedConvNet(3, 5, hidden_dim=8, dropout=0.0)).train(training)
    together = of(*padded(images, fill))
    alone = torch.cat([of(image[None]) for image in images])
    # Sums of other lengths, in another order: rounding of float32 and no more.
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)
    assert (together - together[0]).abs().max() > 0.1


def test_gradients_do_not_depend_on_the_padding():
    images = [torch.randn(3, *size) for size in SIZES]
    of = unlike_zero(MaskedConvNet(3, 5, hidden_dim=8, dropout=0.0))
    labels = torch.arange(len(images)) % 5

    def gradients(logits: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(F.cross_entropy(logits, labels), list(of.parameters())))

    together = gradients(of(*padded(images)))
    alone = gradients(torch.cat([of(image[None]) for image in images]))
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_without_a_mask_all_is_image():
    images = torch.randn(4, 1, 8, 8)
    of = unlike_zero(net()).eval()
    everywhere = torch.ones(4, 8, 8, dtype=torch.bool)
    assert torch.equal(of(images), of(images, everywhere))


@pytest.mark.parametrize(
    "make",
    [
        lambda: MaskedConvNet(0, 10),
        lambda: MaskedConvNet(1, 10, hidden_dim=0),
        lambda: MaskedConvNet(1, 10, dropout=-0.1),
    ],
)
def test_wrong_arguments_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()
