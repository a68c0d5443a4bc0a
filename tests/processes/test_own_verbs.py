"""A signal in the middle of a verb beyond the four: it ends, and leaves nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from project.runs import Run

RECIPE = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
# Shows that something trains, below the folder for temporary files, and takes its time.
SLOW = """
import pathlib, tempfile, time
from project.models import ConvNet

class Slow(ConvNet):
    def forward(self, images):
        pathlib.Path("computes").touch()
        time.sleep(0.1)
        return super().forward(images)
"""


def end_when(sign: str, *args: str) -> tuple[int, str]:
    """Send SIGTERM when a file of that name is there; return the exit code and stderr."""
    temporary = Path("temporary")
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "project", *args],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary.resolve()), "OMP_NUM_THREADS": "1"},
    ) as process:
        while process.poll() is None and not list(Path().glob(sign)):
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    assert not list(temporary.glob("fit-*"))
    return process.returncode, said


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["tune", "doctor", "profile"])
def test_no_folder_of_a_trial_stays(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slow.py").write_text(SLOW)
    net = ["--config", str(RECIPE), "--model.net", "slow.Slow"]
    code, said = end_when("computes", verb, *net)
    assert code == 128 + signal.SIGTERM
    assert "Traceback" not in said


@pytest.mark.slow
def test_no_draft_of_an_export_stays(
    digits_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(digits_run.path, "run")
    code, said = end_when("run/.*-model.onnx", "export", "--run", "run")
    assert code == 128 + signal.SIGTERM
    assert "Traceback" not in said
    assert not [*Path("run").glob("*.onnx"), *Path("run").glob(".*.onnx")]
