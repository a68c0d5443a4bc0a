"""What fit, validate, test and predict do and leave behind."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from project.cli import main
from project.runs import Run, find_run, load_run

SHORT = ["--trainer.max_epochs", "2", "--model.net.hidden_dim", "8"]


def weights(run: Run) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(run.checkpoint("last"))["state_dict"]
    return state


def same(a: Run, b: Run) -> bool:
    one, other = weights(a), weights(b)
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def _events(run: Run) -> EventAccumulator:
    return EventAccumulator(str(run.path)).Reload()


def test_fit_leaves_a_run_folder(digits_run: Run) -> None:
    names = {path.name for path in digits_run.path.iterdir()}
    assert {"config.yaml", "run.json", "checkpoints"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", digits_run.path.name)
    assert digits_run.path.parent.name == "digits"


def test_record_says_how_the_run_came_about(digits_run: Run) -> None:
    record = digits_run.record
    assert record["state"] == "finished"
    assert record["command"].startswith("lightning fit")
    assert record["seed"] == 42
    assert record["versions"]["torch"] == torch.__version__.split("+")[0]
    assert record["hardware"]["processes"] == 1
    assert (digits_run.path / record["best_ckpt"]).is_file()
    assert (digits_run.path / record["last_ckpt"]).is_file()
    assert record["best_score"] == pytest.approx(record["scores"]["val/acc"])
    assert record["started"] <= record["ended"]


def test_curves_are_in_tensorboard(digits_run: Run) -> None:
    events = _events(digits_run)
    tags = set(events.Tags()["scalars"])
    wanted = {"train/loss", "train/acc", "val/loss", "val/acc", "test/loss", "test/acc", "epoch"}
    assert wanted <= tags
    assert any(tag.startswith("lr-") for tag in tags)
    assert "hp_metric" not in tags
    assert {"val/predictions", "val/confusion_matrix"} <= set(events.Tags()["images"])
    assert {"val/per_class", "test/per_class"} <= {
        t.split("/text")[0] for t in events.Tags()["tensors"]
    }


def test_a_run_says_that_it_stopped_early_and_what_it_keeps(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stops = ["--early_stopping.patience", "1", "--early_stopping.min_delta", "9"]
    # The best is not the last one: the test at the end then loads a state from before the stop.
    worse = [
        "--model.optimizer.lr",
        "1",
        "--model.scheduler",
        "null",
        "--checkpoint.save_top_k",
        "1",
    ]
    assert main(["fit", *SHORT, "--trainer.max_epochs", "5", *stops, *worse]) == 0
    said = capsys.readouterr().out
    assert "Early  stopped: no better val/loss in 1 validation" in said
    best = Path(find_run("last").record["best_ckpt"]).name
    assert f"Best   {best}, by val/acc" in said


@pytest.mark.slow
def test_a_checkpoint_callback_of_ones_own_does_not_say_which_is_the_best(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint"
    settings = ["--trainer.callbacks.monitor=val/loss", "--trainer.callbacks.dirpath=own"]
    assert main(["fit", *SHORT, own, *settings]) == 0
    run = find_run("last")
    best = Path(run.record["best_ckpt"]).name
    assert f"Best   {best}, by val/acc" in capsys.readouterr().out
    curves = [tag for tag in _events(run).Tags()["scalars"] if tag.endswith("_best")]
    assert curves == ["val/acc_best"]


def test_a_curve_has_a_point_an_epoch_where_epochs_are_short(workdir: Path) -> None:
    assert main(["fit", *SHORT, "--data.batch_size", "512"]) == 0
    points = _events(find_run("last")).Scalars("lr-AdamW")
    assert [point.step for point in points] == [1, 3]  # two steps an epoch


@pytest.mark.slow
def test_configuration_trains_the_same_weights_again(digits_run: Run) -> None:
    here = ["--trainer.default_root_dir", "logs"]
    assert main(["fit", "--config", str(digits_run.config), *here]) == 0
    again = find_run("last")
    assert again.experiment == "digits"
    assert same(digits_run, again)


@pytest.mark.slow
def test_another_seed_gives_other_weights(digits_run: Run) -> None:
    assert main(["fit", *SHORT, "--seed_everything", "7"]) == 0
    assert not same(digits_run, find_run("last"))


@pytest.mark.slow
def test_validate_gives_the_score_of_training(
    digits_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    for batch in ("8", "1000"):
        assert main(["validate", "--run", str(digits_run.path), "--data.batch_size", batch]) == 0
        said = capsys.readouterr().out
        assert f"{digits_run.record['scores']['val/acc']:.4f}" in said
        assert f"{digits_run.record['scores']['val/loss']:.4f}" in said
        assert str(digits_run.checkpoint("best")) in said


def test_evaluation_leaves_the_run_as_it_was(digits_run: Run) -> None:
    before = {path: path.stat().st_mtime_ns for path in digits_run.path.rglob("*")}
    assert main(["test", "--run", str(digits_run.path)]) == 0
    assert {path: path.stat().st_mtime_ns for path in digits_run.path.rglob("*")} == before


def test_the_newest_run_of_the_recipe_is_taken(
    digits_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", "--trainer.default_root_dir", str(digits_run.path.parents[1])]) == 0
    assert str(digits_run.path) in capsys.readouterr().out


def test_what_differs_from_the_run_is_printed(
    digits_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--run", str(digits_run.path), "--data.eval_batch_size", "100"]
    assert main(["test", *args]) == 0
    assert re.search(r"data\.eval_batch_size\W+null\W+100", capsys.readouterr().out)


def test_moved_run_is_used_where_it_is(digits_run: Run, workdir: Path) -> None:
    moved = workdir / "elsewhere" / "R2"
    moved.parent.mkdir()
    digits_run.path.rename(moved)
    try:
        assert main(["test", "--run", str(moved)]) == 0
        assert load_run(moved).ckpt_path.is_relative_to(moved)
    finally:
        moved.rename(digits_run.path)


def test_load_run_gives_the_logits_of_the_checkpoint(digits_run: Run) -> None:
    loaded = load_run(digits_run.path)
    loaded.datamodule.setup("test")
    images, labels, _ = next(iter(loaded.datamodule.test_dataloader()))
    logits = loaded.task(loaded.datamodule.preprocess(images))
    acc = (logits.argmax(1) == labels).float().mean().item()
    assert acc == pytest.approx(digits_run.record["scores"]["test/acc"])


@pytest.mark.slow
def test_unsafe_experiment_name_is_made_safe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *SHORT, "--experiment", "a, b:c d"]) == 0
    assert "a-b-c-d" in capsys.readouterr().out
    assert find_run("last").path.parent.name == "a-b-c-d"
    assert main(["test", "--experiment", "a, b:c d"]) == 0


@pytest.mark.slow
def test_own_callback_is_added_to_those_that_are_always_there(workdir: Path) -> None:
    own = "lightning.pytorch.callbacks.ModelSummary"
    assert main(["fit", *SHORT, f"--trainer.callbacks+={own}"]) == 0
    run = find_run("last")
    config = yaml.safe_load(run.config.read_text())
    assert [c["class_path"] for c in config["trainer"]["callbacks"]] == [own]
    assert run.checkpoint("best").is_file()
    assert run.checkpoint("last").is_file()


def test_a_crash_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    from project.tasks import ClassificationTask

    def broken(*_: object) -> None:
        raise ZeroDivisionError("something of ours")

    monkeypatch.setattr(ClassificationTask, "training_step", broken)
    with pytest.raises(ZeroDivisionError):
        main(["fit", *SHORT])
    [path] = Path("logs/digits").iterdir()
    assert Run(path).state == "failed"
    assert Run(path).record["error"] == "ZeroDivisionError: something of ours"


def test_a_run_whose_process_is_gone_is_not_running(digits_run: Run, workdir: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    record = {**digits_run.record, "state": "running", "pid": gone.pid}
    (workdir / "run.json").write_text(json.dumps(record))
    assert Run(workdir).state == "failed"


def test_trial_run_leaves_nothing(workdir: Path) -> None:
    assert main(["fit", "--trainer.fast_dev_run", "1"]) == 0
    assert not list(workdir.iterdir())


@pytest.mark.slow
def test_default_run_says_nothing_on_stderr(workdir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "project", "fit", *SHORT],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0
    assert done.stderr == ""
    for noise in ("TPU", "litlogger", "Tip", "warn", "GPU available"):
        assert noise not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_nothing_on_stderr_when_a_run_is_used(
    verb: str, digits_run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--run", str(digits_run.path)]) == 0  # warnings are errors here
    assert capfd.readouterr().err == ""


FINDER = """
from project.data import DigitsDataModule

