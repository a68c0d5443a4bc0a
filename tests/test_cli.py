"""The command's answers: help, and mistakes of the user's."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lightning_utilities.core.imports import RequirementCache

from project import __version__, helptext
from project.cli import main

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def mistake(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Run a command that must be refused; return what it says."""
    assert main([*args]) == 2
    said = capsys.readouterr().err
    assert said.startswith("Error: ")
    assert "Traceback" not in said
    assert "usage:" not in said
    assert 1 <= len(said.strip().splitlines()) <= 3
    return said


@pytest.mark.parametrize("args", [[], ["--help"], ["--version"], ["fit", "--help"], ["fti"]])
def test_quick_answers_come_without_torch(args: list[str]) -> None:
    code = (
        "import sys; from project.cli import main; main(sys.argv[1:]); "
        "sys.exit(bool({'torch', 'lightning', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, timeout=20)
    assert done.returncode == 0
    assert done.stdout or done.stderr


def test_overview_shows_every_verb_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    for verb in helptext.verbs():
        assert re.search(rf"^  {verb} ", said, re.MULTILINE)
        assert re.search(rf"(lightning|make) {verb} ", said)
    assert not re.search(r"^  \w+ +[A-Z]", said, re.MULTILINE)  # all begin alike


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("verb", list(helptext.SETTINGS))
def test_help_fits_a_screen(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


@pytest.mark.slow
def test_every_setting_of_the_short_help_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--help-all"]) == 0
    everything = capsys.readouterr().out
    shown = set(re.findall(r"^  (--[a-z_.]+)", helptext.FIT, re.MULTILINE)) - {"--help-all"}
    classes = {
        name
        for name in shown
        if re.match(r"--(data|model|checkpoint|early_stopping|autosave)\.", name)
    }
    for name in shown - classes:
        assert f"{name} " in everything or f"{name}\n" in everything, name
    # The settings of a class are listed where the class is chosen: the parser takes them.
    given = {
        "data_dir": "x",
        "batch_size": "8",
        "num_workers": "0",
        "net": "project.models.ConvNet",
    }
    given |= {"optimizer": "torch.optim.SGD", "scheduler": "null", "hidden_dims": "[8]"}
    given |= {"monitor": "val/acc", "patience": "3", "every_n_minutes": "5"}
    config = ["--config", str(CONFIGS / "mnist.yaml")]
    for name in classes:
        value = given[name.rsplit(".", 1)[-1]]
        assert main(["fit", *config, f"{name}={value}", "--print_config"]) == 0, name


def test_command_line_beats_configuration_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    config = ["--config", str(CONFIGS / "mnist.yaml")]
    for args in (["--data.batch_size", "7", *config], [*config, "--data.batch_size", "7"]):
        assert main(["fit", *args, "--print_config"]) == 0
        assert "batch_size: 7\n" in capsys.readouterr().out


def test_numbers_with_an_exponent_are_numbers(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("r49.yaml").write_text(
        "trainer:\n  gradient_clip_val: 1e-1\n"
        "model:\n  init_args:\n    optimizer:\n      class_path: torch.optim.AdamW\n"
        "      init_args: {lr: 1e-3, weight_decay: 1e-2}\n"
    )
    assert main(["fit", "--config", "r49.yaml", "--print_config"]) == 0
    said = capsys.readouterr().out
    for line in ("gradient_clip_val: 0.1\n", "lr: 0.001\n", "weight_decay: 0.01\n"):
        assert line in said


def test_one_key_of_a_nested_block_leaves_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--checkpoint.save_top_k", "7", "--print_config"]) == 0
    said = capsys.readouterr().out
    assert "save_top_k: 7\n" in said
    assert "monitor: val/acc\n" in said


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["fti"], "fit"),
        (["fit", "--trainer.max_epoch", "3"], "max_epochs"),
        (["fit", "--trainer.max_epochs", "abc"], "int"),
        (["fit", "--model.net.hiden_dim", "3"], "hidden_dim"),
        (["fit", "--model.optimzer", "torch.optim.SGD"], "optimizer"),
        (["fit", "--model.optimizer", "torch.optim.SDG"], "torch.optim.SGD"),
        (["fit", "--model.optimizer.lrr", "1"], "lr"),
        (["fit", "--model.net", "ConvNet2"], "project.models.ConvNet"),
        (["fit", "--model.net", "project.models.ConvNett"], "project.models.ConvNet"),
        (["fit", "--data", "project.data.DigitDataModule"], "project.data.DigitsDataModule"),
        (["fit", "--data.batchsize", "3"], "batch_size"),
        (["fit", "--data.batch_size", "many"], "int"),
        (["fit", "--data.batch_size", "0"], "at least 1"),
        (["fit", "--datta.batch_size", "3"], "data"),
        (["fit", "--trainer.precision", "16-mixd"], "16-mixed"),
        (["fit", "--checkpoint.save_topk", "3"], "save_top_k"),
        (["fit", "--checkpoint.monitor", "val/accuracy"], "val/acc"),
        (["fit", "--early_stopping.monitor", "loss"], "val/loss"),
        (["fit", "--config", "configs/mnits.yaml"], "configs/mnist.yaml"),
        (["fit", "extra"], "extra"),
        (["fit", "--model.net.num_classes", "11"], "10"),
        (["fit", "--lr", "1"], "--model.optimizer.lr?"),
        (["fit", "--model.lr", "1"], "--model.optimizer.lr?"),
        (["fit", "--batch_size", "8"], "--data.batch_size?"),
        (["fit", "--epochs", "1"], "--trainer.max_epochs"),
        (["fit", "--max_epochs", "1"], "--trainer.max_epochs?"),
        (["fit", "--model.optimizer", "Adamw"], "mean torch.optim.AdamW?"),
        (["fit", "--model.net", "resnet18"], "torchvision.models.resnet18"),
        (["fit", "--model.scheduler", "steplr"], "torch.optim.lr_scheduler.StepLR"),
        (["fit", "--model.scheduler", "ReduceLROnPlateau"], "lr_scheduler.ReduceLROnPlateau"),
        (["fit", "--model.scheduler", "StepLR"], "--model.scheduler.step_size is required by"),
        (["fit", "--data.bogus.x", "1"], "--data.bogus.x"),
        (["fit", "--model.net.bogus", "1"], "--model.net.bogus. It has"),
        (["fit", "--model.optimzer", "x"], "mean --model.optimizer?"),
        (["fit", "--model.net", "MLP"], "project.models.MLP"),
        (["fit", "--model.net", "torch.optim.SGD"], "it is no Module"),
        (["fit", "--data", "project.models.MLP"], "it is no LightningDataModule"),
        (["fit", "configs/digits.yaml"], "mean --config configs/digits.yaml?"),
        (["fit", "--trainer.max_epochs", "1e1"], "'1e1'"),
        (["fit", "--config"], "--config needs a value"),
        (["test", "--run"], "--run needs a value"),
        (["fit", "-config", "x"], "mean --config?"),
        (["fit", "--config", "/"], "folder"),
        (["fit", "--run", "last"], "--resume"),
        (["test", "--run", "nosuch"], "nosuch"),
        (["test"], "Train one (lightning fit)"),
        (["test", "--ckpt_path", "nosuch.ckpt"], "nosuch.ckpt"),
        (["fit", "--model.optimizer.lr", "1e-3x"], "cannot be '1e-3x': expected a number."),
        (["fit", "--confg", "x"], "mean --config?"),
        (["fit", "--data.random_resized_crop", "true"], "[0.5,1]"),
        (["fit", "--data", "project.data.ImageLoading"], "project.data.loading.ImageLoading"),
        (["fit", "--data.balanced", "true", "--model.class_weights", "balanced"], "twice"),
        (["fit", "--model.optimizer.lr", "abc"], "cannot be 'abc': expected a number."),
        (["fit", "--early_stopping", "nul"], "no nul. Did you mean null?"),
        (["fit", "--trainer.logger", "TensorBord"], "project.callbacks.TensorBoard?"),
        (["fit", "--data", "MNIST"], "mean project.data.MNISTDataModule?"),
        (["fit", "--model.net", "nowhere/net.py"], "there is no file nowhere/net.py."),
        (
            ["fit", "--model.net", "project.models.MLP", "--model.net.hidden_dims", "256,128"],
            "'[256,128]'",
        ),
        (["fit", "--seed", "3"], "mean --seed_everything?"),
        (["fit", "--trainer.gradient_clip_val", "-1"], "gradient_clip_val cannot be -1"),
        (["fit", "--data.csv_file", "a.csv"], "configs/image_csv.yaml --data.csv_file a.csv?"),
        (["fit", "--trainer.devices", "0"], "devices='0'"),
        (["fit", "--trainer.accelerator", "cpu", "--trainer.devices", "abc"], "an int > 0"),
        (["fit", "--trainer.accelerator", "tpu"], "torch_xla"),
        (["fit", "--trainer.max_epochs", "-3"], "`max_epochs` must be"),
        (["fit", "--trainer.max_time", "1h"], "'1h': expected DD:HH:MM:SS, e.g. 00:01:00:00"),
    ],
)
def test_a_mistake_is_answered_with_what_was_meant(
    args: list[str], expected: str, capsys: pytest.CaptureFixture[str], workdir: Path
) -> None:
    assert expected in mistake(capsys, *args)
    assert not list(workdir.iterdir())  # nothing begun, nothing left


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trainer:\n  max_epoch: 3\n", "max_epochs"),
        ("tariner:\n  max_epochs: 3\n", "trainer"),
        ("trainer: [\n", "line 2"),
        ("just words\n", "mapping"),
        ("model:\n  init_args:\n    net:\n      init_args: {hiden_dim: 3}\n", "hidden_dim"),
        ("model:\n  init_args:\n    label_smoothing: 2\n", "label_smoothing"),
        ("trainer:\n  callbacks:\n    - project.callbacks.OverfitChek\n", "OverfitCheck"),
    ],
)
def test_a_mistake_in_a_file_is_answered_too(
    text: str, expected: str, capsys: pytest.CaptureFixture[str], workdir: Path
) -> None:
    Path("wrong.yaml").write_text(text)
    assert expected in mistake(capsys, "fit", "--config", "wrong.yaml")


