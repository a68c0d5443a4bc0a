"""Killed at any moment and resumed, a run is bit for bit the one that was never killed."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from lives import SETTINGS, Outcome, assert_same, command, killed, killer, outcome, resume

from project.runs import find_run

EACH = ("--autosave.every_n_steps", "1")
HALF = ("--trainer.val_check_interval", "0.5")
WORKERS = ("--data.num_workers", "2")
IN_THREES = ("--trainer.accumulate_grad_batches", "3")
IN_FIVES = ("--trainer.accumulate_grad_batches", "5", "--trainer.val_check_interval", "4")
MAX_STEPS = ("--trainer.max_steps", "18")
AT_EPOCH_END = ("--checkpoint.save_on_train_epoch_end", "true")
ALTERNATE = ("--trainer.check_val_every_n_epoch", "2", "--trainer.limit_train_batches", "8")

BATCH, VALIDATION = "on_train_batch_end", "on_validation_batch_end"
KILLS = {
    "workers": ((*EACH, *WORKERS), "Kill", BATCH, 17, None),
    "accumulation": ((*EACH, *IN_THREES), "Kill", BATCH, 6, 7),
    "validation within the epoch": ((*EACH, *HALF), "Kill", BATCH, 20, None),
    "after a validation within it": ((*EACH, *HALF), "Kill", "on_train_batch_start", 18, None),
    "every fifth batch": ((*EACH, "--trainer.val_check_interval", "5"), "Kill", VALIDATION, 17, 1),
    "last batch": (EACH, "Kill", BATCH, 24, None),
    "between save and validation": (EACH, "SaveAndKill", BATCH, 24, None),
    "beginning of the validation": (EACH, "Kill", "on_validation_start", 24, None),
    "end of the validation": (EACH, "Kill", "on_validation_end", 24, None),
    "end of the epoch": (EACH, "Kill", "on_train_epoch_end", 24, None),
    "end of the run": (EACH, "Kill", "on_train_epoch_end", 36, None),
    "no autosave": ((), "Kill", BATCH, 30, None),
    "before the step is logged": ((), "SaveAndKill", BATCH, 18, None),
    "in a validation": ((), "SaveAndKill", VALIDATION, 24, 1),
    "in one within the epoch": (HALF, "SaveAndKill", VALIDATION, 18, 0),
    "in half a step": (IN_FIVES, "SaveAndKill", BATCH, 3, 1),
    "in a validation in half a step": (IN_FIVES, "SaveAndKill", VALIDATION, 3, 0),
    "in the last validation of max_steps": (
        (*MAX_STEPS, *HALF),
        *("SaveAndKill", VALIDATION, 18, 0),
    ),
    "saved when the epoch is over": (AT_EPOCH_END, "Kill", BATCH, 30, None),
    "that with max_steps": (
        (*AT_EPOCH_END, "--trainer.max_steps", "33"),
        *("Kill", BATCH, 30, None),
    ),
    "no validation after the epoch": ((*EACH, *ALTERNATE), "Kill", "on_train_epoch_end", 8, None),
}


def start(root: Path, *settings: str) -> list[str]:
    return ["fit", "--trainer.default_root_dir", str(root), *SETTINGS, *settings]


@pytest.mark.slow
def test_killed_run_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, whole: Callable[..., Outcome]
) -> None:
    killed(start(tmp_path, *EACH, *killer("Kill", BATCH, 17, None)))
    assert find_run("last", tmp_path).state == "failed"
    assert_same(outcome(resume(tmp_path)), whole(*EACH))


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "kind", "hook", "step", "batch"), KILLS.values(), ids=KILLS)
def test_moment_of_the_kill_does_not_matter(
    tmp_path: Path, whole: Callable[..., Outcome], settings, kind, hook, step, batch
) -> None:
    killed(start(tmp_path, *settings, *killer(kind, hook, step, batch)))
    assert_same(outcome(resume(tmp_path)), whole(*settings))


@pytest.mark.slow
def test_run_may_be_killed_again_and_again(tmp_path: Path, whole: Callable[..., Outcome]) -> None:
    often = ("--autosave.every_n_steps", "3")
    killed(start(tmp_path, *often, *killer("Kill", BATCH, 14, None)))
    again = ["fit", "--resume", "last", "--trainer.default_root_dir", str(tmp_path)]
    for step in (20, 29):
        killed([*again, "--trainer.callbacks", "[]", *killer("Kill", BATCH, step, None)])
    assert_same(outcome(resume(tmp_path)), whole(*often))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "hook", "step"), [("Kill", BATCH, 9), ("SaveAndKill", VALIDATION, 6)]
)
def test_two_processes(tmp_path: Path, kind: str, hook: str, step: int) -> None:
    here = Path(__file__).parent
    preset = ("--config", "configs/presets/ddp_cpu.yaml", "--autosave.every_n_steps", "2")
    roots = [tmp_path / "whole", tmp_path / "killed"]
    done = command(*start(roots[0], *preset), path=here)
    assert done.returncode == 0, done.stderr
    died = command(*start(roots[1], *preset, *killer(kind, hook, step, None)), path=here)
    assert died.returncode != 0
    where = ("--trainer.default_root_dir", str(roots[1]), "--trainer.callbacks", "[]")
    done = command("fit", "--resume", "last", *where, path=here)
    assert done.returncode == 0, done.stderr
    one, other = (outcome(find_run("last", root)) for root in roots)
    assert_same(other, one)


@pytest.mark.slow
def test_the_killed_part_of_a_curve_is_not_shown(tmp_path: Path) -> None:
    often = ("--autosave.every_n_steps", "5", "--trainer.log_every_n_steps", "1")
    killed(start(tmp_path, *often, *killer("Kill", BATCH, 17, None)))
    run = resume(tmp_path, "--model.optimizer.lr", "0.001")
    rates = [point for point in outcome(run).scalars if point[0].startswith("lr-")]
    for _, points in itertools.groupby(rates, key=lambda point: point[0]):
        steps, values = zip(*[(step, value) for _, step, value in points], strict=True)
        assert steps == tuple(range(36))
        # It goes on from step 15 with a new rate; what the first life did after that is gone.
        assert max(values[15:]) <= 0.001 < min(values[2:15])
