"""A run that nobody has trained: its files and a network, made in milliseconds."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from project.data import DigitsDataModule
from project.models import ConvNet
from project.runs import LoadedRun, Run
from project.tasks import ClassificationTask

MakeRun = Callable[..., LoadedRun]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Make ``run/`` of a network for the digits, of the class and arguments that built it."""

    def make(net: nn.Module, class_path: str, **arguments) -> LoadedRun:
        folder = tmp_path / "run"
        folder.mkdir()
        config = {
            "trainer": {},
            "data": {"class_path": "project.data.DigitsDataModule"},
            "model": {
                "class_path": "project.tasks.ClassificationTask",
                "init_args": {"net": {"class_path": class_path, "init_args": arguments}},
            },
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        torch.save({"epoch": 0, "global_step": 3}, folder / "last.ckpt")
        task = ClassificationTask(net, num_classes=10).eval()
        return LoadedRun(Run(folder), task, DigitsDataModule(), folder / "last.ckpt")

    return make


@pytest.fixture
def untrained(make_run: MakeRun) -> LoadedRun:
    """A run of a small ConvNet."""
    arguments = {"in_channels": 1, "num_classes": 10, "hidden_dim": 4}
    return make_run(ConvNet(**arguments), "project.models.ConvNet", **arguments)
