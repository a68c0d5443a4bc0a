"""Mistakes in what the forward computes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.model_parts import Cnn, GroupNormNet, Own, RowLstm, TinyVit
from zoo.parts import Pictures, Specimen, Task, case, small_net

MODEL = {"groups": ("model",)}


@case("eval-deterministic", fast=True, says="training=self.training", **MODEL)
def dropout_that_never_stops(bad: bool) -> Specimen:
    """F.dropout without training=self.training drops in evaluation too."""

    class Net(Cnn):
        def forward(self, x: Tensor) -> Tensor:
            x = self.features(x).flatten(1)
            return self.head(F.dropout(x, 0.3) if bad else F.dropout(x, 0.3, self.training))

    return Specimen(Task(Net()), Pictures())


@case("eval-deterministic", says="random", **MODEL)
def noise_in_evaluation(bad: bool) -> Specimen:
    """Noise that regularises is added in evaluation too."""

    class Net(GroupNormNet):
        def forward(self, x: Tensor) -> Tensor:
            if bad or self.training:
                x = x + 0.1 * torch.randn_like(x)
            return super().forward(x)

    return Specimen(Task(Net()), Pictures())


@case("mode-restored", says="after the validation", **MODEL)
def eval_without_train(bad: bool) -> Specimen:
    """A hook puts the network into eval mode after an epoch, and nobody puts it back."""

    class Forgets(Task):
        def on_train_epoch_end(self) -> None:
            if bad:
                self.net.eval()

    return Specimen(Forgets(Cnn()), Pictures())


@case("mode-restored", says="eval mode while training", **MODEL)
def network_that_came_in_eval_mode(bad: bool) -> Specimen:
    """A pretrained network comes in eval mode, and Lightning leaves it there."""
    net = Cnn()
    return Specimen(Task(net.eval() if bad else net), Pictures())


@case("mode-restored", says="while validating", **MODEL)
def train_mode_in_validation(bad: bool) -> Specimen:
    """The validation step calls train(): BatchNorm learns from the validation images."""

    class Trains(Own):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(48)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.norm(self.fc1(x.flatten(1))))
            return self.fc3(torch.relu(self.fc2(x)))

        def validation_step(self, batch, batch_idx):
            if bad:
                self.train()
            super().validation_step(batch, batch_idx)

    return Specimen(Trains(), Pictures())


@case("modes-differ", says="same outputs", **MODEL)
def dropout_whose_result_is_dropped(bad: bool) -> Specimen:
    """The result of dropout is assigned to a name that nobody reads."""

    class Net(RowLstm):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(0.3)

        def last(self, out: Tensor) -> Tensor:
            dropped = self.dropout(out[:, -1])
            return out[:, -1] if bad else dropped

    return Specimen(Task(Net()), Pictures())


@case("depends-on-input", "uses-whole-input", says="same output", **MODEL)
def embedding_of_the_wrong_variable(bad: bool) -> Specimen:
    """The blocks get the positions alone, not the patches."""

    class Net(TinyVit):
        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x).flatten(2).transpose(1, 2)
            token = self.token.expand(len(x), -1, -1)
            x = torch.cat([token, x], 1)
            x = self.positions.expand_as(x) if bad else x + self.positions
            return self.head(self.norm(self.blocks(x)).mean(1))

    return Specimen(Task(Net()), Pictures())


@case("uses-whole-input", says="row", **MODEL)
def first_step_of_the_lstm(bad: bool) -> Specimen:
    """The output of the first row instead of the last: seven rows are ignored."""

    class Net(RowLstm):
        def last(self, out: Tensor) -> Tensor:
            return out[:, 0 if bad else -1]

    return Specimen(Task(Net()), Pictures())


@case("uses-whole-input", says="channel", **MODEL)
def only_the_red_channel(bad: bool) -> Specimen:
    """A slice for grey images is left in the forward."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Cnn(channels=1 if bad else 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x[:, :1] if bad else x)

    return Specimen(Task(Net()), Pictures(channels=3))


@case("uses-whole-input", says="6, 7", **MODEL)
def patches_that_do_not_fit(bad: bool) -> Specimen:
    """A patch size that does not divide the image: the border is cut off."""
    return Specimen(Task(TinyVit(patch=3 if bad else 2)), Pictures())


