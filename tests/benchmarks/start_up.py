"""CPU seconds from typing `lightning fit` to the end of its first step, and to an error message.

Every start is a process of its own, one thread; turns are interleaved, and the table has their
median. `plain_script.py` is the comparison: the same imports and data and the usual callbacks, but
no command line, no configuration and no record of the run. Both have their sanity check before.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
MISTAKES = {
    "lightning --help": ["--help"],
    "lightning fit --help": ["fit", "--help"],
    "a mistyped verb": ["fti"],
    "a run that is not there": ["test", "--run", "nothing"],
    "a file that is not there": ["fit", "--config", "nothing.yaml"],
    "a mistyped setting": ["fit", "--trainer.max_epoch", "3"],
    "one of the model": ["fit", "--model.num_clases", "3"],
    "one of the network": ["fit", "--model.init_args.net.init_args.widht", "3"],
    "one of the data": ["fit", "--data.batchsize", "3"],
    "one of the optimizer": ["fit", "--model.optimizer.lrr", "1"],
    "a value of the wrong type": ["fit", "--data.batch_size", "many"],
}


class Stop(Callback):
    """Ends everything after the first step."""

    def on_train_batch_end(self, *_: object) -> None:
        os._exit(0)


def seconds(command: list[str], folder: str) -> float:
    """CPU time of a command and of what it starts."""
    before = os.times()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}:{HERE.parents[1]}"}
    quiet = subprocess.DEVNULL
    subprocess.run(command, cwd=folder, env=env, stdout=quiet, stderr=quiet, check=False)
    after = os.times()
    return after.children_user + after.children_system - before[2] - before[3]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    ours = [sys.executable, "-m", "project"]
    commands = {
        "lightning fit, to its first step": [*ours, "fit", "--trainer.callbacks+=start_up.Stop"],
        "plain_script.py, to its first step": [sys.executable, str(HERE / "plain_script.py"), "x"],
        **{name: [*ours, *args] for name, args in MISTAKES.items()},
    }
    found: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, command in commands.items():
                found[name].append(seconds(command, folder))
    fit, script = list(found.values())[:2]
    ratio = statistics.median(a / b for a, b in zip(fit, script, strict=True))
    table = Table("what", "CPU s", "bar", title=f"fit / script {ratio:.2f}, bar <= 1.15")
    for name, times in found.items():
        table.add_row(name, f"{statistics.median(times):.2f}", "<= 3" * (name in MISTAKES))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
