import pytest
from torch import nn
from torchvision.models import get_model

from project.backbone import backbone_parameters, find_head
from project.mistakes import UserError


# In each of the layouts that torchvision has; SqueezeNet's is a convolution.
@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("resnet18", "fc"),
        ("squeezenet1_1", "classifier.1"),
        ("mobilenet_v3_small", "classifier.3"),
        ("swin_t", "head"),
    ],
)
def test_head_of_torchvisions_networks_is_found(name, head):
    assert find_head(get_model(name, num_classes=7), 7) == head


def test_shared_parameters_are_the_heads():
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False))
    net[2].weight = net[0].weight
    with pytest.raises(UserError, match="nothing to train before its head"):
        backbone_parameters(net, find_head(net, 3, "2"))


def test_a_name_without_its_beginning_gets_a_hint():
    net = nn.ModuleDict({"inner": nn.ModuleDict({"fc": nn.Linear(3, 3)})})
    with pytest.raises(UserError, match=r"no part 'fc' with parameters. Did you mean inner.fc\?"):
        find_head(net, 3, "fc")
