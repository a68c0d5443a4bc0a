import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from project.models import MLP, ConvNet


def nets(num_classes: int = 10) -> list[nn.Module]:
    torch.manual_seed(0)
    return [MLP(1, 8, num_classes), ConvNet(1, num_classes)]


@pytest.mark.parametrize("index", [0, 1], ids=["mlp", "convnet"])
@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_initial_loss_is_that_of_guessing(index, num_classes):
    net = nets(num_classes)[index]
    images, labels = torch.randn(512, 1, 8, 8), torch.randint(num_classes, (512,))
    # Ten per cent: an untrained net knows nothing, and its logits are small.
    assert F.cross_entropy(net(images), labels).item() == pytest.approx(math.log(num_classes), 0.1)


@pytest.mark.parametrize("index", [0, 1], ids=["mlp", "convnet"])
def test_gradient_reaches_every_parameter(index):
    net = nets()[index]
    F.cross_entropy(net(torch.randn(64, 1, 8, 8)), torch.randint(10, (64,))).backward()
    silent = [
        n for n, p in net.named_parameters() if p.grad is None or p.grad.abs().sum().item() == 0
    ]
    assert silent == []


@pytest.mark.parametrize("index", [0, 1], ids=["mlp", "convnet"])
def test_one_batch_is_learnt_by_heart(index):
    net = nets()[index]
    images, labels = torch.randn(16, 1, 8, 8), torch.randint(10, (16,))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
    assert (net.eval()(images).argmax(dim=1) == labels).all()


@pytest.mark.parametrize("size", [1, 3, 7, 8, 28, 33])
def test_convnet_takes_any_image_size(size):
    assert ConvNet(3, 5)(torch.randn(2, 3, size, size)).shape == (2, 5)


def test_mlp_has_the_documented_widths():
    widths = [m.out_features for m in MLP(1, 28, 10).modules() if isinstance(m, nn.Linear)]
    assert widths == [512, 256, 10]


def test_mlp_without_hidden_layers_is_linear():
    assert sum(p.numel() for p in MLP(1, 8, 10, hidden_dims=[]).parameters()) == 650


@pytest.mark.parametrize(
    "make",
    [
        lambda: MLP(1, 0, 10),
        lambda: MLP(1, 8, 10, hidden_dims=[0]),
        lambda: MLP(1, 8, 10, dropout=1.0),
        lambda: ConvNet(0, 10),
        lambda: ConvNet(1, 10, hidden_dim=0),
        lambda: ConvNet(1, 10, dropout=-0.1),
    ],
)
def test_wrong_arguments_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()
