import os
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
rename = import_module(f"{PACKAGE}.commands.rename")

# `{p}` stands for the package; written out, the names here would change with the package's own.
MEANS_THE_PACKAGE = [
    ("a.py", "from {p} import __version__"),
    ("a.py", "import {p}"),
    ("a.py", "import {p} as pkg"),
    ("a.py", "from {p}.data import DigitsDataModule"),
    ("a.py", "import {p}\n\nnames = dir({p})"),
    ("a.py", 'import_module("{p}")'),
    ("a.py", 'import_module(f"{p}.{{room}}")'),
    ("a.py", 'name.startswith("{p}.")'),
    ("a.py", 're.match(r"{p}\\.(data|models)", name)'),
    ("a.py", 'run([sys.executable, "-m", "{p}", "fit"])'),
    ("a.py", 'run(["{p}", "fit"])'),
    ("a.py", 'run([sys.executable, "-c", "import sys\\nimport {p}.cli"])'),
    ("a.py", 'ROOT / "{p}" / "data"'),
    ("a.py", 'HOUSE = ROOT / "{p}"'),
    ("a.py", 'sorted(Path("{p}").glob("*.py"))'),
    ("a.py", 'open(f"{{root}}/{p}/data/digits.npz")'),
    ("a.yaml", "class_path: {p}.models.MLP"),
    ("a.yaml", "callbacks: [{p}.callbacks.A, {p}.callbacks.B]"),
    ("Makefile", "\t$(PYTHON) -m {p}.commands.rename"),
    ("Makefile", "\t.venv/bin/{p} fit"),
    ("Makefile", "\tmypy --strict {p}"),
    ("ci.yml", "- run: python -m {p} fit"),
    (".gitignore", "/{p}/data/*.npy"),
    ("README.md", "lightning fit --model.net {p}.models.ConvNet"),
    ("README.md", "    {p} fit --trainer.max_epochs 3"),
    ("README.md", "`{p} --help` is the same; so is `python -m {p}`."),
    ("README.md", "{p}/\n  cli.py"),
    ("README.md", "see [the task](./{p}/tasks/classification.py)"),
    ("README.md", "the package `{p}`"),
    ("a.ipynb", '"source": ["from {p}.runs import load_run\\n", "import_module(\\"{p}\\")"]'),
    ("a.toml", '[tool.mypy]\nfiles = ["{p}"]'),
    ("a.toml", '[tool.setuptools.packages.find]\ninclude = ["{p}", "{p}.*", "{p}*"]'),
    ("a.toml", '[tool.setuptools.package-data]\n{p} = ["data/*.npz"]'),
    ("a.toml", '[tool.setuptools.dynamic]\nversion = {{ attr = "{p}.__version__" }}'),
    ("a.toml", '[tool.ruff.lint.per-file-ignores]\n"{p}/cli.py" = ["E402"]'),
    ("a.toml", '[project.scripts]\n{p} = "{p}.cli:main"'),
    ("a.toml", '[project]\nname = "{p}"'),
    ("a.toml", '[project.optional-dependencies]\nall = ["{p}[dev]"]'),
]
MEANS_SOMETHING_ELSE = [
    ("a.py", "WandbLogger(project='x')"),
    ("a.py", "def f(project, other): return project"),
    ("a.py", 'settings["project"] = {"project": "x"}'),
    ("a.py", 'tomllib.loads(text)["project"]["scripts"]'),
    ("a.py", 'f"logs of this project."'),
    ("a.py", "logger.project.data"),
    ("a.py", "from my_project.data import X"),
    ("a.py", "import projector"),
    ("a.py", "projects.data.load()"),
    ("a.yaml", "project: project"),
    ("a.yaml", "init_args: {project: vision, entity: me}"),
    ("a.toml", "[project]\nversion = '1'"),
    ("a.toml", "[project.scripts]\n"),
    ("a.toml", '[tool.wandb]\nproject = "project"'),
    ("README.md", "your project test suite, and the import project of last year"),
    ("README.md", "from project to project"),
    ("README.md", "A project: data, models; pyproject.toml; [project.scripts]"),
    ("README.md", "`project:` and --trainer.logger.project other"),
    ("README.md", "https://example.org/project/docs and me@project.org, entity/project/run"),
    ("README.md", "This project\ntest data is small."),
]  # fmt: skip


@pytest.mark.parametrize("old", ["project", "vision_lab"])
@pytest.mark.parametrize(("name", "text"), MEANS_THE_PACKAGE)
def test_a_name_of_the_package_is_renamed(name: str, text: str, old: str) -> None:
    after, count = rename.rewrite(text.format(p=old), old, "acme", Path(name).suffix)
    assert after == text.format(p="acme")
    assert count == text.count("{p}")


