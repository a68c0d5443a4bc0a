"""The house keeps its shape: imports go one way, files stay short, nothing new at the top level."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
HOUSE = ROOT / PACKAGE
FILES = sorted(HOUSE.rglob("*.py"))
# Every folder is a room, except that of the verbs; new ones are under the law at once.
FOLDERS = {path.parent.name for path in HOUSE.glob("*/*.py")}
ROOMS = {"data", "models", "tasks", "callbacks"} | FOLDERS - {"commands"}
# Rooms of a verb each, which no recipe names: commands may import them.
TOOLS = {"doctor", "export", "profiling", "serve", "tuning"}
TOP_LEVEL = {
    *(PACKAGE, "configs", "tests", "notebooks"),
    *("pyproject.toml", "Makefile", "README.md", "LICENSE", "CHANGELOG.md"),
}


def imported(source: str, module: str) -> Iterator[str]:
    """Yield the full names of what ``source``, the text of ``module``, imports anywhere."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level] if node.level else []
            whole = ".".join(base + ([node.module] if node.module else []))
            yield from (f"{whole}.{alias.name}" for alias in node.names)


def forbidden(source: str, module: str) -> list[str]:
    """List the imports of ``module`` that the import law does not allow."""
    own = [*module.split("."), ""][1]
    shut = ROOMS - {own}
    if own in ROOMS:
        shut |= {"cli", "commands"}
    if own == "commands":
        shut -= TOOLS
    names = [name.split(".") for name in imported(source, module)]
    return [".".join(n) for n in names if n[0] == PACKAGE and len(n) > 1 and n[1] in shut]


def module_of(path: Path) -> str:
    # `project.data.__init__` for a folder's own file, so that one dot leads to the folder.
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_go_one_way(path: Path) -> None:
    assert forbidden(path.read_text(), module_of(path)) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("data.digits", "from {p}.models import MLP"),
        ("data.digits", "import {p}.models.mlp"),
        ("data.digits", "from {p} import models"),
        ("data.digits", "from .. import models"),
        ("data.digits", "from ..models.mlp import MLP"),
        ("data.digits", "def f():\n    from {p}.tasks import ClassificationTask"),
        ("data.__init__", "from ..models import MLP"),
        ("models.mlp", "from {p}.cli import main"),
        ("tasks.classification", "from {p}.commands import rename"),
        ("cli", "from {p}.data import DigitsDataModule"),
        ("commands.rename", "from {p}.callbacks import x"),
        ("runs", "import {p}.tasks"),
    ],
)
def test_a_breach_of_the_import_law_is_seen(module: str, line: str) -> None:
    assert len(forbidden(line.format(p=PACKAGE), f"{PACKAGE}.{module}")) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("data.digits", "from {p}.data.images import x"),
        ("data.digits", "from .images import x"),
        ("data.digits", "from {p}.runs import load_run"),
        ("commands.rename", "from {p}.runs import load_run"),
        ("commands.doctor", "from {p}.doctor.examination import Examination"),
        ("cli", "import models, data.x"),
    ],
)
def test_the_import_law_allows_neighbours_and_house_files(module: str, line: str) -> None:
    assert forbidden(line.format(p=PACKAGE), f"{PACKAGE}.{module}") == []


@pytest.mark.parametrize("module", ["cli", "runs", "commands"])
def test_starts_without_importing_torch(module: str) -> None:
    code = f"import sys, {PACKAGE}.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_package_itself_imports_nothing() -> None:
    assert list(imported((HOUSE / "__init__.py").read_text(), PACKAGE)) == []


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_file_has_at_most_300_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300


def test_the_top_level_holds_what_the_readme_shows() -> None:
    git = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if not (ROOT / ".git").exists() or git.returncode:
        pytest.skip("not a git repository: made files cannot be told from the project's own")
    top = {Path(name).parts[0] for name in git.stdout.splitlines()}
    assert {name for name in top if not name.startswith(".")} == TOP_LEVEL
