"""Weights for others: they load where this project, Lightning and torchvision are not."""

import json
import os
import runpy
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement
from PIL import ExifTags, Image
from torch import nn

import project
from project.export import weights
from project.export.architecture import find_architecture
from project.export.weights import write_weights
from project.mistakes import RunFailed, UserError
from project.models import TorchvisionNet
from project.runs import LoadedRun, Run, load_run

MakeRun = Callable[..., LoadedRun]

load_file = pytest.importorskip("safetensors.torch").load_file

FILES = {"model.safetensors", "model.json", "net.py", "example.py"}


def needed(package: str) -> Iterator[metadata.Distribution]:
    """Yield a package and what it needs."""
    found = metadata.distribution(package)
    yield found
    for line in found.requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from needed(requirement.name)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that has torch, numpy and safetensors, as links to those at hand."""
    home = tmp_path_factory.mktemp("bare") / "env"
    venv.create(home)
    (site,) = home.glob("lib/python*/site-packages")
    source = Path(sysconfig.get_path("purelib"))
    packages = {d for name in ("torch", "numpy", "safetensors") for d in needed(name)}
    tops = {file.parts[0] for package in packages for file in package.files or []}
    for top in tops - {"..", "__pycache__"}:
        if (source / top).exists() and not (site / top).exists():
            (site / top).symlink_to(source / top)
    return home / "bin" / "python"


def run(python: Path, *args: str, cwd: Path) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run([python, *args], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_example_predicts_where_only_torch_and_safetensors_are(
    digits_run: Run, bare_python: Path, tmp_path: Path
) -> None:
    for package in (project.__name__, "lightning", "torchvision", "yaml", "PIL"):
        missing = f"try:\n import {package}\nexcept ImportError: print('none')"
        assert run(bare_python, "-c", missing, cwd=tmp_path) == "none\n"
    trained, folder = load_run(digits_run.path), tmp_path / "weights"
    assert {file.name for file in write_weights(trained, folder)} == FILES
    assert run(bare_python, "example.py", cwd=folder).startswith("class ")

    trained.datamodule.setup("test")
    images = trained.datamodule.test_set.images
    torch.save(images, tmp_path / "images.pt")
    text = (folder / "example.py").read_text()
    (own,) = (line for line in text.splitlines() if line.startswith("images = "))
    text = text.replace(own, f"images = torch.load({str(tmp_path / 'images.pt')!r})")
    text += f"\ntorch.save(logits, {str(tmp_path / 'logits.pt')!r})\n"
    (folder / "mine.py").write_text(text)
    said = run(bare_python, "mine.py", cwd=tmp_path / "weights")

    with torch.inference_mode():
        expected = trained.task(trained.datamodule.preprocess(images))
    logits = torch.load(tmp_path / "logits.pt")
    assert len(logits) == 360
    # Normalised in fractions instead of bytes: a few units in the last place.
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(logits.argmax(dim=1), expected.argmax(dim=1))
    assert said == f"class {expected[0].argmax()}\n"


def test_the_json_says_what_the_weights_are(untrained: LoadedRun, tmp_path: Path) -> None:
    write_weights(untrained, tmp_path / "weights")
    said = json.loads((tmp_path / "weights" / "model.json").read_text())
    assert said["class_names"] == [str(digit) for digit in range(10)]
    assert (said["in_channels"], said["image_size"]) == (1, 8)
    assert (said["mean"], said["std"]) == ([0.3055], [0.3759])
    assert said["architecture"]["made_by"] == "net.ConvNet"
    assert said["architecture"]["arguments"]["hidden_dim"] == 4
    assert (said["checkpoint"], said["epoch"], said["step"]) == ("last.ckpt", 0, 3)
    assert said["git_commit"] is None  # the run's record does not say, so nothing is said
    assert said["metrics"] == {}


def test_the_example_reads_an_image_file_as_the_run_does(
    untrained: LoadedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    photo, folder = tmp_path / "photo.png", tmp_path / "weights"
    noise = np.random.default_rng(0).integers(0, 256, (37, 53), dtype=np.uint8)
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    Image.fromarray(noise).convert("RGB").save(photo, exif=turned)
    write_weights(untrained, folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr("sys.argv", ["example.py", str(photo)])
    found = runpy.run_path(str(folder / "example.py"))
    sys.modules.pop("net", None)
    read = untrained.datamodule.read(str(photo)).float()
    # The run's reader computes in bytes, which may be rounded the other way.
    torch.testing.assert_close(found["images"][0], read, atol=1, rtol=0)
    names = [str(digit) for digit in range(10)]
    assert capsys.readouterr().out == f"class {names[int(found['logits'][0].argmax())]}\n"


def test_tied_weights_are_written_each_by_itself(
    untrained: LoadedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    untrained.task.net.again = untrained.task.net.head
    monkeypatch.setattr(weights, "_compare", lambda *_: None)  # a ConvNet has no `again`
    write_weights(untrained, tmp_path / "weights")
    found = load_file(tmp_path / "weights" / "model.safetensors")
    assert torch.equal(found["again.weight"], found["head.weight"])


@pytest.mark.slow
def test_of_a_network_of_torchvision_the_function_and_its_arguments_are_named(
    make_run: MakeRun, tmp_path: Path
) -> None:
    net = TorchvisionNet("shufflenet_v2_x0_5", num_classes=10, in_channels=1)
    loaded = make_run(net, "project.models.TorchvisionNet", name="unused")
    loaded.datamodule.image_size = 32
    names = {file.name for file in write_weights(loaded, tmp_path / "weights")}
    assert names == FILES - {"net.py"}
    said = json.loads((tmp_path / "weights" / "model.json").read_text())["architecture"]
    assert said["made_by"] == "torchvision.models.get_model"
    assert said["arguments"] == {"name": "shufflenet_v2_x0_5", "num_classes": 10}
    assert said["packages"] == ["torchvision"]
    assert not any(
        key.startswith("net.") for key in load_file(tmp_path / "weights/model.safetensors")
    )


def test_source_that_needs_the_project_is_not_copied(make_run: MakeRun) -> None:
    net = nn.Linear(1, 1)
    loaded = make_run(net, "project.models.TorchvisionNet", name="resnet18")
    found = find_architecture(loaded)
    assert (found.source, found.packages) == (None, [project.__name__])


def test_a_network_that_answers_differently_is_not_written(
    untrained: LoadedRun, tmp_path: Path
) -> None:
    untrained.task.net.features[1] = nn.Identity()  # a change that its weights do not show
    folder = tmp_path / "weights"
    with pytest.raises(RunFailed, match="answers differently"):
        write_weights(untrained, folder)
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_weights_written_before_stay_if_new_ones_cannot_be_written(
    untrained: LoadedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "weights"
    write_weights(untrained, folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights, "_compare", full)
    with pytest.raises(OSError, match="No space"):
        write_weights(untrained, folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run", "weights"]


def test_weights_take_the_place_of_older_ones_but_of_nothing_else(
    untrained: LoadedRun, tmp_path: Path
) -> None:
    folder = tmp_path / "weights"
    write_weights(untrained, folder)
    assert {file.name for file in write_weights(untrained, folder)} == FILES
    (folder / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"holds thesis\.tex"):
        write_weights(untrained, folder)
    assert {file.name for file in folder.iterdir()} == FILES | {"thesis.tex"}


def test_without_safetensors_the_command_that_installs_it_is_said(
    untrained: LoadedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("project.export.wanted.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[export\]'"):
        write_weights(untrained, tmp_path / "weights")


def test_a_module_of_ones_own_has_weights_and_no_example(
    untrained: LoadedRun, tmp_path: Path
) -> None:
    del untrained.task.net
    untrained.task.layer = nn.Linear(2, 2)
    names = {file.name for file in write_weights(untrained, tmp_path / "weights")}
    assert names == {"model.safetensors", "model.json"}
