from collections import OrderedDict
from urllib.error import URLError

import pytest
import torch
from torchvision.models import get_model, get_model_weights

from project import pretrained
from project.mistakes import UserError
from project.models import TorchvisionNet

SMALL = "shufflenet_v2_x0_5"


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    """Torch hub's folder of files, empty; nothing is downloaded."""

    def offline(url, **_):
        raise URLError(OSError(101, "Network is unreachable"))

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", offline)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    return tmp_path / "hub" / "checkpoints"


def saved(file, name=SMALL, num_classes=1000, **options):
    """The state dict of a network with random weights, which lie in ``file`` now."""
    state = get_model(name, num_classes=num_classes, **options).state_dict()
    torch.save(state, file)
    return state


def same(net, state, but):
    own = net.net.state_dict()
    assert own.keys() == state.keys()
    return all(torch.equal(own[k], state[k]) for k in own if not k.startswith(but))


@pytest.mark.parametrize("name", [SMALL, "squeezenet1_1", "resnet18"])
def test_logits_of_a_network_from_scratch(name):
    assert TorchvisionNet(name, 7)(torch.randn(2, 3, 64, 64)).shape == (2, 7)


def test_the_second_output_of_googlenet_is_left_out():
    assert TorchvisionNet("googlenet", 7)(torch.randn(2, 3, 64, 64)).shape == (2, 7)


def test_grey_is_shown_as_three_equal_channels():
    net, images = TorchvisionNet(SMALL, 7, in_channels=1).eval(), torch.randn(2, 1, 64, 64)
    assert torch.equal(net(images), net(images.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "resnet81"}, r"no network 'resnet81'.*Did you mean resnet1?8"),
        ({"name": "raft_small"}, "no network 'raft_small' for classification"),
        ({"weights": "IMAGENET1K_V3"}, "Did you mean IMAGENET1K_V1"),
        ({"weights": "best"}, r"has no weights 'best'. It has: IMAGENET1K_V1"),
        ({"in_channels": 2}, "in_channels 1 or 3"),
        ({"num_classes": 0}, "num_classes must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused_with_what_is_allowed(options, message):
    with pytest.raises(ValueError, match=message):
        TorchvisionNet(**{"name": SMALL, "num_classes": 7, **options})


@pytest.mark.parametrize("weights", ["DEFAULT", "IMAGENET1K_V1"])
def test_named_weights_are_taken_from_torch_hubs_folder_with_a_new_last_layer(hub, weights):
    url = get_model_weights(SMALL)[weights].url
    state = saved(hub / url.rsplit("/", 1)[1])
    net = TorchvisionNet(SMALL, 7, weights=weights)
    assert same(net, state, but="fc.")
    assert net.net.fc.weight.shape == (7, 1024)


def test_without_a_network_connection_it_says_which_file_must_lie_where(hub):
    with pytest.raises(UserError) as caught:
        TorchvisionNet("resnet18", 7, weights="DEFAULT")
    message = str(caught.value)
    assert "IMAGENET1K_V1 of resnet18 cannot be downloaded: [Errno 101]" in message
    assert "https://download.pytorch.org/models/resnet18-f37072fd.pth" in message
    assert str(hub / "resnet18-f37072fd.pth") in message
    assert len(message.splitlines()) == 3


def test_a_checkpoint_that_follows_spares_the_weights():
    with pretrained.left_out():
        net = TorchvisionNet(SMALL, 7, weights="DEFAULT")
    assert net(torch.randn(2, 3, 64, 64)).shape == (2, 7)
    with pytest.raises(UserError, match="cannot be downloaded"):
        TorchvisionNet(SMALL, 7, weights="DEFAULT")


def test_a_file_of_weights_with_the_right_last_layer_is_taken_whole(tmp_path):
    state = saved(tmp_path / "own.pth", num_classes=7)
    assert same(TorchvisionNet(SMALL, 7, weights=str(tmp_path / "own.pth")), state, but="none")


def test_weights_of_mnasnet_keep_their_version(tmp_path):
    state = saved(tmp_path / "own.pth", "mnasnet0_5")
    net = TorchvisionNet("mnasnet0_5", 7, weights=str(tmp_path / "own.pth"))
    assert same(net, state, but="classifier.1.")


def test_old_names_of_densenets_layers_are_known(tmp_path):
    state = get_model("densenet121").state_dict()
    old = OrderedDict(
        (k.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."), v) for k, v in state.items()
    )
    assert old.keys() != state.keys()
    torch.save(old, tmp_path / "old.pth")
    net = TorchvisionNet("densenet121", 7, weights=str(tmp_path / "old.pth"))
    assert same(net, state, but="classifier.")


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_pretrained_networks_with_a_second_output_give_one_and_convert_the_images(tmp_path, name):
    # As torchvision's files are: with the second output.
    saved(tmp_path / "with_aux.pth", name, aux_logits=True, init_weights=False)
    net = TorchvisionNet(name, 7, weights=str(tmp_path / "with_aux.pth"))
    assert net.net.transform_input
    assert net(torch.randn(2, 1, 96, 96)).shape == (2, 7)


def test_weights_of_another_network_are_refused(tmp_path):
    saved(tmp_path / "other.pth", "squeezenet1_1")
    with pytest.raises(UserError, match="those of another network: they lack"):
        TorchvisionNet(SMALL, 7, weights=str(tmp_path / "other.pth"))


def test_weights_of_another_width_are_refused(tmp_path):
    saved(tmp_path / "wider.pth", "shufflenet_v2_x1_0")
    with pytest.raises(UserError, match="do not fit: size mismatch") as caught:
        TorchvisionNet(SMALL, 7, weights=str(tmp_path / "wider.pth"))
    assert len(str(caught.value).splitlines()) == 1


class Harmful:
    def __reduce__(self):
        return open, ("harm.txt", "w")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda file: torch.save(Harmful(), file), "refused"),
        (lambda file: file.write_text("<html>not found</html>"), "not a checkpoint"),
        (lambda file: torch.save({"epoch": 3}, file), "no state dict"),
        (lambda file: None, "there is no file"),
    ],
)
def test_files_that_hold_no_weights_are_refused_and_run_nothing(workdir, write, message):
    write(workdir / "bad.pth")
    with pytest.raises(UserError, match=message):
        TorchvisionNet(SMALL, 7, weights="bad.pth")
    assert not (workdir / "harm.txt").exists()
