"""`lightning export`: files that compute what the run computes, or none."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from project.cli import main
from project.export.exported import open_exported
from project.mistakes import UserError
from project.runs import Run, load_run

for extra in ("onnx", "onnxscript", "onnxruntime", "safetensors"):
    pytest.importorskip(extra)


@pytest.fixture(scope="module")
def exported_run(digits_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A copy of the digits run that tests may write into."""
    copy = tmp_path_factory.mktemp("exported") / digits_run.path.name
    return Run(Path(shutil.copytree(digits_run.path, copy)))


def outputs_of(run: Run) -> tuple[Tensor, Tensor]:
    """The first 40 test images, uint8, and what the run itself says, probs."""
    loaded = load_run(run.path)
    loaded.datamodule.setup("test")
    images = next(iter(loaded.datamodule.test_dataloader()))[0][:40]
    with torch.inference_mode():
        return images, loaded.task(loaded.datamodule.preprocess(images)).softmax(1)


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from project.cli import main; main(['export', '--help']); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--format FORMAT" in done.stdout
    assert len(done.stdout.splitlines()) <= 40


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "export needs a run"),
        (["last"], "Did you mean --run last?"),
        (["onnx"], "Did you mean --format onnx?"),
        (["last.ckpt"], "Did you mean --ckpt_path last.ckpt?"),
        (["--run", "last", "--ckpt", "best"], "Did you mean --ckpt_path?"),
        (["--run", "last", "--formt", "onnx"], "Did you mean --format?"),
        (["--run", "last", "--format", "onx"], "Did you mean onnx?"),
        (["--run", "last", "--softmax", "yes"], "not one of true, false"),
        (["--run", "last"], "No run with a checkpoint"),
        (["--run", "last", "--format"], "--format"),
        (["--run", "last", "--tolerance", "-1"], "fraction in [0, 1]"),
    ],
)
def test_a_wrong_setting_ends_with_2(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *args]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--format", "pt2", "--int8", "static"], "Say --format onnx"),
        (["--int8", "static", "--precision", "float16"], "give one"),
        (["--precision", "bfloat16"], "--format pt2"),
        (["--opset", "9"], "from 18 to"),
        (["--format", "pt2", "--output", "x.onnx"], "Say --format onnx, or --output x.pt2"),
        (["--output", "x.pt2"], "Say --format pt2, or --output x.onnx"),
        (["--weights", "--benchmark"], "say --format"),
        pytest.param(["--output", "no/model"], "no folder", marks=pytest.mark.slow),
    ],
)
def test_what_a_format_cannot_do_ends_with_2(
    digits_run: Run, args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--run", str(digits_run.path), *args]) == 2
    assert said in capsys.readouterr().err


def test_a_missing_extra_ends_with_the_command_that_installs_it(
    digits_run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("project.export.wanted.find_spec", lambda name: None)
    assert main(["export", "--run", str(digits_run.path)]) == 2
    assert "pip install -e '.[export]'" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"PK\3\4 broken", b"\x08\x09 no model"])
def test_a_file_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(UserError, match="no exported model"):
        open_exported(tmp_path / "model.onnx")


