import pytest
import torch

from project.models import ConvNet


def net(num_classes: int = 10) -> ConvNet:
    return ConvNet(1, num_classes)


@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_initial_loss_is_that_of_guessing(guesses_at_first, num_classes):
    guesses_at_first(net, num_classes)


def test_gradient_reaches_every_parameter(reaches_every_parameter):
    reaches_every_parameter(net)


def test_one_batch_is_learnt_by_heart(learns_by_heart):
    learns_by_heart(net)


@pytest.mark.parametrize("size", [1, 3, 7, 8, 28, 33])
def test_convnet_takes_any_image_size(size):
    assert ConvNet(3, 5)(torch.randn(2, 3, size, size)).shape == (2, 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConvNet(0, 10),
        lambda: ConvNet(1, 10, hidden_dim=0),
        lambda: ConvNet(1, 10, dropout=-0.1),
    ],
)
def test_wrong_arguments_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()
