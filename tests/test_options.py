"""Words on the command line that are no settings: what they were meant to be."""

import subprocess
import sys
from pathlib import Path

import pytest

from project.cli import main
from project.mistakes import UserError
from project.recipes import find_config

RUN = "logs/digits/2026-01-31_12-00-00"


@pytest.fixture(autouse=True)
def some_run(workdir: Path) -> None:
    """A run's folder without weights, images and a checkpoint elsewhere."""
    for file in (f"{RUN}/config.yaml", f"{RUN}/checkpoints/last.ckpt", "photos/cat.png"):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).touch()
    Path(RUN, "run.json").write_text("{}")
    Path("labels.csv").touch()


def told(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main([*args]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) <= 3
    return said


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["fit", "last"], "--resume last"),
        (["fit", RUN], f"--resume {RUN}"),
        (["fit", "digits"], "--config configs/digits.yaml"),
        (["fit", "digit.yaml"], "--config configs/digits.yaml"),
        (["fit", "net.ckpt"], "--init_from net.ckpt"),
        (["fit", "photos"], "--config configs/image_folder.yaml --data.data_dir photos"),
        (["fit", "labels.csv"], "--config configs/image_csv.yaml --data.csv_file labels.csv"),
        (["test", "last"], "--run last"),
        (["test", RUN], f"--run {RUN}"),
        (["validate", "net.ckpt"], "--ckpt_path net.ckpt"),
        (["predict", "photos", "last"], "--run last"),
        (["predict", RUN, "photos"], f"--run {RUN}"),
        (["predict", "net.ckpt", "photos"], "--ckpt_path net.ckpt"),
        (["profile", "mnist"], "--config configs/mnist.yaml"),
        (["predict", "photos", "--topk", "3"], "--top_k"),
        (["predict", "photos", "--outpt=x.csv"], "--output"),
        (["predict", "photos", "--ckpt", "last"], "--ckpt_path"),
        (["test", "--resume", "last"], "--run last"),
        (["test", "--init_from", "labels.csv"], "--ckpt_path labels.csv"),
        (["fit", "--exp", "mine"], "--experiment"),
    ],
)
def test_a_word_is_answered_with_how_it_is_given(
    args: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"Did you mean {meant}?" in told(capsys, *args)


@pytest.mark.parametrize("args", [["fit", "extra"], ["fit", "photos/cat.png"], ["tune", "last"]])
def test_a_word_that_nobody_knows_is_refused(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, *args)
    assert said == f"Error: lightning {args[0]} does not take {args[1]!r} alone. See lightning " + (
        f"{args[0]} --help.\n"
    )


def test_images_are_named_without_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    said = told(capsys, "predict", "--images", "photos")
    assert "images are named without an option.\nE.g. lightning predict --run last photos/" in said


def test_settings_of_the_recipes_are_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--early_stopping", "null", "--seed_everything", "3", "--data.batch_size=8"]
    assert main(["fit", *line, "--print_config"]) == 0
    assert "batch_size: 8\n" in capsys.readouterr().out


@pytest.mark.parametrize("args", [["fit", "last"], ["tune", "--ouput", "x"], ["doctor", "--outpt"]])
def test_torch_is_not_needed_to_say_so(args: list[str]) -> None:
    code = "import sys; from project.cli import main; code = main(sys.argv[1:]); "
    code += "sys.exit(9 if 'torch' in sys.modules else code)"
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, timeout=20)
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("photos/cat.png", "it is a file.\nA run is a folder that"),
        (f"{RUN}/config.yaml", f"it is a file of one. Give {RUN}"),
        (f"{RUN}/checkpoints/last.ckpt", f"it is a file of one. Give {RUN}"),
        ("photos", "there is no config.yaml in it.\nA run is a folder that"),
        ("logs", f"it is a folder of runs. The newest is {RUN}"),
        ("logs/digits", f"it is a folder of runs. The newest is {RUN}"),
        (f"{RUN[:-1]}1", f"there is no such folder. Did you mean {RUN}?"),
        ("nowhere", "there is no such folder.\nA run is a folder that"),
    ],
)
@pytest.mark.parametrize("line", [["test", "--run"], ["fit", "--resume"]])
def test_what_is_no_run_is_said(
    line: list[str], given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{given} is not a run: {said}" in told(capsys, *line, given)


def test_a_checkpoint_is_told_from_other_files(capsys: pytest.CaptureFixture[str]) -> None:
    import zipfile

    said = told(capsys, "test", "--ckpt_path", "photos/cat.png")
    assert "photos/cat.png is not a checkpoint, or it is damaged" in said
    with zipfile.ZipFile("net.ckpt", "w") as file:
        file.writestr("archive/data.pkl", b"")
    said = told(capsys, "test", "--ckpt_path", "net.ckpt")
    assert "net.ckpt lies in no run's folder. Name the run that it is of, too: --run RUN." in said
    assert "lightning fit --init_from net.ckpt" in said
    assert f"Did you mean --run {RUN}?" in told(capsys, "test", "--ckpt_path", RUN)


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("tuned.yml", "tuned.yaml"),
        ("configs/digit.yaml", "configs/digits.yaml"),
        ("config/digits.yaml", "configs/digits.yaml"),
        ("digits.yml", "configs/digits.yaml"),
        ("digits", "configs/digits.yaml"),
        ("amp.yaml", "configs/presets/amp.yaml"),
        ("mine/stripe.yaml", "mine/stripes.yaml"),
    ],
)
def test_a_file_that_is_elsewhere_or_nearly_so_called_is_found(given: str, near: str) -> None:
    Path("tuned.yaml").touch()
    Path("mine").mkdir()
    Path("mine/stripes.yaml").touch()
    with pytest.raises(UserError) as raised:
        find_config(given)
    assert str(raised.value) == f"No configuration file {given}. Did you mean {near}?"
