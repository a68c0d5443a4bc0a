"""What a command line asks for, without torch: which recipe, which run, which checkpoint."""

import argparse
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

import project
from project.mistakes import UserError, did_you_mean
from project.named_images import NamedImages, find_images, names_among
from project.runs import LOGS, Run, find_run, safe_name

HOME = Path(project.__file__).resolve().parent.parent
CONFIGS = HOME / "configs"
DEFAULTS = CONFIGS / "default.yaml"
BLOCKS = ("trainer", "data", "model")
BARE_RECIPE = "digits"  # what `lightning fit` trains when no recipe is named


@dataclass(frozen=True)
class Request:
    """A verb with its settings, resolved as far as names and files go.

    Args:
        verb: fit, validate, test or predict.
        args: What the parser is to read: files first, then the command line, which beats them.
        experiment: The folder below ``root`` that the run belongs to.
        root: The folder of all experiments.
        run: The run to work on or to go on with; None for a new one.
        ckpt_path: The checkpoint to load; None for a new run.
        init_from: The checkpoint whose weights a new run begins with.
        configs: The recipe and presets, as given.
        typed: Settings that those files or the command line give, e.g. ``model.net.width``.
        command: What was typed.
        images: What to predict; None for the data module's predict split.
        tta: Test-time augmentation: flip or None.
    """

    verb: str
    args: list[str]
    experiment: str
    root: Path
    run: Run | None = None
    ckpt_path: Path | None = None
    init_from: Path | None = None
    configs: tuple[str, ...] = ()
    typed: frozenset[str] = frozenset()
    command: str = ""
    images: NamedImages | None = None
    tta: str | None = None


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
    given, settings = _scanner(verb).parse_known_args(list(argv))
    names, settings = names_among(settings) if verb == "predict" else ([], settings)
    line = _Line(verb, given, settings)
    make = _existing if verb != "fit" else _resumed if given.resume else _new
    return replace(
        make(line),
        command=shlex.join(["lightning", verb, *argv]),
        typed=line.typed(),
        images=find_images(names) if names else None,
        tta=getattr(given, "tta", None),
    )


