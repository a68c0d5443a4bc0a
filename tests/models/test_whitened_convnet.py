import subprocess
import sys

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


RANK = """
import sys
import torch
from torch import distributed
from project.models.whitened_convnet import Whitening

rank, file = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", f"file://{file}", rank=rank, world_size=2)
layer = Whitening(1)
images = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(rank))
torch.save((images, layer.weight.clone(), layer(images), layer.weight), f"{file}.{rank}")
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_all_processes_have_the_weights_of_the_first_from_the_first_step_on(tmp_path):
    file = tmp_path / "store"
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(file)]) for rank in range(2)
    ]
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    (images, *_, weight), (others, before, outputs, other) = (
        torch.load(f"{file}.{rank}", weights_only=True) for rank in range(2)
    )
    alone = Whitening(1)
    alone(images)
    assert torch.equal(weight, alone.weight)
    assert torch.equal(other, weight)
    assert not torch.equal(other, before)
    assert torch.equal(outputs, F.conv2d(others, weight))


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
