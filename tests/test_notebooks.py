"""Notebooks are stored without output, pass the linter, run from top to bottom, and teach."""

import ast
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
LESSONS = [path for path in NOTEBOOKS if path.stem[:2].isdigit()]  # the learning path
MAP = (ROOT / "notebooks" / "README.md").read_text()
SUPPORT = ROOT / "tests" / "notebooks"
# Minutes. A word is one of 200 in a minute, a line of code one of 20; exercises are not counted.
LONGEST = 15
notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
lessons = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
needs_jupyter = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("nbclient", "ipykernel", "matplotlib"))),
    reason="needs the extra: pip install -e '.[notebooks]'",
)


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return found


def text(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def exercises(path: Path) -> list[dict[str, Any]]:
    """The cells from the heading of the exercises on."""
    found = cells(path)
    begins = [text(cell).startswith("## Exercises") for cell in found]
    assert begins.count(True) == 1
    return found[begins.index(True) :]


def code(path: Path) -> str:
    """All code, without what only IPython understands."""
    sources = [text(cell) for cell in cells(path) if cell["cell_type"] == "code"]
    lines = "\n".join(sources).splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))


def test_there_is_a_tour() -> None:
    assert "tour" in [path.stem for path in NOTEBOOKS]


def test_the_map_names_every_notebook_and_no_other() -> None:
    assert set(re.findall(r"\]\((\w+\.ipynb)\)", MAP)) == {path.name for path in NOTEBOOKS}


def reading_time(path: Path) -> float:
    """Minutes."""
    read = cells(path)[: -len(exercises(path))]
    words = sum(len(text(cell).split()) for cell in read if cell["cell_type"] == "markdown")
    code = [text(cell) for cell in read if cell["cell_type"] == "code"]
    lines = sum(bool(line.strip()) for source in code for line in source.splitlines())
    return words / 200 + lines / 20


@lessons
def test_reading_takes_as_long_as_the_map_says(path: Path) -> None:
    (said,) = re.findall(rf"\({path.name}\).*\| (\d+) min \| \d+ s \|$", MAP, re.MULTILINE)
    assert abs(int(said) - reading_time(path)) < 1
    assert int(said) <= LONGEST


@lessons
def test_links_lead_to_files(path: Path) -> None:
    words = "".join(text(cell) for cell in cells(path) if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([\w./-]+)\)", words)
    assert [link for link in links if not (path.parent / link).exists()] == []


@lessons
def test_three_exercises_end_it_each_with_a_collapsed_solution(path: Path) -> None:
    last = exercises(path)
    numbers = [re.match(r"### Exercise (\d)", text(cell)) for cell in last]
    assert [found[1] for found in numbers if found] == ["1", "2", "3"]
    solutions = [cell for cell in last if "solution" in cell["metadata"].get("tags", [])]
    assert len(solutions) == 3
    assert all(cell["metadata"]["jupyter"] == {"source_hidden": True} for cell in solutions)
    assert all("assert " in text(cell) for cell in solutions)
    # A heading before each, so that it can also be folded where the metadata is not heeded.
    before = [text(last[last.index(cell) - 1]) for cell in solutions]
    assert before == [f"#### Solution {number}" for number in (1, 2, 3)]


@notebooks
def test_no_output_is_stored(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_cells_pass_ruff(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--no-cache", *map(str, NOTEBOOKS)],
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


@notebooks
def test_nothing_private_is_imported(path: Path) -> None:
    names = []
    for node in ast.walk(ast.parse(code(path))):
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    assert names
    ours = [name for name in names if name.split(".")[0] == PACKAGE]
    assert [name for name in ours if "._" in name] == []


def printed(cell: Any) -> str:
    """The text that a cell has printed."""
    return "".join(out["text"] for out in cell["outputs"] if out["output_type"] == "stream")


@pytest.fixture
def no_settings(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's: no settings, no history."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(workdir / name))
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))  # no network, in the kernel and below


def execute(notebook: Any, folder: Path) -> None:
    """Run all cells in an otherwise empty folder; a cell may take minutes on a busy machine."""
    from nbclient import NotebookClient

    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()


@pytest.mark.slow
@needs_jupyter
@pytest.mark.usefixtures("no_settings")
@lessons
def test_a_lesson_runs_offline_and_labels_its_axes(path: Path, workdir: Path) -> None:
    import nbformat

    folder = workdir / "notebooks"
    folder.mkdir()
    notebook = nbformat.read(path, 4)
    first = nbformat.v4.new_code_cell("import labelled\n\nlabelled.watch()")
    last = nbformat.v4.new_code_cell("import labelled\n\nprint(labelled.found)")
    notebook.cells = [first, *notebook.cells, last]
    execute(notebook, folder)
    assert printed(notebook.cells[-1]) == "[]\n"
    assert list(folder.iterdir()) == []  # what it writes, it writes to a temporary folder


@pytest.mark.slow
@needs_jupyter
@pytest.mark.parametrize(
    ("plots", "on", "labels", "missing"),
    [
        (True, True, {}, ["x", "y"]),
        (True, True, {"xlabel": "step"}, ["y"]),
        (True, True, {"xlabel": "step", "ylabel": "loss"}, []),
        (True, False, {}, ["axes, which are off"]),
        (False, False, {}, []),  # a picture
    ],
)
def test_axes_without_labels_are_seen(
    plots: bool,
    on: bool,
    labels: dict[str, str],
    missing: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from matplotlib.figure import Figure

    monkeypatch.syspath_prepend(SUPPORT)
    axes = Figure().subplots()
    axes.plot([1, 2]) if plots else axes.imshow([[1]])
    axes.set(**labels)
    if not on:
        axes.set_axis_off()
    assert import_module("labelled").missing(axes) == missing


@pytest.mark.usefixtures("no_settings")
def test_the_network_is_shut_for_notebooks() -> None:
    run = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)
    assert "notebooks run offline" in done.stderr


@pytest.mark.slow
@needs_jupyter
@pytest.mark.usefixtures("no_settings")
def test_the_tour_runs_on_a_fresh_run(workdir: Path) -> None:
    import nbformat

    assert import_module(f"{PACKAGE}.cli").main(["fit"]) == 0
    (run,) = Path("logs").glob("digits/*")
    folder = workdir / "notebooks"
    folder.mkdir()
    shutil.copy(ROOT / "notebooks" / "tour.ipynb", folder)
    notebook = nbformat.read(folder / "tour.ipynb", 4)
    execute(notebook, folder)

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