@pytest.mark.parametrize(("name", "text"), MEANS_SOMETHING_ELSE)
def test_a_word_or_setting_spelt_alike_stays(name: str, text: str) -> None:
    assert rename.rewrite(text, "project", "acme", Path(name).suffix) == (text, 0)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A small project around the package `old_net`."""
    for name, text in {
        "old_net/__init__.py": "",
        "old_net/data/digits.py": "from old_net.runs import load_run\r\n",
        "configs/digits.yaml": "class_path: old_net.data.Digits\nproject: old_net_like\n",
        ".ci/constraints.txt": "# pins\nfancy-dep==1.0\n",
        "logs/old/config.yaml": "class_path: old_net.data.Digits\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "old_net/data/digits.npz").write_bytes(b"\xff\x00old_net/")
    return tmp_path / "old_net"


def snapshot(root: Path) -> dict[str, bytes]:
    files = [p for p in root.rglob("*") if p.is_file() and ".git/" not in str(p)]
    return {str(p.relative_to(root)): p.read_bytes() for p in files}


def test_folder_and_files_are_renamed(package: Path) -> None:
    before = snapshot(package.parent)
    assert rename.main(["my_net"], package) == 0
    after = snapshot(package.parent)
    assert after == {
        name.replace("old_net/", "my_net/"): text
        if name.startswith("logs") or name.endswith("npz")
        else text.replace(b"old_net.", b"my_net.")
        for name, text in before.items()
    }


def test_what_changed_and_what_comes_next_is_printed(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rename.main(["my_net"], package)
    out = capsys.readouterr().out
    assert "old_net is now my_net" in out
    assert "configs 1, my_net 1" in out
    assert "make test" in out
    assert "logs/" in out


def test_renaming_back_restores_every_byte(package: Path) -> None:
    before = snapshot(package.parent)
    assert rename.main(["my_net"], package) == 0
    assert rename.main(["old_net"], package.parent / "my_net") == 0
    assert snapshot(package.parent) == before


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "Give one name"),
        ([""], "Give one name"),
        (["a", "b"], "Give one name"),
        (["MyNet"], "NAME=my_net"),
        (["my-net"], "NAME=my_net"),
        (["2nd net"], "NAME=nd_net"),
        (["_"], "NAME=my_net"),
        (["../x"], "NAME=x"),
        (["class"], "Python language"),
        (["json"], "standard library"),
        (["fancy_dep"], "needs"),
        (["yaml"], "needs"),
        (["configs"], "file or folder"),
        (["data"], "file or folder"),
        (["old_net"], "called already"),
    ],
)
def test_a_bad_name_is_refused_and_nothing_changes(
    package: Path, capsys: pytest.CaptureFixture[str], argv: list[str], reason: str
) -> None:
    before = snapshot(package.parent)
    assert rename.main(argv, package) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert 1 <= len(said.splitlines()) <= 3
    assert snapshot(package.parent) == before


def test_changes_that_are_not_committed_are_refused(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = package.parent
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    subprocess.run(["git", "add", "configs"], cwd=root, check=True)
    before = snapshot(root)
    assert rename.main(["my_net"], package) == 2
    assert "not committed" in capsys.readouterr().err
    assert snapshot(root) == before


def test_a_file_that_cannot_be_written_leaves_everything_as_it_was(
    package: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(f"no permission to write {target}")

    monkeypatch.setattr(Path, "rename", refuse)
    before = snapshot(package.parent)
    assert rename.main(["my_net"], package) == 2
    assert "Nothing is renamed" in capsys.readouterr().err
    assert snapshot(package.parent) == before


def test_runs_on_the_standard_library_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-m", f"{PACKAGE}.commands.rename", "Bad"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def clone(target: Path) -> Path:
    """Copy the project's own files, committed or not, to ``target``."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def renamed_environment(tmp_path: Path, copy: Path) -> dict[str, str]:
    """Make `my_net` importable and callable, and the old name neither, without an install."""
    stub = tmp_path / "stub" / PACKAGE
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("raise ImportError('this name is gone')\n")
    scripts = tmp_path / "bin"
    scripts.mkdir()
    for name, code in {
        "lightning": "from my_net.cli import main; sys.exit(main())",
        "my_net": "from my_net.cli import main; sys.exit(main())",
        PACKAGE: "sys.exit('this command is gone')",
    }.items():
        (scripts / name).write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
        (scripts / name).chmod(0o755)
    paths = [str(copy), str(tmp_path / "stub")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join([str(scripts), os.environ["PATH"]]),
    }


@pytest.mark.slow
def test_the_fast_suite_passes_after_a_rename(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository: made files cannot be told from the project's own")
    copy = clone(tmp_path / "copy")
    assert rename.main(["my_net"], copy / PACKAGE) == 0
    how = ["-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *how],
        cwd=copy,
        env=renamed_environment(tmp_path, copy),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
