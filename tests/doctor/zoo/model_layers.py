"""Mistakes in how a network is put together."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.model_parts import Cnn, GroupNormNet, Own, RowLstm, TinyVit
from zoo.parts import Pictures, Specimen, Task, case, small_net

MODEL = {"groups": ("model",)}


@case("parameters-registered", fast=True, says="hidden[0]")
def hidden_layers_in_a_plain_list(bad: bool) -> Specimen:
    """Layers in a list instead of nn.ModuleList."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            layers = [nn.Linear(64, 64), nn.Linear(64, 64)]
            self.hidden = layers if bad else nn.ModuleList(layers)
            self.head = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            for layer in self.hidden:
                x = F.relu(layer(x))
            return self.head(x)

    return Specimen(Task(Net()), Pictures())


@case("parameters-registered", says="nn.ModuleDict", **MODEL)
def heads_in_a_nested_dictionary(bad: bool) -> Specimen:
    """One head per task in a dictionary of tuples, deep in a submodule."""

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            heads = {"main": nn.ModuleList([nn.Linear(64, 32), nn.Linear(32, 4)])}
            self.heads = {"all": tuple(heads.values())} if bad else nn.ModuleDict(heads)

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.heads["all"][0] if bad else self.heads["main"]
            return second(F.relu(first(x)))

    return Specimen(
        Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), Heads())), Pictures()
    )


@case("parameters-registered", says="within forward", **MODEL)
def layer_made_in_forward(bad: bool) -> Specimen:
    """The head is made anew in every forward: random weights each time."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(64, 64)
            self.head = None if bad else nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            head = self.head or nn.Linear(64, 4)
            return head(F.relu(self.body(x.flatten(1))))

    return Specimen(Task(Net()), Pictures())


@case("parameters-registered", says="scale", **MODEL)
def weight_that_is_no_parameter(bad: bool) -> Specimen:
    """A trainable scale as a tensor with requires_grad instead of nn.Parameter."""

    class Net(GroupNormNet):
        def __init__(self):
            super().__init__()
            scale = torch.ones(4, requires_grad=True)
            self.scale = scale if bad else nn.Parameter(scale)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.scale

    return Specimen(Task(Net()), Pictures())


@case("parameters-registered", says="register_buffer", **MODEL)
def mask_that_is_no_buffer(bad: bool) -> Specimen:
    """A constant tensor as an attribute: it stays on the CPU."""

    class Net(TinyVit):
        def __init__(self):
            super().__init__()
            window = torch.linspace(0.5, 1.0, 64).reshape(8, 8)
            if bad:
                self.window = window
            else:
                self.register_buffer("window", window)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * self.window)

    return Specimen(Task(Net()), Pictures())


@case("parameters-registered", says="weights", **MODEL)
def class_weights_on_the_cpu(bad: bool) -> Specimen:
    """Weights of the classes are a plain tensor that the loss uses."""

    class Weighted(Task):
        def __init__(self):
            super().__init__()
            weights = torch.tensor([1.0, 1.0, 2.0, 1.0])
            if bad:
                self.weights = weights
            else:
                self.register_buffer("weights", weights)

        def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(logits, labels, weight=self.weights)

    return Specimen(Weighted(), Pictures())


@case("parameters-used", says="fc2")
def layer_that_is_never_called(bad: bool) -> Specimen:
    """Copy and paste: one layer is used twice, the other never."""

    class Net(Own):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(64, 64), nn.Linear(64, 64)
            self.fc3 = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.fc1(x.flatten(1)))
            return self.fc3(torch.relu((self.fc1 if bad else self.fc2)(x)))

    return Specimen(Net(), Pictures())


@case("frozen-parameters", says="requires_grad")
def head_frozen_with_the_backbone(bad: bool) -> Specimen:
    """Everything is frozen after the new head was put in place."""
    net = Cnn()
    for parameter in (net.conv2 if not bad else net).parameters():
        parameter.requires_grad_(False)
    return Specimen(Task(net, lr=1e-2), Pictures())


@case("frozen-parameters", says="last layer", **MODEL)
def only_the_head_frozen(bad: bool) -> Specimen:
    """The loop over names freezes the head and leaves the backbone."""
    net = Cnn()
    for name, parameter in net.named_parameters():
        if name.startswith("head") == bad and not name.startswith("norm"):
            parameter.requires_grad_(False)
    return Specimen(Task(net, lr=1e-2), Pictures())


@case("optimizer-parameters", says="no optimizer", **MODEL)
def optimizer_without_the_backbone(bad: bool) -> Specimen:
    """Only the head's parameters are given to the optimizer; nothing is frozen."""

    class HeadOnly(Task):
        def configure_optimizers(self) -> Any:
            part = self.net.head if bad else self.net
            return torch.optim.AdamW(part.parameters(), lr=1e-2)

    return Specimen(HeadOnly(Cnn()), Pictures())


