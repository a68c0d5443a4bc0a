"""No kill at any moment of saving leaves a checkpoint that does not load, or litter."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OURS = "project.callbacks.DurableCheckpoints"
LIGHTNINGS = "lightning.pytorch.plugins.io.TorchCheckpointIO"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


@pytest.fixture
def count_kills(tmp_path):
    """Run the program beside this file with TMPDIR on another file system, in memory."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system, and has no /dev/shm")

    def run(io, kills):
        with tempfile.TemporaryDirectory(dir=memory) as scratch:
            done = subprocess.run(
                [
                    sys.executable,
                    HERE / "kill_saves.py",
                    tmp_path,
                    f"--kills={kills}",
                    f"--io={io}",
                ],
                env={**os.environ, "TMPDIR": scratch, "PYTHONPATH": str(HERE.parents[1])},
                stdout=subprocess.PIPE,
                check=True,
            )
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize(
    "kills",
    [pytest.param(20, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.soak)],
)
def test_killed_saves_leave_whole_files_and_nothing_after_the_next_save(kills, count_kills):
    counts = count_kills(OURS, kills)
    print(counts)
    assert counts["kills"] == kills
    # Most kills land while a file is being saved, and many of them while it is being written.
    assert counts["inside"] >= kills * 0.4
    assert counts["half"] >= kills * 0.2
    assert (counts["unloadable"], counts["leftovers"], counts["leaked"]) == (0, 0, 0)


@pytest.mark.soak
def test_the_same_kills_break_files_that_lightning_saves(count_kills):
    counts = count_kills(LIGHTNINGS, 60)
    print(counts)
    assert counts["unloadable"] > 0
    assert counts["leaked"] > 0
