import functools
import warnings

import pytest
import torch
import torchvision
from small_nets import MLP, ConvNet
from torch import nn

from project.mistakes import UserError


def test_grey_images_reach_an_rgb_network(trainer, task, data, capsys):
    net = torchvision.models.resnet18(num_classes=3)
    trainer().validate(task(net), data(samples=8, image_size=32), verbose=False)
    assert "ResNet expects RGB: the grey channel is repeated" in capsys.readouterr().out


def test_grey_channel_is_repeated_exactly(task):
    model = task(ConvNet(3, 3))
    model.eval()
    grey = torch.randn(2, 1, 8, 8)
    assert torch.equal(model(grey), model(grey.repeat(1, 3, 1, 1)))


def test_wrong_image_size_is_named_with_a_way_out(trainer, task, data):
    with pytest.raises(UserError, match=r"MLP cannot take images of shape \(1, 8, 8\)") as error:
        trainer().fit(task(), data(image_size=8))
    assert "--model.net.image_size" in str(error.value)
    assert len(str(error.value).splitlines()) <= 3


class Fixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(960, 3)

    def forward(self, images):
        return self.fc(images.flatten(1))


def test_a_linear_layer_of_another_size_is_named_with_its_size(trainer, task, data):
    with pytest.raises(UserError, match=r"net\.fc \(Linear\) gets 64 values") as error:
        trainer().fit(task(Fixed()), data(image_size=8))
    assert "is made for 960.\nChange 960 to 64, or" in str(error.value)
    assert "--model.net." not in str(error.value).replace("another --model.net.", "")


def test_rgb_images_and_a_grey_network(trainer, task, data):
    with pytest.raises(UserError, match=r"shape \(3, 4, 4\).*3 channels"):
        trainer().test(task(ConvNet(1, 3)), data(in_channels=3))


def test_wrong_number_of_outputs_is_named(trainer, task, data):
    message = "MLP gives 10 outputs, the data have 3 classes: set --model.net.num_classes 3"
    with pytest.raises(UserError, match=message):
        trainer().fit(task(MLP(1, 4, 10)), data())


def test_task_and_data_must_agree_on_the_classes(trainer, task, data):
    with pytest.raises(UserError, match="The task has num_classes 5, the data have 3"):
        trainer().fit(task(MLP(1, 4, 3), num_classes=5), data())


def test_network_without_logits_is_refused(trainer, task, data):
    with pytest.raises(UserError, match=r"Identity gives \(2, 1, 4, 4\) for 2 images"):
        trainer().validate(task(nn.Identity()), data())


def test_check_leaves_random_numbers_modes_and_statistics_alone(trainer, task, data):
    class Noisy(ConvNet):
        def forward(self, images):
            return super().forward(images + torch.randn_like(images))

    net = Noisy(1, 3)
    net.features[0].eval()
    stage = {name: buffer.clone() for name, buffer in net.named_buffers()}
    model = task(net)
    before = torch.get_rng_state()
    run = trainer()
    run.datamodule = data()
    model._trainer = run
    model.setup("validate")
    assert torch.equal(torch.get_rng_state(), before)
    assert net.training
    assert not net.features[0].training
    assert all(torch.equal(stage[name], buffer) for name, buffer in net.named_buffers())


def test_small_batches_meet_batch_norm(trainer, task, data):
    with pytest.warns(UserWarning, match="BatchNorm, and its statistics come from 4 images at a"):
        trainer(accumulate_grad_batches=4, limit_train_batches=4).fit(
            task(ConvNet(1, 3)), data(batch_size=4)
        )


@pytest.mark.parametrize(
    ("net", "batch_size"), [(functools.partial(ConvNet, 1, 3), 8), (lambda: None, 2)]
)
def test_enough_images_or_no_batch_norm_give_no_warning(trainer, task, data, net, batch_size):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*BatchNorm")
        trainer(accumulate_grad_batches=4).fit(task(net()), data(batch_size=batch_size))
