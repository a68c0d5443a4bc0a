"""`lightning doctor`: what it answers, and that it leaves no trace."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from project.cli import main
from project.doctor.report import Report, Result
from project.doctor.table import show
from project.runs import Run

SMALL = ["--model.net.hidden_dim", "8", "--trainer.max_epochs", "8"]


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from project.cli import main; main(['doctor', '--help']); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--output FILE" in done.stdout


@pytest.mark.slow
def test_a_healthy_recipe_ends_with_0_and_a_report(tmp_path: Path) -> None:
    assert main(["doctor", *SMALL, "--output", "report.json"]) == 0
    content = json.loads(Path("report.json").read_text())
    assert content["counts"]["FAIL"] == 0
    assert content["counts"]["WARN"] <= 1
    assert {"check", "group", "status", "evidence", "advice", "seconds"} == set(
        content["findings"][0]
    )
    assert {found["group"] for found in content["findings"]} == {
        "data",
        "model",
        "training",
        "machine",
    }
    left = {name for name in files(tmp_path) if not name.startswith("logs/digits/doctor/")}
    assert left == {"report.json"}


@pytest.mark.slow
def test_without_a_folder_for_the_picture_there_are_findings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("logs").touch()
    assert main(["doctor", *SMALL]) == 1
    said = capsys.readouterr()
    assert "folder-is-writable" in said.out
    assert "A training batch with its labels" not in said.out


@pytest.mark.slow
def test_a_mistake_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--model.optimizer.init_args.lr", "1000"]
    assert main(["doctor", *SMALL, *wrong]) == 1
    assert "FAIL" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--model.net.hidden_dimm", "8"], "hidden_dim"),
        (["--output"], "--output"),
        (["--output", "."], ". cannot be written"),
        (["--ouptut", "x"], "lightning doctor has no setting --ouptut. Did you mean --output?"),
        (["--only", "data"], "lightning doctor has no setting --only. See lightning doctor --help"),
        (["last"], "Did you mean --run last?"),
        (["--resume", "last"], "doctor has no setting --resume. To check a run: --run RUN"),
    ],
)
def test_a_wrong_setting_ends_with_2(
    args: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *args]) == 2
    assert said in capsys.readouterr().err
    assert not files(tmp_path)


def test_what_was_skipped_is_said_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    skipped = {"one": "no time left", "two": "no loader has workers", "three": "no time left"}
    found = [Result(name, "data", "SKIP", why, "", 0.0) for name, why in skipped.items()]
    show(Report(found), None, Path("report.json"))
    assert capsys.readouterr().out.splitlines() == [
        "SKIP  one, three: no time left",
        "SKIP  two: no loader has workers",
        "0 FAIL, 0 WARN, 0 PASS, 3 SKIP",
        "All findings: report.json",
    ]


@pytest.mark.slow
def test_a_run_is_looked_at_and_left_as_it_is(digits_run: Run) -> None:
    before = {file: (digits_run.path / file).read_bytes() for file in files(digits_run.path)}
    assert main(["doctor", "--run", str(digits_run.path)]) in (0, 1)
    assert {f: (digits_run.path / f).read_bytes() for f in files(digits_run.path)} == before


@pytest.mark.slow
def test_a_run_is_the_same_to_the_bit_after_the_doctor() -> None:
    weights = []
    for root, examined in (("one", False), ("two", True)):
        args = [*SMALL, "--trainer.max_epochs", "2", "--trainer.default_root_dir", root]
        if examined:
            main(["doctor", *args])
        assert main(["fit", *args]) == 0
        (file,) = Path(root).rglob("last.ckpt")
        weights.append(torch.load(file, weights_only=True)["state_dict"])
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
