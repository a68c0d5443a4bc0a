import pytest
import torch
from torch.nn import functional as F

from project.models import WhitenedConvNet
from project.models.whitened_convnet import Whitening


def net(num_classes: int = 10) -> WhitenedConvNet:
    return WhitenedConvNet(1, num_classes, hidden_dims=[16, 32])


def test_initial_loss_is_that_of_guessing(guesses_at_first):
    guesses_at_first(net, 10)


def test_gradient_reaches_every_parameter(reaches_every_parameter):
    reaches_every_parameter(net)


def test_one_batch_is_learnt_by_heart(learns_by_heart):
    # Noise has a mirror image that nobody has learnt.
    learns_by_heart(lambda: WhitenedConvNet(1, 10, hidden_dims=[16, 32], mirror=False))


def test_patches_come_out_white():
    images = F.avg_pool2d(torch.randn(64, 3, 20, 20), 3, stride=1)  # neighbours are alike
    layer = Whitening(3, eps=0.0).double()
    white = layer(images.double())[:, :12].transpose(0, 1).flatten(1)
    assert torch.allclose(white.cov(), torch.eye(12).double(), atol=1e-3)


def test_only_the_first_batch_in_training_sets_the_weights():
    layer = Whitening(1).eval()
    images = torch.randn(8, 1, 8, 8)
    before = layer.weight.clone()
    layer(images)
    assert torch.equal(layer.weight, before)
    layer.train()(images)
    first = layer.weight.clone()
    assert not torch.equal(first, before)
    layer(2 * images)
    assert torch.equal(layer.weight, first)


def test_a_checkpoint_keeps_the_weights():
    old, new = net(), net()
    old(torch.randn(8, 1, 8, 8))
    new.load_state_dict(old.state_dict())
    new(torch.randn(8, 1, 8, 8))
    assert torch.equal(new.whitening.weight, old.whitening.weight)


def test_an_image_and_its_mirror_image_are_the_same_in_evaluation():
    images, model = torch.randn(4, 1, 8, 8), net()
    model(images)
    model.eval()
    assert torch.allclose(model(images), model(images.flip(-1)), atol=1e-6)
    model.mirror = False
    assert not torch.allclose(model(images), model(images.flip(-1)), atol=1e-6)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="at least 1, got 3, 10"):
        WhitenedConvNet(3, 10, hidden_dims=[0])
