"""`lightning serve`: what it answers before it serves, and what its extra brings."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from project.cli import main
from project.commands.serve import _options
from project.runs import Run

ROOT = Path(__file__).resolve().parents[2]


def test_help_needs_neither_torch_nor_aiohttp() -> None:
    code = (
        "import sys; from project.cli import main; main(['serve', '--help']); "
        "assert not {'torch', 'aiohttp'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--max_wait_ms N" in done.stdout
    assert len(done.stdout.splitlines()) <= 40


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "--run last"),
        (["last"], "Did you mean --run last?"),
        (["model.onnx"], "Did you mean --model model.onnx?"),
        (["--run", "nowhere"], "nowhere is not a run"),
        (["--model", "nothing.onnx"], "nothing.onnx"),
        (["--model", "a", "--run", "last"], "give one"),
        (["--run", "last", "--replica", "1"], "Did you mean --replicas?"),
        (["--run", "last", "--port", "65536"], "--port"),
        (["--run", "last", "--port", "x"], "number from 0 to 65535"),
        (["--run", "last", "--replicas", "0"], "--replicas"),
        (["--run", "last", "--timeout_s", "nan"], "number above 0"),
        (["--run", "last", "--log_level", "loud"], "--log_level"),
        (["--run"], "--run"),
        (["--run", "last", "--host", ""], "--host"),
        (["--model", __file__, "--device", "cuda"], "--device"),
    ],
)
def test_a_mistake_ends_with_2_and_says_what_to_do(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *args]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) <= 3


@pytest.mark.parametrize(
    ("said", "taken"), [("3", 3), ("2,1", 2), ("many", 7), ("", 7), ("-1", 7), ("0", 7)]
)
def test_threads_that_are_no_number_are_not_heeded(
    said: str, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.setattr("project.cores.threads", lambda: 7)
    assert _options([]).threads == taken


def test_without_its_extra_it_says_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], workdir: Path
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    (workdir / "model.onnx").touch()
    assert main(["serve", "--model", "model.onnx"]) == 2
    assert "pip install -e '.[serve]'" in capsys.readouterr().err


def test_no_package_of_the_extra_has_a_script_called_lightning() -> None:
    """Packages that have one overwrite this project's, and take it along when they go."""
    pytest.importorskip("aiohttp")
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = content["project"]["optional-dependencies"]["serve"]
    names, seen = [Requirement(line).name for line in wanted], set()
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        found = metadata.distribution(name)
        scripts = found.entry_points.select(group="console_scripts")
        assert "lightning" not in {script.name for script in scripts}, name
        needed = map(Requirement, found.requires or [])
        names += [r.name for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
    assert {"aiohttp", "yarl"} <= seen


@pytest.mark.slow
def test_a_wrong_device_or_a_damaged_checkpoint_ends_with_2(digits_run: Run, workdir: Path) -> None:
    pytest.importorskip("aiohttp")
    serve = [sys.executable, "-m", "project", "serve", "--run", str(digits_run.path)]
    serve += ["--port", "0", "--replicas", "1"]
    done = subprocess.run([*serve, "--device", "cuda:77"], capture_output=True, text=True)
    assert (done.returncode, "--device cuda:77" in done.stderr) == (2, True), done.stderr
    (workdir / "bad.ckpt").write_bytes(b"no checkpoint")
    done = subprocess.run([*serve, "--ckpt_path", "bad.ckpt"], capture_output=True, text=True)
    assert (done.returncode, "bad.ckpt is not a checkpoint" in done.stderr) == (2, True)
    assert done.stdout == "Loading  the model\n"


def test_a_checkpoint_is_no_exported_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "last.ckpt").touch()
    assert main(["serve", "--model", str(tmp_path / "last.ckpt")]) == 2
    assert f"--ckpt_path {tmp_path / 'last.ckpt'}" in capsys.readouterr().err
