"""Runs that are killed and resumed, and how they compare with one that was not."""

import os
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from project.cli import main
from project.runs import Run, find_run

# 12 batches an epoch; dropout and augmentation draw random numbers all the time.
SETTINGS = (
    *("--trainer.max_epochs", "3", "--trainer.log_every_n_steps", "2"),
    *("--data.batch_size", "107", "--data.eval_batch_size", "60", "--data.shift", "1"),
    *("--model.net.dropout", "0.2", "--model.net.hidden_dim", "8"),
)


# They tell of the machine; a resume has them at the same steps.
MEASURED = ("train/samples_per_second", "train/data_wait")


@dataclass
class Outcome:
    """What a run has left that must not depend on what it went through."""

    weights: dict[str, torch.Tensor]
    optimizer: dict[int, dict[str, Any]]
    best: dict[str, float]
    files: list[str]
    scalars: list[tuple[str, int, float]]
    pictures: dict[str, list[int]]


def fit(root: Path, *settings: str) -> Run:
    """Train in this process."""
    assert main(["fit", "--trainer.default_root_dir", str(root), *settings]) == 0
    return find_run("last", root)


def resume(root: Path, *settings: str) -> Run:
    """Go on with the run in ``root``, without the callbacks that killed it."""
    where = ("--trainer.default_root_dir", str(root))
    assert main(["fit", "--resume", "last", *where, "--trainer.callbacks", "[]", *settings]) == 0
    return find_run("last", root)


def killed(args: list[str]) -> None:
    """Run a command in a fork, which spares the imports, and see that it dies of SIGKILL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which idle
        child = os.fork()
    if child == 0:
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            main(args)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"it ended by itself: {status}"


def killer(kind: str, hook: str, step: int, batch: int | None) -> list[str]:
    """The settings that add a killer."""
    own = {"hook": hook, "step": step} | ({} if batch is None else {"batch": batch})
    return [
        f"--trainer.callbacks+=killer.{kind}",
        *(f"--trainer.callbacks.{name}={value}" for name, value in own.items()),
    ]


def command(*args: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    env = os.environ | {"PYTHONPATH": str(path)}
    line = [sys.executable, "-m", "project", *args]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, env=env)


def outcome(run: Run) -> Outcome:
    """Read what a run has left."""
    content = torch.load(run.path / "checkpoints" / "last.ckpt", weights_only=True)
    [best] = [s for key, s in content["callbacks"].items() if key.startswith("ModelCheckpoint")]
    guidance = {"scalars": 0, "images": 0, "tensors": 0}
    events = EventAccumulator(str(run.path), size_guidance=guidance).Reload()
    tags = events.Tags()
    return Outcome(
        content["state_dict"],
        content["optimizer_states"][0]["state"],
        {Path(path).name: float(score) for path, score in best["best_k_models"].items()},
        sorted(file.name for file in (run.path / "checkpoints").iterdir()),
        sorted(
            (tag, e.step, 0.0 if tag in MEASURED else e.value)
            for tag in tags["scalars"]
            for e in events.Scalars(tag)
        ),
        {tag: [event.step for event in events.Images(tag)] for tag in tags["images"]},
    )


def assert_same(one: Outcome, other: Outcome) -> None:
    """To the last bit."""
    assert one.scalars == other.scalars
    assert one.weights.keys() == other.weights.keys()
    assert all(torch.equal(one.weights[key], other.weights[key]) for key in one.weights)
    for index, state in one.optimizer.items():
        assert all(torch.equal(value, other.optimizer[index][key]) for key, value in state.items())
    assert (one.best, one.files, one.pictures) == (other.best, other.files, other.pictures)
    places = [point[:2] for point in one.scalars]
    assert len(places) == len(set(places)), "a point of a curve is there twice"
