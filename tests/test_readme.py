"""What the README says is so: its files exist, its commands run, its snippets work when pasted."""

import ast
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
cli = importlib.import_module(f"{PACKAGE}.cli")
helptext = importlib.import_module(f"{PACKAGE}.helptext")
README = (ROOT / "README.md").read_text()

FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPANS = re.findall(r"`([^`\n]+)`", FENCED.sub("", README))
SHELL = [
    line.strip()
    for language, block in FENCED.findall(README)
    if language == "sh"
    for line in block.splitlines()
]
# What the README tells the reader to save, by the file it is to be saved as.
SNIPPETS = dict(re.findall(r"this as `([^`]+)`:\n\n```\w+\n(.*?)^```$", README, re.M | re.S))
PYTHON = {name: code for name, code in SNIPPETS.items() if name.endswith(".py")}
# Words that stand for something of the reader's: RUN, RECIPE, NAME, N.
PLACEHOLDER = re.compile(r"\b[A-Z]+\b")


def commands(program: str) -> list[list[str]]:
    """The arguments of every complete command of the README, in its order."""
    lines = [part for line in SHELL for part in line.split(" && ")] + SPANS
    words = [shlex.split(line) for line in dict.fromkeys(lines) if line.startswith(f"{program} ")]
    return [args[1:] for args in words]


LIGHTNING = [
    args
    for args in commands("lightning")
    if len(args) > 1 and not any(PLACEHOLDER.search(arg) for arg in args)
    if args[0] != "serve"  # it would not end; tests/serve sends what the README sends
]
FIT = [args for args in LIGHTNING if args[0] == "fit" and "--help" not in args]


