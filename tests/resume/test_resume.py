"""What a resume keeps, changes and says."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from lives import SETTINGS, command, fit, killed, killer, outcome, resume
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from project.cli import main
from project.runs import Run, find_run, process_began

BATCH = "on_train_batch_end"


def script(losses: list[float]) -> tuple[str, str]:
    return "--trainer.callbacks+=watch.Script", f"--trainer.callbacks.losses={losses}"


def start(root: Path, *settings: str) -> list[str]:
    return ["fit", "--trainer.default_root_dir", str(root), *SETTINGS, *settings]


def contents(folder: Path) -> dict[str, int]:
    return {str(f.relative_to(folder)): f.stat().st_mtime_ns for f in folder.rglob("*")}


def checkpoint(run: Run, name: str = "last.ckpt") -> dict[str, dict]:
    return torch.load(run.path / "checkpoints" / name, weights_only=True)


@pytest.mark.slow
def test_finished_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fit(tmp_path, *SETTINGS)
    before = contents(run.path)
    for more in ([], ["--trainer.max_steps", "1"]):
        where = ["--trainer.default_root_dir", str(tmp_path)]
        capsys.readouterr()
        assert main(["fit", "--resume", "last", *where, *more]) == 0
        said = capsys.readouterr().out.strip()
        assert "already at" in said
        assert "\n" not in said
    assert contents(run.path) == before
    assert Run(run.path).state == "finished"


@pytest.mark.slow
def test_a_run_that_stopped_early_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stops = ["--early_stopping.patience", "1", "--early_stopping.min_delta", "9"]
    run = fit(tmp_path, *SETTINGS, *stops, "--trainer.max_epochs", "5")
    assert "stopped: no better val/loss in 1 validation" in capsys.readouterr().out
    before = contents(run.path)
    where = ["--resume", str(run.path), "--trainer.max_epochs"]
    assert main(["fit", *where, "9"]) == 0
    assert "raise --early_stopping.patience" in capsys.readouterr().out
    assert contents(run.path) == before
    assert main(["fit", *where, "3", "--early_stopping.patience", "9"]) == 0
    assert Run(run.path).record["epoch"] == 3


@pytest.mark.slow
def test_a_run_that_ran_out_of_time_goes_on_with_more_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fit(
        tmp_path, *SETTINGS, "--trainer.max_time", "00:00:00:01", "--trainer.max_epochs", "99"
    )
    assert "Time   stopped by --trainer.max_time" in capsys.readouterr().out
    assert run.record["stopped_early"] is False
    before, step = contents(run.path), run.record["step"]
    for limit in ([], ["--trainer.max_time", "00:00:00:01"]):
        assert main(["fit", "--resume", str(run.path), *limit]) == 0
        assert "go on with --trainer.max_time null, or a longer" in capsys.readouterr().out
    assert contents(run.path) == before
    end = ["--resume", str(run.path), "--trainer.max_steps"]
    for more, limit in ((3, "00:01:00:00"), (6, "null")):
        assert main(["fit", *end, str(step + more), "--trainer.max_time", limit]) == 0
        assert Run(run.path).record["step"] == step + more
    assert Run(run.path).record["timed_out"] is None


@pytest.mark.slow
@pytest.mark.parametrize("copy", [False, True])
def test_moved_run_goes_on_where_it_is(tmp_path: Path, copy: bool) -> None:
    run = fit(tmp_path / "logs", *SETTINGS)
    moved = tmp_path / "moved" / "R2"
    moved.parent.mkdir()
    # Without the times of the files: then only their steps tell which is the newest.
    shutil.copytree(run.path, moved, copy_function=shutil.copyfile) if copy else run.path.rename(
        moved
    )
    before = contents(run.path)
    best = run.record["best_ckpt"]
    relative = moved.relative_to(tmp_path)
    assert main(["fit", "--resume", str(relative), "--trainer.max_epochs", "4"]) == 0
    assert contents(run.path) == before
    state = checkpoint(Run(moved))["callbacks"]
    [kept] = [s for key, s in state.items() if key.startswith("ModelCheckpoint")]
    assert kept["dirpath"] == str(moved / "checkpoints")
    assert len(kept["best_k_models"]) == 3
    assert all(Path(path).is_file() for path in kept["best_k_models"])
    assert all(Path(path).is_relative_to(moved) for path in kept["best_k_models"])
    record = Run(moved).record
    assert record["epoch"] == 4
    assert record["best_score"] >= run.record["best_score"]
    assert (moved / record["best_ckpt"]).is_file()
    assert (moved / best).is_file()


@pytest.mark.slow
def test_moved_run_is_tested_with_an_older_best_checkpoint(tmp_path: Path) -> None:
    run = fit(tmp_path / "logs", *SETTINGS)
    moved = run.path.rename(tmp_path / "moved")
    still = ["--trainer.max_epochs", "4", "--model.optimizer.lr", "1e-12"]
    assert main(["fit", "--resume", str(moved), *still]) == 0  # a warning would be an error
    assert Run(moved).record["best_ckpt"] == run.record["best_ckpt"]


@pytest.mark.slow
def test_an_epoch_that_was_over_gets_no_second_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path, *SETTINGS)
    capsys.readouterr()
    resume(tmp_path, "--trainer.max_epochs", "5")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("epoch ")] == ["3", "4"]


@pytest.mark.slow
def test_damaged_checkpoint_is_passed_over_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(start(tmp_path, *killer("Kill", BATCH, 30, None)))
    last = find_run("last", tmp_path).path / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-2000])
    run = resume(tmp_path)
    assert f"Passed over {last}: it is damaged" in capsys.readouterr().out
    assert outcome(run).files.count("last.ckpt") == 1
    assert "last-v1.ckpt" not in outcome(run).files
    assert run.state == "finished"


@pytest.mark.slow
def test_patience_counts_on_after_a_resume(tmp_path: Path) -> None:
    flat = ("--early_stopping.patience", "3", *script([1.0]), "--trainer.max_epochs", "9")
    killed(start(tmp_path, *flat, *killer("Kill", BATCH, 38, None)))
    # Three validations, two of them without progress. `resume` takes the script out: once more.
    where = ["--trainer.default_root_dir", str(tmp_path), "--trainer.callbacks", "[]"]
    assert main(["fit", "--resume", "last", *where, *script([1.0])]) == 0
    assert find_run("last", tmp_path).record["epoch"] == 4


@pytest.mark.slow
def test_patience_of_now_holds(tmp_path: Path) -> None:
    flat = ("--early_stopping.patience", "1", *script([1.0]), "--trainer.max_epochs", "9")
    run = fit(tmp_path, *SETTINGS, *flat)
    assert (run.record["epoch"], run.record["stopped_early"]) == (2, True)
    where = ["--trainer.default_root_dir", str(tmp_path)]
    assert main(["fit", "--resume", "last", *where, "--early_stopping.patience", "3"]) == 0
    assert Run(run.path).record["epoch"] == 4


@pytest.mark.slow
def test_metric_that_recovers_before_min_epochs_does_not_stop_the_run(tmp_path: Path) -> None:
    losses = [1.0, 2.0, 3.0, 0.9, 0.8, 0.7, 0.6, 0.5]
    more = ("--trainer.min_epochs", "5", "--trainer.max_epochs", "7")
    run = fit(tmp_path, *SETTINGS, *more, "--early_stopping.patience", "1", *script(losses))
    assert run.record["epoch"] == 7


def test_checkpoints_between_validations_are_not_ranked_by_an_old_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(start(tmp_path, "--checkpoint.every_n_train_steps", "5")) == 2
    assert "autosave.every_n_steps" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "total"), [("215", 36 + 2 * 6), ("53", 36 + 2 * 24)])
def test_steps_to_come_follow_another_batch_size(
    tmp_path: Path, batch_size: str, total: int, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path, *SETTINGS)
    more = ("--trainer.max_epochs", "5", "--data.batch_size")
    run = resume(tmp_path, *more, batch_size)
    said = f"36 optimizer steps is stretched to {total}; at step 36 the lr goes from 3e-05 to "
    assert said in capsys.readouterr().out
    assert run.record["step"] == total
    assert checkpoint(run)["lr_schedulers"][0]["total_steps"] == total
    resume(tmp_path, "--trainer.max_epochs", "6", "--data.batch_size", "107")
    assert f"{total} optimizer steps is stretched to {total + 12}; " in capsys.readouterr().out


@pytest.mark.slow
def test_link_to_the_last_checkpoint_leads_somewhere(tmp_path: Path) -> None:
    links = ("--checkpoint.save_last", "link", "--checkpoint.save_top_k", "-1")
    run = fit(tmp_path, *SETTINGS, *links)
    last = run.path / "checkpoints" / "last.ckpt"
    assert last.resolve().is_file()
    assert last.resolve() != last
    assert main(["test", "--run", str(run.path), "--ckpt_path", "last"]) == 0


@pytest.mark.slow
def test_autosave_goes_when_the_run_is_finished(tmp_path: Path) -> None:
    run = fit(tmp_path, *SETTINGS, "--autosave.every_n_steps", "5")
    assert "autosave.ckpt" not in outcome(run).files


@pytest.mark.slow
def test_autosave_stays_if_it_alone_has_the_end(tmp_path: Path) -> None:
    run = fit(tmp_path, *SETTINGS, "--trainer.max_steps", "30")
    assert checkpoint(run, "autosave.ckpt")["global_step"] == 30
    resumed = resume(tmp_path, "--trainer.max_steps", "-1")
    whole = fit(tmp_path / "whole", *SETTINGS)
    one, other = checkpoint(resumed)["state_dict"], checkpoint(whole)["state_dict"]
    # The schedule was one of 30 steps and is one of 36 now; up to there all is the same.
    assert resumed.record["step"] == whole.record["step"]
    assert one.keys() == other.keys()


@pytest.mark.slow
def test_sanity_check_leaves_no_trace(tmp_path: Path) -> None:
    run = fit(tmp_path, *SETTINGS, "--trainer.num_sanity_val_steps", "2")
    guidance = {"scalars": 0, "images": 0, "tensors": 0}
    events = EventAccumulator(str(run.path), size_guidance=guidance).Reload()
    assert [e.step for e in events.Scalars("val/loss")] == [11, 23, 35]
    assert [e.step for e in events.Images("val/predictions")] == [12, 24, 36]
    state = checkpoint(run)["callbacks"]
    [kept] = [s for key, s in state.items() if key.startswith("ModelCheckpoint")]
    assert len(kept["best_k_models"]) == 3


@pytest.mark.slow
def test_score_in_the_record_is_that_of_the_file(tmp_path: Path) -> None:
    killed(start(tmp_path, *killer("Kill", BATCH, 30, None)))
    run = find_run("last", tmp_path)
    assert (run.path / run.record["best_ckpt"]).is_file()
    assert (run.path / run.record["last_ckpt"]).is_file()
    run = resume(tmp_path)
    named = f"val_acc={run.record['best_score']:.4f}"
    assert named in run.record["best_ckpt"]
    assert run.record["scores"]["val/acc"] == pytest.approx(run.record["best_score"])
    assert len(run.record["resumed"]) == 1


@pytest.mark.slow
def test_weights_of_another_number_of_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = fit(tmp_path, *SETTINGS).checkpoint("best")
    content = torch.load(file, weights_only=True)
    head = [key for key in content["state_dict"] if content["state_dict"][key].shape[:1] == (10,)]
    for key in head:
        content["state_dict"][key] = content["state_dict"][key][:7].clone()
    torch.save(content, tmp_path / "seven.ckpt")
    assert main(start(tmp_path, "--init_from", str(tmp_path / "seven.ckpt"))) == 0
    said = capsys.readouterr().out
    assert all(f"{key}: (7" in said for key in head)
    assert head


@pytest.mark.slow
def test_batch_size_that_was_found_is_the_one_recorded(tmp_path: Path) -> None:
    finder = "lightning.pytorch.callbacks.BatchSizeFinder"
    own = (f"--trainer.callbacks+={finder}", "--trainer.callbacks.max_trials=3")
    run = fit(tmp_path, *SETTINGS, *own, "--trainer.callbacks.init_val=16")
    config = yaml.safe_load(run.config.read_text())
    assert config["data"]["init_args"]["batch_size"] == 64
    assert run.record["batch_size_per_process"] == 64
    assert finder not in run.config.read_text()
    assert run.record["step"] == 3 * (1294 // 64)
    assert resume(tmp_path, "--trainer.max_epochs", "4").record["step"] == 4 * (1294 // 64)


@pytest.mark.slow
def test_plateau_sees_the_epoch_in_which_a_run_was_resumed(tmp_path: Path) -> None:
    plateau = (
        *("--model.scheduler", "torch.optim.lr_scheduler.ReduceLROnPlateau"),
        *("--model.scheduler.patience", "0", *script([1.0])),
    )
    whole = fit(tmp_path / "whole", *SETTINGS, *plateau)
    killed(start(tmp_path / "cut", *plateau, *killer("Kill", BATCH, 30, None)))
    where = ["--trainer.default_root_dir", str(tmp_path / "cut"), "--trainer.callbacks", "[]"]
    assert main(["fit", "--resume", "last", *where, *script([1.0])]) == 0
    assert outcome(find_run("last", tmp_path / "cut")).scalars == outcome(whole).scalars


@pytest.mark.slow
def test_run_that_is_trained_elsewhere_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fit(tmp_path, *SETTINGS)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    now = {"state": "running", "pid": other.pid, "pid_began": process_began(other.pid)}
    (run.path / "run.json").write_text(json.dumps(run.record | now))
    where = ["--trainer.default_root_dir", str(tmp_path)]
    assert main(["fit", "--resume", "last", *where]) == 2
    assert f"process {other.pid}" in capsys.readouterr().err
    other.communicate(b"")
    assert Run(run.path).state == "failed"


@pytest.mark.slow
def test_resume_says_nothing_on_stderr(tmp_path: Path) -> None:
    killed(start(tmp_path, *killer("Kill", BATCH, 17, None)))
    where = ("--trainer.default_root_dir", str(tmp_path), "--trainer.callbacks", "[]")
    done = command("fit", "--resume", "last", *where, path=Path(__file__).parent)
    assert (done.returncode, done.stderr) == (0, "")
