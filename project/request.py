"""What a command line asks for, without torch: which recipe, which run, which checkpoint."""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

import project
from project.mistakes import UserError, did_you_mean
from project.runs import LOGS, Run, find_run, safe_name

HOME = Path(project.__file__).resolve().parent.parent
CONFIGS = HOME / "configs"
BARE_RECIPE = "digits"  # what `lightning fit` trains when no recipe is named


@dataclass(frozen=True)
class Request:
    """A verb with its settings, resolved as far as names and files go.

    Args:
        verb: fit, validate, test or predict.
        args: What the parser is to read: files first, then the command line, which beats them.
        experiment: The folder below ``root`` that the run belongs to.
        root: The folder of all experiments.
        run: The run to work on; None for a new one.
        ckpt_path: The checkpoint to load; None for a new run.
        configs: The recipe and presets, as given.
        command: What was typed.
    """

    verb: str
    args: list[str]
    experiment: str
    root: Path
    run: Run | None = None
    ckpt_path: Path | None = None
    configs: tuple[str, ...] = ()
    command: str = ""


def read_request(verb: str, argv: Sequence[str], look: bool = True) -> Request:
    """Find the recipe and the run that a command line names.

    Args:
        verb: fit, validate, test or predict.
        argv: What follows the verb.
        look: False only lists the settings there are, whether or not there is a run.

    Raises:
        UserError: If a file or a run does not exist.
    """
    if not look:
        return Request(verb, [verb, "--help"], BARE_RECIPE, Path(LOGS))
    given, rest = _scanner().parse_known_args(list(argv))
    configs = [_find_config(name) for name in given.config]
    contents = [_read(path) for path in configs]
    root = Path(given.root or LOGS)
    make = _new if verb == "fit" else _existing
    request = make(verb, given, rest, configs, contents, root)
    return replace(request, command=shlex.join(["lightning", verb, *argv]))


def _scanner() -> argparse.ArgumentParser:
    scanner = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    scanner.add_argument("-c", "--config", action="append", default=[])
    scanner.add_argument("--run")
    scanner.add_argument("--ckpt_path")
    scanner.add_argument("--experiment")
    scanner.add_argument("--trainer.default_root_dir", dest="root")
    scanner.add_argument("--data")
    scanner.add_argument("--model")
    return scanner


def _new(
    verb: str,
    given: argparse.Namespace,
    rest: list[str],
    configs: list[Path],
    contents: list[dict[str, Any]],
    root: Path,
) -> Request:
    if given.run:
        raise UserError(f"fit has no setting --run. To go on with a run: --resume {given.run}")
    recipes = [path for path, content in zip(configs, contents, strict=True) if "data" in content]
    if not recipes and not (given.data and given.model):
        recipes = [_find_config(str(CONFIGS / f"{BARE_RECIPE}.yaml"))]
        configs = recipes + configs
    named = [str(content["experiment"]) for content in contents if content.get("experiment")]
    asked = (
        given.experiment
        or (named or [recipes[-1].stem if recipes else given.data.rsplit(".", 1)[-1]])[-1]
    )
    experiment = safe_name(asked)
    if experiment != asked:
        print(f"Experiment {asked!r} is stored as {experiment!r}.")
    args = [*_join(configs, given, rest), "--experiment", experiment]
    return Request(verb, [verb, *args], experiment, root, configs=tuple(map(str, configs)))


def _existing(
    verb: str,
    given: argparse.Namespace,
    rest: list[str],
    configs: list[Path],
    contents: list[dict[str, Any]],
    root: Path,
) -> Request:
    recipes = [
        path.stem for path, content in zip(configs, contents, strict=True) if "data" in content
    ]
    wanted = given.experiment and safe_name(given.experiment)
    wanted = wanted or (recipes[-1] if recipes else BARE_RECIPE)
    file = Path(given.ckpt_path) if given.ckpt_path not in (None, "best", "last") else None
    if file is not None and not file.is_file():
        raise UserError(f"No checkpoint {file}. --ckpt_path takes best, last or a file.")
    if given.run:
        run = find_run(given.run, root, given.experiment)
    elif file is not None:
        run = find_run(file.resolve().parent, root)
    else:
        run = find_run("last", root, wanted)
    # The recipe that the run was made from only names it: the run's own copy says how it was
    # really trained.
    made_from = {Path(c) for c in run.record.get("configs", [])}
    overlays = [path for path in configs if path not in made_from and path.stem != run.experiment]
    args = _join([run.config, *overlays], given, rest)
    ckpt_path = file or run.checkpoint(given.ckpt_path or "best")
    return Request(
        verb, [verb, *args], run.experiment, root, run, ckpt_path, tuple(map(str, overlays))
    )


def _join(configs: Sequence[Path], given: argparse.Namespace, rest: list[str]) -> list[str]:
    """Put files first, so that the command line beats them in whatever order they were typed."""
    args = [arg for path in configs for arg in ("--config", str(path))]
    for key, value in (
        ("--data", given.data),
        ("--model", given.model),
        ("--trainer.default_root_dir", given.root),
    ):
        args += [key, value] if value is not None else []
    return args + rest


def _find_config(name: str) -> Path:
    """Find a configuration from the current folder or, failing that, from the project's."""
    for path in (Path(name), HOME / name):
        if path.is_file():
            return path.resolve()
    known = [str(path.relative_to(HOME)) for path in sorted(CONFIGS.rglob("*.yaml"))]
    raise UserError(f"No configuration file {name}.{did_you_mean(name, known)}")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}, column {where.column + 1}" if where else ""
        raise UserError(
            f"{path}{line}: not valid YAML: {getattr(error, 'problem', error)}."
        ) from None
    if not isinstance(content, dict):
        raise UserError(
            f"{path} has no settings in it: a configuration is a YAML mapping such as `trainer: …`."
        )
    return content
