"""Pretrained weights from the command line: asked for once, never again by the run they began."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from torchvision.models import get_model

from project.cli import main
from project.runs import find_run, load_run

NET = ("--model.net", "project.models.TorchvisionNet", "--model.net.name", "shufflenet_v2_x0_5")
FEW = ("--trainer.max_steps", "2", "--trainer.limit_val_batches", "1", "--data.image_size", "32")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    state = get_model("shufflenet_v2_x0_5").state_dict()
    torch.save(state, folder / "shufflenetv2_x0.5-f707e7126e.pth")
    return folder


@pytest.mark.slow
def test_a_run_loads_without_the_weights_it_began_with(hub: Path, workdir: Path) -> None:
    assert main(["fit", *NET, *FEW, "--model.net.weights", "DEFAULT"]) == 0
    shutil.rmtree(hub)
    net = yaml.safe_load(find_run("last").config.read_text())["model"]["init_args"]["net"]
    assert net["init_args"]["weights"] == "DEFAULT"
    assert load_run(ckpt_path="last").task.net.net.fc.out_features == 10
    assert main(["test", "--run", "last"]) == 0
    assert main(["fit", "--resume", "last", "--trainer.max_steps", "4"]) == 0


def test_null_takes_back_the_weights_of_a_recipe(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = workdir / "own.yaml"
    net = {"class_path": NET[1], "init_args": {"name": NET[3], "weights": "DEFAULT"}}
    own.write_text(yaml.safe_dump({"model": {"init_args": {"net": net}}}))
    line = ["fit", "--config", str(own), "--model.net.weights", "null"]
    assert main([*line, "--print_config"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["model"]["init_args"]["net"]["init_args"]["weights"] is None


def test_torchvisions_own_function_with_weights_is_told_of_our_network(
    capsys: pytest.CaptureFixture[str],
) -> None:
    net = ("--model.net", "torchvision.models.resnet18", "--model.net.weights", "DEFAULT")
    assert main(["fit", *net]) == 2
    said = capsys.readouterr().err
    assert "are for 1000 classes, the data have 10" in said
    assert "--model.net project.models.TorchvisionNet" in said
    assert len(said.strip().splitlines()) <= 3


@pytest.mark.slow
def test_figures_of_the_classes_stand_after_a_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["fit", "--trainer.max_steps", "2"]) == 0
    assert "class (test)" in capsys.readouterr().out
