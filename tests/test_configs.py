"""Every configuration runs through the command, with one batch of everything."""

import re
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

from project.cli import main
from project.runs import Run, find_run

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
RECIPES = sorted(CONFIGS.glob("*.yaml"))
PRESETS = sorted((CONFIGS / "presets").glob("*.yaml"))
ORDER = ["seed_everything", "trainer", "checkpoint", "early_stopping", "lr_monitor"]
# Recipes whose result needs a GPU or files that nobody had yet.
NOT_MEASURED = {"cifar10", "cifar10_fast", "finetune"}
# Presets that need what a laptop or this environment lacks: their settings are checked, not run.
UNAVAILABLE = {"ddp": "gpu", "wandb": "wandb", "mlflow": "mlflow"}
# Recipes for images of one's own, and how they are told where those are.
OWN = {
    "image_folder": ["--data.data_dir", "photos"],
    "image_csv": ["--data.csv_file", "photos.csv"],
    "finetune": ["--data.data_dir", "photos", "--model.net.weights", "null"],
}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_runs(path: Path, real_data: Path, photos: Path) -> None:
    config = [] if path.stem == "default" else ["--config", str(path)]
    here = ["--data.data_dir", str(real_data)] if "data_dir" in path.read_text() else []
    here = OWN.get(path.stem, here)
    assert main(["fit", *config, *here, "--trainer.fast_dev_run", "1"]) == 0


# csv and overfit have their own tests below.
@pytest.mark.filterwarnings("ignore:.*AMP with fp16 is not supported on CPU")  # to be read
@pytest.mark.parametrize(
    "path",
    [p for p in PRESETS if p.stem not in {*UNAVAILABLE, "ddp_cpu", "overfit", "csv"}],
    ids=lambda p: p.stem,
)
def test_preset_stacks_on_a_recipe(path: Path) -> None:
    few = ["--trainer.max_steps", "2"] if path.stem != "debug" else []
    assert main(["fit", "--config", str(path), *few]) == 0


@pytest.mark.slow
def test_the_preset_profile_says_where_its_table_is(capsys: pytest.CaptureFixture[str]) -> None:
    path = CONFIGS / "presets" / "profile.yaml"
    assert main(["fit", "--config", str(path), "--trainer.max_steps", "2"]) == 0
    [line] = (at for at in capsys.readouterr().out.splitlines() if at.startswith("Table  "))
    assert "run_training_epoch" in Path(line.removeprefix("Table  ")).read_text()


@pytest.mark.parametrize("name", sorted(UNAVAILABLE))
def test_preset_for_other_machines_is_answered_in_a_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = CONFIGS / "presets" / f"{name}.yaml"
    if main(["fit", "--config", str(path), "--trainer.fast_dev_run", "1"]) == 2:
        said = capsys.readouterr().err
        assert UNAVAILABLE[name] in said.lower()
        assert len(said.strip().splitlines()) <= 3


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_keys_come_in_one_order(path: Path) -> None:
    keys = [key for key in yaml.safe_load(path.read_text()) if key in [*ORDER, "data", "model"]]
    assert keys == sorted(keys, key=[*ORDER, "data", "model"].index)


@pytest.mark.parametrize("name", [path.stem for path in RECIPES if path.stem != "default"])
def test_header_says_what_was_measured(name: str) -> None:
    lines = (CONFIGS / f"{name}.yaml").read_text().splitlines()
    header = "\n".join(takewhile(lambda line: line.startswith("#"), lines))
    assert f"lightning fit --config configs/{name}.yaml" in header
    if name in NOT_MEASURED:
        assert "not yet measured" in header
        return
    assert "not yet measured" not in header
    assert re.search(r"test accuracy.{0,40}\d[.\d]*", header)
    assert re.search(r"CPU|cores?\b|GPU", header)
    assert re.search(r"\d+(\.\d+)? (s|min|h)\b", header)


def loggers(run: Run) -> list[str]:
    chosen = yaml.safe_load(run.config.read_text())["trainer"]["logger"]
    return [logger["class_path"].rsplit(".", 1)[-1] for logger in chosen]


def test_presets_with_loggers_stack_on_one_another_and_on_the_users(workdir: Path) -> None:
    csv = CONFIGS / "presets" / "csv.yaml"
    own = workdir / "own.yaml"
    own.write_text(csv.read_text().replace("version: csv", "version: own"))
    settings = ["--trainer.max_steps", "1", "--config", str(own), "--config", str(csv)]
    assert main(["fit", *settings]) == 0
    run = find_run("last")
    assert loggers(run) == ["TensorBoard", "CSVLogger", "CSVLogger"]
    assert {"own", "csv"} <= {path.parent.name for path in run.path.glob("*/metrics.csv")}


@pytest.mark.parametrize("name", ["csv", "wandb", "mlflow"])
def test_presets_with_loggers_add_to_the_list(name: str) -> None:
    assert list(yaml.safe_load((CONFIGS / "presets" / f"{name}.yaml").read_text())["trainer"]) == [
        "logger+"
    ]


@pytest.mark.slow
def test_overfit_keeps_the_callbacks_of_the_user(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = workdir / "own.yaml"
    callback = "lightning.pytorch.callbacks.ModelSummary"
    own.write_text(f"trainer:\n  callbacks:\n    - class_path: {callback}\n")
    preset = CONFIGS / "presets" / "overfit.yaml"
    settings = ["--config", str(own), "--config", str(preset), "--trainer.max_epochs", "30"]
    assert main(["fit", *settings]) == 0
    [config] = workdir.glob("logs/*/*/config.yaml")
    chosen = yaml.safe_load(config.read_text())["trainer"]["callbacks"]
    assert [c["class_path"] for c in chosen] == [callback, "project.callbacks.OverfitCheck"]
    assert "overfit check passed" in capsys.readouterr().out