class Finder(DigitsDataModule):
    found = ("labelled_by", "image_size")
    has_test = False

    def __init__(self, labelled_by: str | None = None, image_size: int | None = None):
        super().__init__(image_size=image_size)
        self.labelled_by = labelled_by or "what was found"
"""


@pytest.mark.slow
def test_what_the_data_module_finds_is_kept_and_without_a_test_split_there_is_no_test(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "finder.py").write_text(FINDER)
    monkeypatch.syspath_prepend(workdir)
    short = ["--trainer.max_epochs", "1", "--data.image_size", "9"]
    assert main(["fit", "--data", "finder.Finder", *short]) == 0
    run = find_run("last")
    settings = yaml.safe_load(run.config.read_text())["data"]["init_args"]
    assert settings == {"labelled_by": "what was found", "image_size": 9}
    assert "none: the data have no test split" in capsys.readouterr().out
    assert "test/acc" not in run.record["scores"]


@pytest.mark.slow
def test_mode_follows_the_monitor() -> None:
    assert main(["fit", *SHORT, "--checkpoint.monitor", "val/loss"]) == 0
    run = find_run("last")
    losses = [p.value for p in _events(run).Scalars("val/loss")]
    assert run.record["best_score"] == pytest.approx(min(losses))
    assert "mode: min" in run.config.read_text()


def test_evaluation_shows_every_class(digits_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["test", "--run", str(digits_run.path)]) == 0
    assert re.search(r"│ 9 +│ [\d.]+ +│ [\d.]+ +│ [\d.]+ +│ 36", capsys.readouterr().out)


@pytest.mark.slow
def test_a_callback_that_is_no_longer_there_does_not_stop_older_runs(
    digits_run: Run, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = workdir / "old"
    shutil.copytree(digits_run.path, old)
    block = "\ngone:\n  class_path: project.callbacks.Gone\n"
    (old / "config.yaml").write_text(digits_run.config.read_text() + block)
    assert main(["test", "--run", str(old)]) == 0
    assert "gone" in capsys.readouterr().out


@pytest.mark.slow
def test_digits_are_learnt() -> None:
    assert main(["fit"]) == 0
    assert find_run("last").record["scores"]["test/acc"] >= 0.97


@pytest.mark.slow
def test_two_processes_write_one_run() -> None:
    preset = "configs/presets/ddp_cpu.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "project", "fit", "--config", preset, *SHORT],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    runs = [path for path in Path("logs/digits").iterdir()]
    assert len(runs) == 1
    assert Run(runs[0]).record["hardware"]["processes"] == 2
    assert Run(runs[0]).state == "finished"
