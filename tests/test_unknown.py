"""Settings that nothing has are refused from the sources alone, as the parser would refuse them."""

import subprocess
import sys
from pathlib import Path

import pytest

from project import request
from project.cli import main
from project.mistakes import UserError
from project.request import read_request
from project.runs import Run

WRONG = {
    "trainer": ["fit", "--trainer.max_epoch", "3"],
    "model": ["fit", "--model.num_clases", "3"],
    "net": ["fit", "--model.init_args.net.init_args.widht", "3"],
    "data": ["fit", "--data.batchsize=3"],
    "optimizer": ["fit", "--model.optimizer.lrr", "1"],
    "other optimizer": ["fit", "--model.optimizer=torch.optim.SGD", "--model.optimizer.momentm=0"],
    "callback": ["fit", "--autosave.every_n_step", "3"],
    "logger": ["fit", "--trainer.logger.save_dri", "x"],
    "recipe": ["fit", "--config", "configs/cifar10_fast.yaml", "--model.scheduler.warmup", "3"],
    "verb": ["fit", "--optimizer.lrr", "1"],
}


def test_mistyped_settings_are_refused_without_torch() -> None:
    code = (
        "import sys; from project.cli import main; "
        f"codes = [main(args) for args in {list(WRONG.values())}]; "
        "sys.exit(codes != [2] * len(codes) or bool({'torch', 'lightning'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("has no setting") == len(WRONG)


@pytest.mark.parametrize(
    "args", [WRONG[kind] for kind in ("trainer", "net", "other optimizer", "logger", "verb")]
)
def test_the_parser_says_the_same(
    args: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError):
        read_request("fit", args[1:])
    assert main(args) == 2
    said = capsys.readouterr().err
    monkeypatch.setattr(request, "check_settings", lambda *_: None)
    assert main(args) == 2
    assert capsys.readouterr().err == said


def test_the_verb_that_was_typed_is_named(digits_run: Run) -> None:
    with pytest.raises(UserError, match=r"^lightning tune has no setting --trainer.max_epoch"):
        read_request("fit", ["--trainer.max_epoch", "3"], asked="tune")
    with pytest.raises(UserError, match=r"^lightning test has no setting --trainer.max_epoch"):
        read_request("test", ["--run", str(digits_run.path), "--trainer.max_epoch", "3"])
    with pytest.raises(UserError, match=r"--data\.batch_size"):
        read_request("test", ["--run", str(digits_run.path), "--data.batchsize", "3"])


@pytest.mark.parametrize(
    "args",
    [
        ["--model.net", "torchvision.models.resnet18", "--model.net.progress", "true"],
        ["--model.net=project.models.MLP", "--model.net.hidden_dims=[8]"],
        ["--model.net.hidden_dim=8", "--model.net=project.models.MLP"],
        ["--model.net", "MLP", "--model.net.hidden_dims=[8]"],
        ["--model.optimizer.class_path", "torch.optim.SGD", "--model.optimizer.momentum", "0.9"],
        ["--trainer.callbacks+=ModelSummary", "--trainer.callbacks.max_depth=2"],
        ["--trainer.logger", "CSVLogger", "--trainer.logger.flush_logs_every_n_steps", "5"],
        ["--trainer.strategy=FSDPStrategy", "--trainer.strategy.sharding_strategy=FULL_SHARD"],
        ["--model.net={class_path: torchvision.models.resnet18}", "--model.net.progress=true"],
        ["--model.dict_kwargs.x", "3"],
        ["--data.help"],
        ["--print_config"],
        ["--"],
    ],
)
def test_what_may_exist_is_left_to_the_parser(args: list[str]) -> None:
    read_request("fit", args)


@pytest.mark.parametrize(
    "text",
    [
        "model: {init_args: {net: project.models.MLP}}",
        "model: {init_args: {net: {class_path: project.models.MLP}}}",
        "model:\n  class_path: project.tasks.ClassificationTask\n  init_args: {net: MLP}",
    ],
)
def test_a_class_that_a_file_names_in_any_way_is_known(text: str) -> None:
    Path("net.yaml").write_text(text)
    read_request("fit", ["--config", "net.yaml", "--model.net.hidden_dims", "[8]"])


@pytest.mark.parametrize(
    "value", ["MNISTDataModule", "sub/data.yaml", "{class_path: project.data.MNISTDataModule}"]
)
def test_a_class_that_replaces_the_files_in_any_way_is_left_to_the_parser(value: str) -> None:
    Path("plain.yaml").write_text(
        "data: project.data.DigitsDataModule\nmodel: project.tasks.ClassificationTask\n"
    )
    Path("sub").mkdir()
    Path("sub/data.yaml").write_text("class_path: project.data.MNISTDataModule\n")
    read_request("fit", ["--config", "plain.yaml", "--data", value, "--data.data_dir", "x"])


def test_settings_of_a_network_of_the_users(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(workdir)
    Path("net_r8.py").write_text("class Net:\n    def __init__(self, width: int = 3): ...\n")
    read_request("fit", ["--model.net", "net_r8.Net", "--model.net.width", "4"])
    with pytest.raises(UserError, match=r"net_r8.Net has no setting --model.net.widht. .*width"):
        read_request("fit", ["--model.net", "net_r8.Net", "--model.net.widht", "4"])
