"""Every configuration runs through the command, with one batch of everything."""

import re
from pathlib import Path

import pytest
import yaml

from project.cli import main

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
RECIPES = sorted(CONFIGS.glob("*.yaml"))
PRESETS = sorted((CONFIGS / "presets").glob("*.yaml"))
ORDER = ["seed_everything", "trainer", "checkpoint", "early_stopping", "lr_monitor"]
# Presets that need what a laptop or this environment lacks: their settings are checked, not run.
UNAVAILABLE = {"ddp": "gpu", "wandb": "wandb", "mlflow": "mlflow"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_runs(path: Path, real_data: Path) -> None:
    config = [] if path.stem == "default" else ["--config", str(path)]
    here = ["--data.data_dir", str(real_data)] if "data_dir" in path.read_text() else []
    assert main(["fit", *config, *here, "--trainer.fast_dev_run", "1"]) == 0


@pytest.mark.filterwarnings("ignore:.*AMP with fp16 is not supported on CPU")  # to be read
@pytest.mark.parametrize(
    "path", [p for p in PRESETS if p.stem not in {*UNAVAILABLE, "ddp_cpu"}], ids=lambda p: p.stem
)
def test_preset_stacks_on_a_recipe(path: Path) -> None:
    few = ["--trainer.max_epochs", "1"] if path.stem not in ("overfit", "debug") else []
    assert main(["fit", "--config", str(path), *few]) == 0


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


@pytest.mark.parametrize("path", RECIPES[1:], ids=lambda path: path.stem)
def test_header_says_what_was_measured(path: Path) -> None:
    if path.stem == "default":
        pytest.skip("no recipe")
    header = "".join(line for line in path.read_text().splitlines(True) if line.startswith("#"))
    assert f"configs/{path.name}" in header or path.stem == "digits"
    assert re.search(r"lightning fit", header)
    assert re.search(r"accuracy|not yet measured", header)