@case("optimizer-parameters", says="twice", **MODEL)
def parameters_listed_twice(bad: bool) -> Specimen:
    """A list of the whole network's and the head's parameters."""

    class Twice(Task):
        def configure_optimizers(self) -> Any:
            params = list(self.net.parameters())
            if bad:
                params += list(self.net.head.parameters())
            return torch.optim.SGD(params, lr=0.05, momentum=0.9)

    return Specimen(Twice(GroupNormNet()), Pictures())


@case("optimizer-parameters", says="not the task's", **MODEL)
def optimizer_of_another_network(bad: bool) -> Specimen:
    """The optimizer is made before the network is built anew."""

    class Early(Task):
        def __init__(self):
            super().__init__()
            self.optimizer = torch.optim.Adam(self.net.parameters(), lr=3e-3)
            if bad:
                self.net = small_net(hidden=48)

        def configure_optimizers(self) -> Any:
            return self.optimizer

    return Specimen(Early(), Pictures())


@case("samples-independent", says="BatchNorm2d", **MODEL)
def batch_norm_without_running_statistics(bad: bool) -> Specimen:
    """track_running_stats=False: predictions depend on what else is in the batch."""
    net = Cnn()
    if bad:
        net.norm1 = nn.BatchNorm2d(16, track_running_stats=False)
    return Specimen(Task(net), Pictures())


@case("samples-independent", says="batch_first", **MODEL)
def lstm_with_batch_and_time_swapped(bad: bool) -> Specimen:
    """batch_first is missing: the LSTM runs along the batch."""
    return Specimen(Task(RowLstm(batch_first=not bad)), Pictures())


@case("samples-independent", **MODEL)
def attention_over_the_batch(bad: bool) -> Specimen:
    """Softmax of the attention weights over dimension 0, the batch."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.score, self.value = nn.Linear(8, 1), nn.Linear(8, 64)
            self.positions = nn.Parameter(torch.randn(8, 64) * 0.5)
            self.head = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            rows = x.squeeze(1)
            weights = self.score(rows).softmax(0 if bad else 1)
            values = torch.relu(self.value(rows) + self.positions)
            return self.head((weights * values).sum(1))

    return Specimen(Task(Attention()), Pictures())


@case("samples-independent", **MODEL)
def view_that_mixes_batch_and_channels(bad: bool) -> Specimen:
    """view() where a transpose is meant: features of several images in one row."""

    class Net(Own):
        def forward(self, x: Tensor) -> Tensor:
            rows = torch.relu(self.fc1(x.flatten(1))).view(len(x), 6, 8)
            if bad:
                rows = rows.transpose(0, 1)
            return self.fc3(torch.relu(self.fc2(rows.reshape(len(x), 48))))

    return Specimen(Net(), Pictures())


@case("samples-independent", **MODEL)
def normalised_by_the_batch(bad: bool) -> Specimen:
    """The forward subtracts the mean of the whole batch, not of each image."""

    class Net(RowLstm):
        def forward(self, x: Tensor) -> Tensor:
            mean, std = (x.mean(), x.std()) if bad else (x.mean((1, 2, 3), True), 1.0)
            return super().forward((x - mean) / std)

    return Specimen(Task(Net(), lr=1e-2), Pictures())


@case("units-differ", says="fc2", **MODEL)
def weights_that_are_all_the_same(bad: bool) -> Specimen:
    """A layer is initialised with a constant: its units never become different."""
    task = Own()
    if bad:
        nn.init.constant_(task.fc2.weight, 0.02)
    return Specimen(task, Pictures())
