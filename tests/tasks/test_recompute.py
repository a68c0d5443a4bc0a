"""Activation checkpointing changes memory, and no number."""

import copy

import pytest
import torch
from small_nets import MLP, ConvNet
from torch import nn
from torchvision.models import efficientnet_b0, resnet18, vit_b_16

from project.cli import main
from project.mistakes import UserError
from project.runs import find_run
from project.tasks.recompute import blocks, recompute_blocks


def train(net: nn.Module, steps: int = 3) -> nn.Module:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(net(torch.randn(8, 1, 8, 8)), torch.arange(8) % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_weights_and_statistics_equal_those_without(dropout: float) -> None:
    net = ConvNet(1, 4, hidden_dim=4, dropout=dropout)
    for block in blocks(net):
        block.append(nn.Dropout(dropout))
    other = copy.deepcopy(net)
    assert recompute_blocks(other) == 3
    plain, recomputed = train(net).state_dict(), train(other).state_dict()
    assert plain.keys() == recomputed.keys()
    for key, value in plain.items():
        assert torch.equal(value, recomputed[key]), key


def test_blocks_are_computed_twice_in_training_and_once_in_evaluation() -> None:
    net = ConvNet(1, 4, hidden_dim=4)
    calls = []
    next(blocks(net))[0].register_forward_hook(lambda *_: calls.append(1))
    recompute_blocks(net)
    train(net, steps=1)
    assert len(calls) == 2
    net.eval()
    net(torch.zeros(1, 1, 8, 8))
    assert len(calls) == 3


def test_activations_are_not_kept() -> None:
    def kept(net: nn.Module) -> int:
        held: list[int] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            held.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            net(torch.zeros(8, 1, 8, 8))
        return sum(held)

    net = ConvNet(1, 4, hidden_dim=32)
    before = kept(net)
    recompute_blocks(net)
    assert kept(net) < before / 4


@pytest.mark.parametrize(("make", "count"), [(resnet18, 8), (efficientnet_b0, 18), (vit_b_16, 12)])
def test_blocks_of_known_networks(make: object, count: int) -> None:
    with torch.device("meta"):
        net = make(weights=None)  # type: ignore[operator]
    assert len(list(blocks(net))) == count


def test_a_network_without_blocks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="MLP has none"):
        recompute_blocks(MLP(1, 8, 10))
    args = ["--model.net", "small_nets.MLP", "--model.checkpoint_activations", "true"]
    assert main(["fit", *args]) == 2
    assert "MLP has none" in capsys.readouterr().err


def test_a_block_that_changes_its_input_is_refused() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3)), nn.Flatten()
    )
    recompute_blocks(net)
    with pytest.raises(UserError, match="in place"):
        net(torch.zeros(1, 1, 8, 8))


@pytest.mark.slow
def test_switch_of_the_task_trains_the_same_weights() -> None:
    saved = []
    for switch in ("false", "true"):
        args = ["--trainer.max_steps", "5", "--model.checkpoint_activations", switch]
        assert main(["fit", *args]) == 0
        file = find_run("last").checkpoint("last")
        saved.append(torch.load(file, weights_only=True)["state_dict"])
    plain, recomputed = saved
    assert all(torch.equal(value, recomputed[key]) for key, value in plain.items())
