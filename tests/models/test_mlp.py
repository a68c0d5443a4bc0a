import pytest
from torch import nn

from project.models import MLP


def net(num_classes: int = 10) -> MLP:
    return MLP(1, 8, num_classes)


@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_initial_loss_is_that_of_guessing(guesses_at_first, num_classes):
    guesses_at_first(net, num_classes)


def test_gradient_reaches_every_parameter(reaches_every_parameter):
    reaches_every_parameter(net)


def test_one_batch_is_learnt_by_heart(learns_by_heart):
    learns_by_heart(net)


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
    ],
)
def test_wrong_arguments_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()
