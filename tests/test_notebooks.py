"""Notebooks are stored without output, pass the linter, and run from top to bottom."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return found


def test_there_is_a_tour() -> None:
    assert "tour" in [path.stem for path in NOTEBOOKS]


@notebooks
def test_no_output_is_stored(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@notebooks
@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_cells_pass_ruff(path: Path, command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--no-cache", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@notebooks
def test_callbacks_and_verbs_are_not_imported(path: Path) -> None:
    # Each of them can be deleted, and the notebook still runs.
    source = "".join(line for cell in cells(path) for line in cell["source"])
    assert not re.search(rf"{PACKAGE}\.(callbacks|commands)", source)


def printed(cell: Any) -> str:
    """The text that a cell has printed."""
    return "".join(out["text"] for out in cell["outputs"] if out["output_type"] == "stream")


@pytest.mark.slow
@pytest.mark.skipif(
    not (importlib.util.find_spec("nbclient") and importlib.util.find_spec("ipykernel")),
    reason="needs the extra: pip install -e '.[notebooks]'",
)
def test_the_tour_runs_on_a_fresh_run(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    # Nothing of the user's: no settings, no history.
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(workdir / name))
    assert import_module(f"{PACKAGE}.cli").main(["fit"]) == 0
    (run,) = Path("logs").glob("digits/*")
    folder = workdir / "notebooks"
    folder.mkdir()
    shutil.copy(ROOT / "notebooks" / "tour.ipynb", folder)
    notebook = nbformat.read(folder / "tour.ipynb", 4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()

    by_name = {cell["id"]: cell for cell in notebook.cells}
    assert run.name in printed(by_name["load"])
    found = re.search(r"accuracy (0\.\d+|1\.0+)", printed(by_name["predict"]))
    assert found
    recorded = json.loads((run / "run.json").read_text())["scores"]["test/acc"]
    assert float(found[1]) == pytest.approx(recorded, abs=5e-5)  # four digits are printed
    assert "val/loss (" in printed(by_name["curves"])
    assert "<polyline" in by_name["draw"]["outputs"][0]["data"]["text/html"]
    assert "<img" in by_name["look"]["outputs"][0]["data"]["text/html"]
    assert len(list(Path("logs").glob("*/*"))) == 1  # it has loaded that run, not trained another