@pytest.mark.parametrize("arg", ["--model.net", "--data", "--trainer.callbacks"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import numpyy\n", "ModuleNotFoundError: No module named 'numpyy'"),
        ("x(:\n", "SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_with_its_line(
    text: str,
    expected: str,
    arg: str,
    capsys: pytest.CaptureFixture[str],
    workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(workdir))
    Path("broken_net.py").write_text(text)
    assert f"broken_net.py, line 1: {expected}" in mistake(capsys, "fit", arg, "broken_net.Net")


@pytest.fixture
def own_net(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Write a network whose constructor holds one line; return its class path."""
    monkeypatch.syspath_prepend(str(workdir))

    def write(name: str, line: str) -> str:
        Path(f"{name}.py").write_text(
            "from torch import nn\nclass Net(nn.Module):\n"
            f"    def __init__(self) -> None:\n        super().__init__()\n        {line}\n"
        )
        return f"{name}.Net"

    return write


def test_a_constructor_that_refuses_is_named(
    own_net: Callable[[str, str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = own_net("refusing", "raise ValueError('width must be even')")
    assert "refusing.Net: width must be even" in mistake(capsys, "fit", "--model.net", path)
    path = own_net("converting", "int('abc')")
    assert "converting.py, line 5: ValueError" in mistake(capsys, "fit", "--model.net", path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nope", "NameError: name 'nope' is not defined"),
        ("nn.Linea(1, 1)", "AttributeError: module 'torch.nn' has no attribute 'Linea'. Did you"),
        ("len(3)", "TypeError: object of type 'int' has no len()"),
        ("self.forward = lambda x: self.nope", "AttributeError: 'Net' object has no attribute"),
    ],
)
def test_a_bug_in_an_own_network_is_named_with_its_line(
    line: str,
    said: str,
    own_net: Callable[[str, str], str],
    capsys: pytest.CaptureFixture[str],
    workdir: Path,
) -> None:
    path = own_net(f"buggy_{len(line)}", line)
    expected = f"Error: buggy_{len(line)}.py, line 5: {said}"
    assert mistake(capsys, "fit", "--model.net", path).startswith(expected)
    assert not list(workdir.glob("logs/*/*"))


def test_a_bug_outside_of_the_users_files_keeps_its_traceback() -> None:
    net = ["--model.net", "torch.nn.Embedding", "--model.net.embedding_dim", "2"]
    with pytest.raises(RuntimeError, match="negative dimension"):
        main(["fit", *net, "--model.net.num_embeddings", "-1"])


def test_a_logger_that_is_not_installed_is_named_with_our_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = RequirementCache("no_such_package>=1")
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", missing)
    said = mistake(capsys, "fit", "--config", str(CONFIGS / "presets" / "wandb.yaml"))
    assert "pip install -e '.[loggers]'" in said


def test_a_file_is_answered_with_the_classes_in_it(
    own_net: Callable[[str, str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    own_net("filed", "pass")
    assert "Did you mean filed.Net?" in mistake(capsys, "fit", "--model.net", "filed.py")


def test_a_folder_of_images_without_its_recipe(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = mistake(capsys, "fit", "--data.data_dir", "photos")
    assert "Did you mean --config configs/image_folder.yaml --data.data_dir photos?" in said
    assert "data_seed" not in said


def test_a_file_with_data_and_without_a_task(
    capsys: pytest.CaptureFixture[str], workdir: Path
) -> None:
    Path("half.yaml").write_text(
        "data: {class_path: project.data.DigitsDataModule}\n"
        "model: {init_args: {label_smoothing: 0.2}}\n"
    )
    said = mistake(capsys, "fit", "--config", "half.yaml")
    assert "half.yaml is taken as a recipe" in said
    both = ["--config", str(CONFIGS / "digits.yaml"), "--config", "half.yaml"]
    assert main(["fit", *both, "--print_config"]) == 0
    assert "label_smoothing: 0.2\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_network_in_the_current_folder_is_found(workdir: Path) -> None:
    Path("mynet.py").write_text("from project.models import MLP\nclass MyNet(MLP):\n    pass\n")
    code = "import sys; sys.path = [p for p in sys.path if p]; from project.cli import main; "
    code += "sys.exit(main(['fit', '--model.net', 'mynet.MyNet', '--print_config']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_not_utf8(capsys: pytest.CaptureFixture[str], workdir: Path) -> None:
    Path("latin.yaml").write_bytes(b"seed_everything: 1 # \xe9\n")
    assert "UTF-8" in mistake(capsys, "fit", "--config", "latin.yaml")


def test_processes_that_a_run_cannot_be_sent_to(capsys: pytest.CaptureFixture[str]) -> None:
    said = mistake(capsys, "fit", "--trainer.strategy", "ddp_spawn", "--trainer.accelerator", "cpu")
    assert "Use --trainer.strategy ddp," in said


def test_a_run_given_as_configuration(capsys: pytest.CaptureFixture[str], workdir: Path) -> None:
    Path("run").mkdir()
    Path("run/config.yaml").touch()
    assert "--config run/config.yaml?" in mistake(capsys, "fit", "--config", "run")


def test_a_block_that_is_commented_out_says_nothing(
    capsys: pytest.CaptureFixture[str], workdir: Path
) -> None:
    Path("empty.yaml").write_text("trainer:\n#  max_epochs: 3\nmodel:\n")
    assert main(["fit", "--config", "empty.yaml", "--print_config"]) == 0
    assert "max_epochs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--data.help", "project.data.DigitsDataModule"], "batch_size"),
        (["--model.help", "project.tasks.ClassificationTask"], "label_smoothing"),
        (["--model.net.help", "project.models.MLP"], "hidden_dim"),
        (["--help-all"], "--data.help CLASS"),
    ],
)
def test_the_settings_of_a_class_are_listed(
    args: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", *args]) == 0
    assert expected in capsys.readouterr().out


def test_help_of_a_verb_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "fit"]) == 0
    assert capsys.readouterr().out == helptext.FIT + "\n"


def test_a_reader_that_stops_reading_is_no_failure() -> None:
    code = "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); "
    code += "from project.cli import main; sys.exit(main(['--help']))"
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, timeout=20)
    assert (done.returncode, done.stderr) == (0, b"")