class _Scanner(argparse.ArgumentParser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401
        for arg in args:
            if f"-{arg}" in self._option_string_actions:
                raise UserError(f"There is no {arg}. Did you mean -{arg}?")
        try:
            return super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            name = str(error.argument_name).rsplit("/", 1)[-1]
            raise UserError(f"{name} needs a value. See lightning VERB --help.") from None


def _config_name(name: str) -> str:
    if Path(name).is_dir():
        inside = Path(name) / "config.yaml"
        hint = f" Did you mean --config {inside}?" if inside.is_file() else ""
        raise UserError(f"{name} is a folder; --config takes a file.{hint}")
    return name


def _scanner(verb: str) -> argparse.ArgumentParser:
    scanner = _Scanner(add_help=False, allow_abbrev=False, exit_on_error=False)
    scanner.add_argument("-c", "--config", action="append", default=[], type=_config_name)
    for name in ("run", "resume", "init_from", "ckpt_path", "experiment", "data", "model"):
        scanner.add_argument(f"--{name}")
    scanner.add_argument("--trainer.default_root_dir", dest="root")
    for name in ("output", "top_k", "tta") if verb == "predict" else ():
        scanner.add_argument(f"--{name}")
    return scanner


@dataclass(frozen=True)
class _Line:
    """A command line taken apart: what names files and runs, and the settings."""

    verb: str
    given: argparse.Namespace
    settings: list[str]

    @property
    def root(self) -> Path:
        """The folder of all experiments: as typed, as a file says, or ``logs``."""
        trainers = [content.get("trainer") for content in self.configs.values()]
        said = [t["default_root_dir"] for t in trainers if t and t.get("default_root_dir")]
        return Path(self.given.root or ([LOGS, *said])[-1])

    @cached_property
    def configs(self) -> dict[Path, dict[str, Any]]:
        return {path: _read(path) for path in map(_find_config, self.given.config)}

    @property
    def recipes(self) -> list[Path]:
        """The files that name the class of the data; presets do not."""
        return [path for path, content in self.configs.items() if _names_data(content)]

    def experiment(self, recipes: Sequence[Path]) -> str:
        """The name of the runs of this command line, for training as for finding them again."""
        said = [c["experiment"] for c in self.configs.values() if c.get("experiment")]
        said = said or [path.stem for path in recipes] or [str(self.given.data).rsplit(".", 1)[-1]]
        return str(self.given.experiment or said[-1])

    def typed(self) -> frozenset[str]:
        """The settings that the user has given a value, named as the command line names them."""
        options = [arg[2:].split("=", 1)[0] for arg in self.settings if arg.startswith("--")]
        names = [name.replace(".init_args", "").rstrip("+") for name in options]
        for content in self.configs.values():
            names += _names(content)
        return frozenset(names)

    def overlays(self, run: Run) -> list[Path]:
        """The files that the run was not made from.

        Those it was made from only name it: its own copy says how it was really trained.
        """
        made_from = {Path(name) for name in run.record.get("configs", [])}
        return [path for path in self.configs if path not in made_from]

    def args(self, configs: Sequence[Path | str], *more: str) -> list[str]:
        """Put files first, so that the command line beats them in whatever order it was typed."""
        given = {"--data": self.given.data, "--model": self.given.model}
        given["--trainer.default_root_dir"] = self.given.root
        given["--predictions.path"] = getattr(self.given, "output", None)
        given["--predictions.top_k"] = getattr(self.given, "top_k", None)
        args = [arg for config in configs for arg in ("--config", str(config))]
        classes = [arg for key, value in given.items() if value for arg in (key, value)]
        first = [] if self.recipes else classes  # whose settings presets may have
        return [self.verb, *first, *args, *classes, *self.settings, *more]


def _new(line: _Line) -> Request:
    given = line.given
    if given.run:
        raise UserError(f"fit has no setting --run. To go on with a run: --resume {given.run}")
    if given.ckpt_path:
        raise UserError(
            f"fit has no setting --ckpt_path. To go on with a run: --resume RUN\n"
            f"To begin a new one with these weights: --init_from {given.ckpt_path}"
        )
    configs, recipes = list(line.configs), line.recipes
    if not recipes and not (given.data and given.model):
        recipes = [_find_config(str(CONFIGS / f"{BARE_RECIPE}.yaml"))]
        configs = recipes + configs
    asked = line.experiment(recipes)
    experiment = safe_name(asked)
    if experiment != asked:
        print(f"Experiment {asked!r} is stored as {experiment!r}.")
    return Request(
        line.verb,
        line.args(configs, "--experiment", experiment),
        experiment,
        line.root,
        init_from=_weights(given.init_from, line.root) if given.init_from else None,
        configs=tuple(map(str, configs)),
    )


def _weights(spec: str, root: Path) -> Path:
    """Find a checkpoint given as a file or as a run, whose best it is."""
    if Path(spec).is_file():
        return Path(spec)
    run = find_run(spec, root)
    return run.checkpoint(run.preferred())


def _resumed(line: _Line) -> Request:
    given = line.given
    if given.init_from:
        raise UserError("--resume goes on with a run, --init_from begins a new one: give one.")
    run = find_run(given.resume, line.root, given.experiment)
    first = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"
    if first and (pid := run.other_process):
        raise UserError(f"{run.path} is still being trained, by process {pid}.")
    overlays = line.overlays(run)
    return Request(
        line.verb,
        line.args([_config_of(run), *overlays], "--experiment", run.experiment),
        run.experiment,
        run.path.parent.parent,
        run,
        run.newest_intact(),
        configs=tuple(map(str, overlays)),
    )


def _existing(line: _Line) -> Request:
    given = line.given
    file = Path(given.ckpt_path) if given.ckpt_path not in (None, "best", "last") else None
    if file is not None and not file.is_file():
        raise UserError(f"No checkpoint {file}. --ckpt_path takes best, last or a file.")
    if given.run:
        run = find_run(given.run, line.root, given.experiment)
    elif file is not None:
        run = find_run(file.resolve().parent, line.root)
    else:
        recipes = line.recipes or [Path(BARE_RECIPE)]
        run = find_run("last", line.root, safe_name(line.experiment(recipes)))
    overlays = line.overlays(run)
    return Request(
        line.verb,
        line.args([_config_of(run), *overlays]),
        run.experiment,
        run.path.parent.parent,
        run,
        file or run.checkpoint(given.ckpt_path or run.preferred()),
        configs=tuple(map(str, overlays)),
    )


def _config_of(run: Run) -> Path | str:
    """Return a run's configuration, without the callbacks that this project no longer has."""
    content = _read(run.config)
    known = {"seed_everything", "experiment", "trainer", "data", "model"} | _read(DEFAULTS).keys()
    gone = [key for key in content if key not in known]
    if not gone:
        return run.config
    print(f"Left out, because {DEFAULTS.name} no longer has it: {', '.join(gone)}")
    kept = {key: value for key, value in content.items() if key in known}
    return yaml.safe_dump(kept, sort_keys=False)


def _names_data(content: dict[str, Any]) -> bool:
    data = content.get("data")
    return isinstance(data, str) or (isinstance(data, dict) and "class_path" in data)


def _names(content: object, key: str = "") -> list[str]:
    if not isinstance(content, dict):
        return [key]
    inner = {"init_args": key, "class_path": key}
    return [n for k, v in content.items() for n in _names(v, inner.get(k, f"{key}.{k}".strip(".")))]


def _find_config(name: str) -> Path:
    """Find a configuration from the current folder or, failing that, from the project's."""
    for path in (Path(name), HOME / name):
        if path.is_file():
            return path.resolve()
    known = [str(path.relative_to(HOME)) for path in sorted(CONFIGS.rglob("*.yaml"))]
    raise UserError(f"No configuration file {name}.{did_you_mean(name, known)}")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; save it as such.") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}, column {where.column + 1}" if where else ""
        problem = getattr(error, "problem", error)
        raise UserError(f"{path}{line}: not valid YAML: {problem}.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: a configuration is a YAML mapping such as `trainer: …`.")
    # A block whose lines are all commented out says nothing.
    return {key: value for key, value in content.items() if value is not None or key not in BLOCKS}