@pytest.fixture
def pasted(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Save the README's snippets as it says, with photographs where they look for them."""
    for name, code in SNIPPETS.items():
        (workdir / name).parent.mkdir(parents=True, exist_ok=True)
        (workdir / name).write_text(code)
    write_photographs(workdir / "photos")
    for name in PYTHON:
        room = importlib.import_module(".".join(Path(name).parent.parts))
        monkeypatch.setattr(room, "__path__", [*room.__path__, str((workdir / name).parent)])
    yield workdir
    for name in PYTHON:
        module = ".".join(Path(name).with_suffix("").parts)
        room, leaf = module.rsplit(".", 1)
        left = sys.modules.pop(module, None)
        for own in vars(left).values() if left else ():
            if isinstance(own, type) and own.__module__ == module:
                # Caches of jsonargparse and Lightning keep it alive; among the subclasses that
                # later tests are offered, jsonargparse leaves out what is local to a function.
                own.__module__, own.__qualname__ = room, f"pasted.<locals>.{own.__name__}"
        vars(sys.modules[room]).pop(leaf, None)


def write_photographs(folder: Path) -> None:
    """Write the digits 0, 1 and 2 as colour JPEGs, 32 of each, and a table of them."""
    with np.load(ROOT / PACKAGE / "data" / "digits.npz") as file:
        images, labels = file["images"], file["labels"]
    rows = ["path,label,split"]
    for label, name in enumerate(("birch", "maple", "oak")):
        (folder / name).mkdir(parents=True)
        for index, image in enumerate(images[labels == label][:32]):
            picture = Image.fromarray((image * 15).astype(np.uint8)).convert("RGB")
            picture.resize((20, 18)).save(folder / name / f"{index:03d}.jpg")
            rows.append(f"{name}/{index:03d}.jpg,{name},{'test' if index % 4 == 0 else 'train'}")
    (folder / "labels.csv").write_text("\n".join(rows))


def test_the_readme_has_what_is_tested_here() -> None:
    assert len(FIT) >= 5
    assert len(SNIPPETS) >= 2
    assert len(PYTHON) >= 2


@pytest.mark.parametrize("target", sorted({args[0] for args in commands("make")}))
def test_make_targets_exist(target: str) -> None:
    assert re.search(rf"^{target}:.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_files_exist() -> None:
    own = re.compile(rf"(?:{PACKAGE}|configs|notebooks|tests|\.ci)/[\w./-]+|[\w.-]+\.toml")
    named = {span for span in SPANS if own.fullmatch(span)} - set(SNIPPETS)
    named |= set(re.findall(r"\]\(([\w./-]+)\)", README))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_map_of_the_house_is_right() -> None:
    tree = next(block for _, block in FENCED.findall(README) if block.startswith(f"{PACKAGE}/\n"))
    inside = ""
    for line in tree.splitlines():
        name = line.split()[0]
        inside = inside if line.startswith(" ") else ""
        assert (ROOT / inside / name).exists(), name
        inside = inside or name


def test_tables_name_every_preset_recipe_and_verb() -> None:
    first = re.findall(r"^\| (`[^|]*) \|", README, re.MULTILINE)
    named = {span for cell in first for span in re.findall(r"`([^`]+)`", cell)}
    assert {path.stem for path in (ROOT / "configs/presets").glob("*.yaml")} <= named
    recipes = {f"configs/{path.name}" for path in (ROOT / "configs").glob("*.yaml")}
    assert recipes <= named
    verbs = {span.split()[1] for span in named if span.startswith("lightning ")}
    assert set(helptext.SETTINGS) <= verbs <= set(helptext.verbs())


def test_pictures_are_small() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures
    assert all((ROOT / name).stat().st_size <= 200_000 for name in pictures)


def test_no_path_or_address_of_a_machine() -> None:
    assert re.findall(r"(?<![\w.])/(?:home|root|work|tmp|Users|mnt|opt|usr)\b", README) == []
    assert set(re.findall(r"\d+\.\d+\.\d+\.\d+", README)) == {"127.0.0.1"}


def test_at_most_250_lines_are_to_be_read_first() -> None:
    rows = re.findall(r"^\| `([^`]+)`, [^|]+\| (\d+) lines \|$", README, re.MULTILINE)
    assert len(rows) >= 4
    for name, lines in rows:
        assert len((ROOT / name).read_text().splitlines()) <= int(lines), name
    assert sum(int(lines) for _, lines in rows) <= 250


@pytest.mark.parametrize("args", FIT, ids=" ".join)
def test_settings_of_every_fit_are_accepted(
    args: list[str], pasted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--resume" in args:  # it needs a run, whose settings are taken
        args = ["fit", *args[args.index("--resume") + 2 :]]
    assert cli.main([*args, "--print_config"]) == 0, capsys.readouterr().err


def test_settings_named_in_prose_exist(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = {span.split()[0] for span in SPANS if span.startswith("--")}
    assert len(named) > 10
    configs = []
    for recipe in ("mnist", "image_folder", "image_csv"):
        assert cli.main(["fit", "--config", f"configs/{recipe}.yaml", "--print_config"]) == 0
        configs.append(yaml.safe_load(capsys.readouterr().out))
    own = [path.read_text() for path in (ROOT / PACKAGE / "commands").glob("*.py")]
    texts = [*helptext.SETTINGS.values(), *own]
    for name in sorted(named):
        found = any(has(config, name.removeprefix("--").split(".")) for config in configs)
        assert found or ("." not in name and any(f" {name}" in text for text in texts)), name


def has(config: Any, keys: list[str]) -> bool:
    for key in keys:
        config = config if key in config else config.get("init_args", {})
        if key not in config:
            return False
        config = config[key]
    return True


@pytest.mark.parametrize("name", PYTHON)
def test_snippets_are_short(name: str) -> None:
    tree = ast.parse(PYTHON[name])
    lines = {number for number, line in enumerate(PYTHON[name].splitlines(), 1) if line.strip()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    assert len(lines) < 35
    for node in ast.walk(tree):
        bases = {ast.unparse(base).split("[")[0] for base in getattr(node, "bases", [])}
        if isinstance(node, ast.ClassDef) and "Dataset" in bases:
            assert len(lines & set(range(node.lineno, (node.end_lineno or 0) + 1))) <= 15


@pytest.mark.parametrize("name", PYTHON)
@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_snippets_pass_ruff(name: str, command: list[str]) -> None:
    settings = ["--config", str(ROOT / "pyproject.toml"), "--stdin-filename", str(ROOT / name)]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--no-cache", *settings, "-"],
        input=PYTHON[name],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_own_data_and_own_network_train(pasted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, network = f"{PACKAGE}.data.stripes.StripesDataModule", f"{PACKAGE}.models.tiny.TinyNet"
    args = ["--config", "configs/image_folder.yaml", "--config", "configs/presets/debug.yaml"]
    args += ["--data", data, "--model.net", network]
    assert cli.main(["fit", *args]) == 0, capsys.readouterr().err
    assert re.search(r"acc .*0\.\d{4}", capsys.readouterr().out)


def test_one_line_of_yaml_changes_the_network(
    pasted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = pasted / "configs" / "mine.yaml"
    recipe.parent.mkdir(exist_ok=True)
    recipe.write_text((ROOT / "configs" / "image_folder.yaml").read_text())
    old, new = f"{PACKAGE}.models.ConvNet", f"{PACKAGE}.models.tiny.TinyNet"
    assert recipe.read_text().count(f"class_path: {old} ") == 1
    recipe.write_text(recipe.read_text().replace(old, new))
    debug = ["--config", "configs/presets/debug.yaml"]
    assert cli.main(["fit", "--config", str(recipe), "--data.data_dir", "photos", *debug]) == 0
    assert "acc" in capsys.readouterr().out


ANY_DATA = """
import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

class AnyDataModule(L.LightningDataModule):
    class_names, num_classes, in_channels, image_size = ("a", "b"), 2, 1, 6

    def loader(self):
        labels = torch.arange(32) % 2
        images = torch.zeros(32, 1, 6, 6) + labels[:, None, None, None]
        return DataLoader(TensorDataset(images, labels), batch_size=8)

    train_dataloader = val_dataloader = test_dataloader = loader
"""


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_any_data_module_trains_and_answers_for_the_network(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "any_data.py").write_text(ANY_DATA)
    monkeypatch.syspath_prepend(workdir)
    monkeypatch.delitem(sys.modules, "any_data", raising=False)
    args = ["--data", "any_data.AnyDataModule", "--model", f"{PACKAGE}.tasks.ClassificationTask"]
    args += ["--model.net", f"{PACKAGE}.models.MLP", "--trainer.max_epochs", "1"]
    args += ["--trainer.enable_progress_bar", "false"]
    assert cli.main(["fit", *args]) == 0, capsys.readouterr().err
    assert cli.main(["test", "--run", "last"]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_snippets_pass_mypy(pasted: Path) -> None:
    # A copy of the package, because an installed one has no types for mypy.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", *PYTHON],
        cwd=pasted,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
# Two batches by intent; train figures are logged at the end of every epoch all the same.
@pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")
def test_every_command_runs(pasted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    downloads = ("mnist", "cifar10", "finetune")
    for args in (args for args in commands("python") if "fit" not in args):
        assert importlib.import_module(args[1]).main(args[2:]) == 0  # `-m MODULE ARGUMENTS`
    assert cli.main(["fit"]) == 0
    for args in LIGHTNING:
        if not any(name in arg for name in downloads for arg in args):
            found = args[0] == "doctor" and len(args) > 1  # it shows what is wrong with settings
            assert cli.main(args) in ((0, 1) if found else (0,)), (args, capsys.readouterr().err)
    assert len(list(Path("logs").glob("image_folder/*/run.json"))) >= 2
    assert list(Path("logs").glob("stripes/*/run.json"))
    assert list(Path("logs").glob("*/*/predictions.csv"))


@pytest.mark.slow
def test_a_run_can_be_trained_again_from_its_configuration(workdir: Path) -> None:
    tiny = ["--trainer.max_epochs", "1"]
    assert cli.main(["fit", *tiny]) == 0
    (config,) = Path("logs").glob("digits/*/config.yaml")
    assert cli.main(["fit", "--config", str(config)]) == 0
    assert len(list(Path("logs").glob("digits/*/run.json"))) == 2


@pytest.mark.slow
def test_a_run_prints_what_the_readme_shows(workdir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", PACKAGE, "fit"], capture_output=True, text=True, check=True
    )

    def shape(line: str) -> str:
        bare = re.sub(r"\S*/(?=tensorboard |lightning )", "", line)  # wherever the environment is
        return re.sub(r"\d+", "9", " ".join(bare.split()))

    printed = {shape(line) for line in re.split(r"[\r\n]", done.stdout)}
    excerpt = next(block for _, block in FENCED.findall(README) if block.startswith("Model "))
    shown = [shape(line) for line in excerpt.splitlines() if line != "…"]
    assert [line for line in shown if line not in printed] == []
    assert done.stderr == ""
