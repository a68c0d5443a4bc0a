"""The project's own recipes pass `lightning doctor`: put yours into the list."""

from pathlib import Path

import pytest

from project.cli import main

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
# Those whose data is where the tests run, which download nothing.
RECIPES = ["default", "digits"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_healthy(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--config", str(CONFIGS / f"{recipe}.yaml")])
    assert code == 0, capsys.readouterr().out
