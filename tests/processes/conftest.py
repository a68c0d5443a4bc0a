"""Runs as real processes, stopped where a test wants it; for the tests of signals and failures."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning  # noqa: F401  (its log handler keeps the stderr it finds: not that of one test)
import pytest

COMMAND = [sys.executable, "-m", "project", "fit"]

# Takes its time, and leaves a file with its process id where it is.
SLOW = """
import os, time
from lightning.pytorch.callbacks import Callback

def mark(stage, trainer):
    with open(f"draft-{trainer.global_rank}", "w") as file:
        file.write(str(os.getpid()))
    os.replace(f"draft-{trainer.global_rank}", f"at-{stage}-{trainer.global_rank}")
    time.sleep(0.1)

class Slow(Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step >= 3:
            mark("train", trainer)

    def on_validation_batch_end(self, trainer, *_):
        mark("sanity" if trainer.sanity_checking else "val", trainer)

    def on_test_batch_end(self, trainer, *_):
        mark("test", trainer)
"""


@dataclass
class Ended:
    """How a process has ended."""

    code: int
    seconds: float
    out: str
    err: str
    left: list[str]

    @property
    def runs(self) -> list[Path]:
        return sorted(Path("logs").glob("*/*"))

    @property
    def run(self) -> Path:
        [path] = self.runs
        return path

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.run / "run.json").read_text())


class Started:
    """A command in a session of its own, as a scheduler or a terminal starts it."""

    def __init__(self, *args: str, command: list[str] | None = None, slow: bool = True) -> None:
        Path("slow.py").write_text(SLOW)
        more = ["--trainer.callbacks+=slow.Slow"] if slow else []
        path = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [*(command or COMMAND), *more, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )
        self.since = time.monotonic()

    def reach(self, stage: str, rank: int = 0) -> int:
        """Wait for a stage; return the process id of the rank that is there."""
        file, end = Path(f"at-{stage}-{rank}"), time.monotonic() + 90
        while not file.exists():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, "too slow"
            time.sleep(0.02)
        return int(file.read_text())

    def send(self, *names: str, to: int | None = None, gap: float = 0.2) -> "Started":
        """Send signals, by default to the whole group."""
        self.since = time.monotonic()
        for number, name in enumerate(names):
            time.sleep(gap if number else 0)
            try:
                (os.killpg if to is None else os.kill)(
                    to or self.process.pid, getattr(signal, name)
                )
            except ProcessLookupError:
                break
        return self

    def end(self, timeout: float = 60) -> Ended:
        """Wait for the end; after the timeout the test fails and nothing is left of it."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        finally:
            seconds = time.monotonic() - self.since
            left = self.members()
            for line in left:
                os.kill(int(line.split()[0]), signal.SIGKILL)
        return Ended(self.process.returncode, seconds, out, err, left)

    def members(self) -> list[str]:
        """Processes of the session that live."""
        found = subprocess.run(
            ["ps", "-s", str(self.process.pid), "-o", "pid=,stat=,args="],
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        return [line for line in found if not line.split()[1].startswith("Z")]


@pytest.fixture
def start() -> type[Started]:
    return Started