@case("sees-positions", says="position", **MODEL)
def transformer_without_positions(bad: bool) -> Specimen:
    """No position embedding: the patches of an image are a bag."""
    return Specimen(Task(TinyVit(positions=not bad)), Pictures())


@case("input-unchanged", says="in place", **MODEL)
def input_normalised_in_place(bad: bool) -> Specimen:
    """x -= mean in the forward changes the batch of whoever uses it next."""

    class Net(Cnn):
        def forward(self, x: Tensor) -> Tensor:
            if bad:
                x -= 0.1
                return super().forward(x)
            return super().forward(x - 0.1)

    return Specimen(Task(Net()), Pictures())


@case("input-unchanged", says="inplace", **MODEL)
def first_layer_in_place(bad: bool) -> Specimen:
    """ReLU(inplace=True) as the first layer sets half of the input to zero."""
    net = nn.Sequential(nn.ReLU(inplace=True) if bad else nn.Identity(), Cnn())
    return Specimen(Task(net), Pictures())


@case("depends-on-input", "output-dtype", "graph-cut", says="whole numbers", **MODEL)
def image_cast_to_integers(bad: bool) -> Specimen:
    """The forward casts to integers, as for images of 0 to 255."""

    class Net(GroupNormNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.long().float() if bad else x)

    return Specimen(Task(Net()), Pictures())


@case("output-dtype", says="float64", **MODEL)
def double_precision_by_numpy(bad: bool) -> Specimen:
    """A scale from NumPy turns all that follows into float64."""

    class Net(RowLstm):
        def forward(self, x: Tensor) -> Tensor:
            scale = torch.ones(4, dtype=torch.float64 if bad else torch.float32, device=x.device)
            return super().forward(x) * scale

    return Specimen(Task(Net()), Pictures())


@case("output-finite", **MODEL)
def deviation_without_epsilon(bad: bool) -> Specimen:
    """Every image is divided by its own deviation: a black one gives NaN."""

    class Net(Cnn):
        def forward(self, x: Tensor) -> Tensor:
            mean, std = x.mean((1, 2, 3), True), x.std((1, 2, 3), keepdim=True)
            return super().forward((x - mean) / (std if bad else std + 1e-5))

    return Specimen(Task(Net()), Pictures())


@case("activations-alive", says="0 for all", **MODEL)
def biases_that_kill_the_relus(bad: bool) -> Specimen:
    """All biases start at -10: no unit ever fires."""
    task = Own()
    if bad:
        nn.init.constant_(task.fc1.bias, -10.0)
    return Specimen(task, Pictures())


@case("activations-alive", says="limits", **MODEL)
def weights_that_saturate(bad: bool) -> Specimen:
    """Weights of deviation 1 drive tanh to its limits."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    if bad:
        nn.init.normal_(net[1].weight)
    return Specimen(Task(net), Pictures())


@case("gradient-by-layer", says="vanish", **MODEL)
def deep_sigmoid_network(bad: bool) -> Specimen:
    """Eight layers with sigmoids: the first ones get no gradient."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, 32)]
    for _ in range(8 if bad else 2):
        layers += [nn.Sigmoid() if bad else nn.ReLU(), nn.Linear(32, 32)]
    return Specimen(Task(nn.Sequential(*layers, nn.Linear(32, 4))), Pictures())


@case("gradient-by-layer", "initial-loss", **MODEL)
def weights_that_are_far_too_large(bad: bool) -> Specimen:
    """Weights drawn from N(0, 1) in every layer."""
    net = small_net(hidden=128)
    if bad:
        for layer in (net[1], net[3]):
            nn.init.normal_(layer.weight)
    return Specimen(Task(net), Pictures())


@case("can-be-exported", says="model_forward.py", **MODEL)
def forward_that_decides_by_values(bad: bool) -> Specimen:
    """An if on the values of the input: cannot be exported."""

    class Net(GroupNormNet):
        def forward(self, x: Tensor) -> Tensor:
            if bad and x.max() > 10:
                x = x / 255
            return super().forward(x)

    return Specimen(Task(Net()), Pictures())


@case("output-shape", says="(1, 4)", **MODEL)
def batch_lost_by_view(bad: bool) -> Specimen:
    """The batch ends up in the features: a mean over the wrong dimension."""

    class Net(Cnn):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            return out.mean(0, keepdim=True) if bad else out

    return Specimen(Task(Net()), Pictures())
