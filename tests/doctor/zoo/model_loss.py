"""Mistakes between output and loss."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.model_parts import Cnn, GroupNormNet, Own, Regression, RowLstm, TinyVit
from zoo.parts import Pictures, Specimen, Task, case, small_net

MODEL = {"groups": ("model",)}


@case("softmax-before-loss", says="softmax is applied twice")
def softmax_in_the_network(bad: bool) -> Specimen:
    """The network ends in a softmax, and cross-entropy has its own."""
    end = nn.Softmax(dim=1) if bad else nn.Identity()
    return Specimen(Task(nn.Sequential(Cnn(), end)), Pictures())


@case("softmax-before-loss", says="log_softmax is applied twice", **MODEL)
def log_softmax_twice(bad: bool) -> Specimen:
    """log_softmax in the forward, and CrossEntropyLoss."""

    class Net(Own):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            return F.log_softmax(out, 1) if bad else out

    return Specimen(Net(), Pictures())


@case("softmax-before-loss", says="ReLU", **MODEL)
def relu_on_the_logits(bad: bool) -> Specimen:
    """A loop puts a ReLU behind every layer, the last one too."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in ((64, 48), (48, 32), (32, 4)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return Specimen(Task(nn.Sequential(*(layers if bad else layers[:-1]))), Pictures())


@case("softmax-before-loss", says="sigmoid", **MODEL)
def sigmoid_on_the_logits(bad: bool) -> Specimen:
    """Sigmoid outputs go into cross-entropy, after a reshape."""

    class Net(TinyVit):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            return out.sigmoid().view(len(x), -1) if bad else out

    return Specimen(Task(Net()), Pictures())


@case("softmax-before-loss", says="nll_loss", **MODEL)
def nll_loss_of_logits(bad: bool) -> Specimen:
    """nll_loss without log_softmax."""

    class Nll(Task):
        def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
            return F.nll_loss(logits if bad else logits.log_softmax(1), labels)

    return Specimen(Nll(GroupNormNet()), Pictures())


@case("softmax-before-loss", says="sigmoid", **MODEL)
def sigmoid_before_bce_with_logits(bad: bool) -> Specimen:
    """Sigmoid, and then BCEWithLogitsLoss, which has its own."""

    class Bce(Task):
        def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
            target = F.one_hot(labels, 4).float()
            given = logits.sigmoid() if bad else logits
            return F.binary_cross_entropy_with_logits(given, target)

    return Specimen(Bce(Cnn()), Pictures())


@case("graph-cut", says="detach", **MODEL)
def features_detached(bad: bool) -> Specimen:
    """A detach() left over from visualising features: the backbone learns nothing."""

    class Net(Cnn):
        def forward(self, x: Tensor) -> Tensor:
            x = self.features(x).flatten(1)
            return self.head(self.dropout(x.detach() if bad else x))

    return Specimen(Task(Net()), Pictures())


@case("graph-cut", says="no_grad", **MODEL)
def embedding_under_no_grad(bad: bool) -> Specimen:
    """The patches are embedded under no_grad."""

    class Net(TinyVit):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU())
            self.head = nn.Linear(64, 4)
            del self.blocks, self.norm, self.token, self.positions, self.embed

        def forward(self, x: Tensor) -> Tensor:
            with torch.set_grad_enabled(not bad):
                x = self.body(x)
            return self.head(x)

    return Specimen(Task(Net()), Pictures())


@case("graph-cut", says="numpy", **MODEL)
def features_through_numpy(bad: bool) -> Specimen:
    """Features go through NumPy for a function that torch has too."""

    class Net(Cnn):
        def forward(self, x: Tensor) -> Tensor:
            x = self.features(x)
            if bad:
                x = torch.from_numpy(x.detach().numpy().clip(0, 5))
            return self.head(self.dropout(x.flatten(1)))

    return Specimen(Task(Net()), Pictures())


@case("graph-cut", says="item", **MODEL)
def loss_made_of_a_number(bad: bool) -> Specimen:
    """The loss becomes a number by item(), and a tensor again."""

    class Number(Own):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            return torch.tensor(loss.item(), requires_grad=True) if bad else loss

    return Specimen(Number(), Pictures())


@case("graph-cut", says="argmax", **MODEL)
def loss_of_predicted_classes(bad: bool) -> Specimen:
    """The loss compares the predicted class, which has no gradient."""

    class Argmax(Task):
        def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
            if bad:
                return F.mse_loss(logits.argmax(1).float(), labels.float())
            return F.cross_entropy(logits, labels)

    return Specimen(Argmax(RowLstm()), Pictures())


@case("graph-cut", says=".data", **MODEL)
def features_taken_as_data(bad: bool) -> Specimen:
    """.data, as old code has it, between two layers."""

    class Net(Own):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.fc1(x.flatten(1)))
            return self.fc3(torch.relu(self.fc2(x.data if bad else x)))

    return Specimen(Net(), Pictures())


def numbers(squeezed: bool = False) -> Any:
    """Pictures whose target is a number, the mean of the upper half."""
    data = Pictures()
    del data.num_classes
    for name in ("train", "val", "test"):
        images, _ = getattr(data, name)
        target = images[:, 0, :4].mean((1, 2))
        target = (target - target.mean()) / target.std()
        setattr(data, name, (images, target if squeezed else target[:, None]))
    return data


@case("loss-broadcasts", says="(32, 1) and (32,)")
def regression_that_broadcasts(bad: bool) -> Specimen:
    """Output (N, 1) against target (N,): every sample against every other."""
    return Specimen(Regression(small_net(classes=1)), numbers(squeezed=bad))


@case("loss-broadcasts", says="every sample with every other", **MODEL)
def own_loss_that_broadcasts(bad: bool) -> Specimen:
    """The same in a loss written by hand, with a network of convolutions."""

    class Hand(Regression):
        def loss(self, out: Tensor, y: Tensor) -> Tensor:
            return ((out if bad else out.squeeze(1)) - y).pow(2).mean()

    return Specimen(Hand(GroupNormNet(classes=1)), numbers(squeezed=True))


@case("initial-loss", says="ln 4", **MODEL)
def last_layer_far_too_large(bad: bool) -> Specimen:
    """A temperature multiplies where it should divide."""

    class Net(GroupNormNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (100.0 if bad else 1.0)

    return Specimen(Task(Net()), Pictures())


@case("output-finite", says="NaN", **MODEL)
def log_of_zero(bad: bool) -> Specimen:
    """log of a ReLU's output: minus infinity wherever it is zero."""

    class Net(Cnn):
        def forward(self, x: Tensor) -> Tensor:
            x = self.features(x).flatten(1)
            return self.head(self.dropout(torch.log(x) if bad else torch.log1p(x)))

    return Specimen(Task(Net()), Pictures())


@case("softmax-before-loss", says="dropout", **MODEL)
def dropout_on_the_logits(bad: bool) -> Specimen:
    """Dropout is the last layer: logits are set to zero at random."""
    drop, layers = nn.Dropout(0.3), list(small_net())
    layers.insert(4 if bad else 3, drop)
    return Specimen(Task(nn.Sequential(*layers)), Pictures())


@case("output-bias", says="the bias alone says class 3", **MODEL)
def bias_for_the_frequencies_of_other_data(bad: bool) -> Specimen:
    """The last bias was set for data in which one class is nearly all."""
    net = small_net()
    if bad:
        net[-1].bias.data = torch.tensor([0.01, 0.01, 0.01, 0.97]).log()
    return Specimen(Task(net), Pictures())