@pytest.mark.slow
def test_the_check_takes_no_file_of_the_folder_for_a_library(
    digits_run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("project.export.model_card.write_model_card", lambda *_: "none")
    monkeypatch.chdir(tmp_path)
    Path("onnxruntime.py").write_text("raise ImportError('not the library')")
    assert main(["export", "--run", str(digits_run.path), "--output", "model.onnx"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("onnx", "model.onnx"), ("pt2", "model.pt2")])
def test_a_file_says_what_the_run_says(
    exported_run: Run, kind: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--run", str(exported_run.path), "--format", kind]) == 0
    said = capsys.readouterr().out
    own = exported_run.record["scores"]["test/acc"]
    assert f"Acc    test: {own:.4f}, the run's own {own:.4f}" in said
    use = f"serve --model {exported_run.path / name}"
    assert said.splitlines()[-1].startswith("Next   ")
    assert said.endswith(f"lightning {use}\n")
    card = (exported_run.path / "MODEL_CARD.md").read_text()
    assert f"lightning {use}" in card
    assert f'open_exported("{exported_run.path / name}")' in card
    file = open_exported(exported_run.path / name)
    images, probs = outputs_of(exported_run)
    for size in (1, 3, 40):  # other sizes than it was checked at
        np.testing.assert_allclose(file.predict(images[:size]), probs[:size], atol=1e-6)
    about = file.metadata
    assert about["class_names"] == [str(digit) for digit in range(10)]
    assert (about["in_channels"], about["image_size"]) == (1, 8)
    assert about["metrics"]["test/acc"] == pytest.approx(own)
    assert about["precision"] == "float32"
    assert about["opset"] == (18 if kind == "onnx" else None)
    # Neither paths of this machine nor a process's draft.
    if kind == "onnx":
        assert str(Path(__file__).parents[2]).encode() not in file.path.read_bytes()
    assert not list(exported_run.path.glob(".*"))


@pytest.mark.slow
def test_without_preprocessing_and_softmax_it_predicts_the_same(
    exported_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = ["--preprocess", "false", "--softmax", "false", "--output", "bare"]
    assert main(["export", "--run", str(exported_run.path), "--format", "torchscript", *bare]) == 0
    assert "deprecated" in capsys.readouterr().out
    images, probs = outputs_of(exported_run)
    file = open_exported("bare")
    np.testing.assert_allclose(file.predict(images), probs, atol=1e-6)
    normalised = load_run(exported_run.path).datamodule.preprocess(images)
    np.testing.assert_allclose(file.predict(normalised), probs, atol=1e-6)
    with pytest.raises(ValueError, match=r"images must be \(B, 1, 8, 8\)"):
        file.predict(images[:, :, :4])


@pytest.mark.slow
@pytest.mark.parametrize(
    "args", [["--precision", "float16", "--format", "torchscript"], ["--int8", "static"]]
)
def test_fewer_bits_are_smaller_and_about_the_same(exported_run: Run, args: list[str]) -> None:
    run = ["export", "--run", str(exported_run.path)]
    assert main([*run, *args, "--output", "small"]) == 0
    file = open_exported("small")
    images, probs = outputs_of(exported_run)
    found = file.predict(images)
    assert np.mean(found.argmax(1) == probs.numpy().argmax(1)) > 0.9
    assert np.abs(found - probs.numpy()).max() > 1e-5  # they are fewer bits
    assert file.metadata["precision"] in ("float16", "int8-static")


@pytest.mark.slow
def test_beyond_the_tolerance_an_earlier_file_stays(
    exported_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("model.pt").write_text("earlier")
    args = ["--format", "torchscript", "--precision", "bfloat16", "--tolerance", "1e-7"]
    output = ["--output", "model.pt"]
    assert main(["export", "--run", str(exported_run.path), *args, *output]) == 1
    assert "1e-07 was allowed" in capsys.readouterr().err
    assert [file.name for file in Path.cwd().iterdir()] == ["model.pt"]
    assert Path("model.pt").read_text() == "earlier"


@pytest.mark.slow
def test_what_to_do_next_is_said_of_weights_too(
    exported_run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A data module of the user's own may not know how files are read: serve would refuse.
    monkeypatch.setattr("project.data.DigitsDataModule.reader", None)
    assert main(["export", "--run", str(exported_run.path), "--format", "onnx", "--weights"]) == 0
    first, second = capsys.readouterr().out.splitlines()[-2:]
    file, example = exported_run.path / "model.onnx", exported_run.path / "weights" / "example.py"
    assert first == f"Next   project.export.exported.open_exported('{file}').predict(images)"
    assert second.endswith(f"python {example}")
    subprocess.run(second, shell=True, check=True, capture_output=True)


class BatchNormOfTheBatch(nn.Module):
    """A BatchNorm without running statistics, which evaluates with those of the batch."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten()
        )
        self.head = nn.Linear(144, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(images))
        return logits


@pytest.mark.slow
def test_statistics_of_the_batch_are_never_a_silent_difference(
    digits_run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = load_run(digits_run.path)
    net = BatchNormOfTheBatch().eval()
    loaded.task.net = net
    monkeypatch.setattr("project.runs.load_run", lambda *_: loaded)
    monkeypatch.setattr("project.export.model_card.write_model_card", lambda *_: "none")
    args = ["--run", str(digits_run.path), "--output", "model"]
    assert main(["export", *args]) == 0
    said = capsys.readouterr().out
    assert "with the others of its batch" in said
    assert "does its test step do more than forward" in said  # it is not the network of the record
    loaded.datamodule.setup("test")
    images = loaded.datamodule.test_set.__getitems__(list(range(4)))[0]
    for size in (1, 4):
        batch = loaded.datamodule.preprocess(images[:size])
        probs = loaded.task(batch).softmax(1).detach().numpy()
        np.testing.assert_allclose(open_exported("model").predict(images[:size]), probs, atol=1e-4)
