"""What a command line asks for, without torch: which recipe, which run, which checkpoint."""

import argparse
import os
import shlex
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from project.mistakes import UserError
from project.named_images import NamedImages, find_images, names_among
from project.options import check_line
from project.recipes import (
    CONFIGS,
    find_config,
    leaves,
    names_data,
    names_task,
    plain,
    read_config,
    still_known,
)
from project.runs import LOGS, Run, find_run, is_run, safe_name
from project.scanner import OF_A_RUN, OPTIONS, scanner
from project.unknown import check_settings

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
        asked: The verb that was typed: this one, or one that takes the same settings.
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
    asked: str = ""


def read_request(
    verb: str, argv: Sequence[str], look: bool = True, asked: str = "", own: Collection[str] = ()
) -> Request:
    """Find the recipe and the run that a command line names.

    Args:
        verb: fit, validate, test or predict.
        argv: What follows the verb.
        look: False only lists the settings there are, whether or not there is a run.
        asked: The verb that was typed, if that is another one, which takes what this one takes.
        own: What that has instead of the options of this one about runs, e.g. ``--run``.

    Raises:
        UserError: If a file or a run does not exist, or an option or a word is of no use.
    """
    own = own if asked else OPTIONS[verb]
    asked = asked or verb
    if not look:
        return Request(verb, [verb, "--help"], BARE_RECIPE, Path(LOGS), asked=asked)
    given, settings = scanner(verb).parse_known_args(list(argv))
    names, settings = names_among(settings)
    check_line(asked, settings, names, {"--config", "--experiment", *own})
    line = _Line(verb, given, settings)
    make = _existing if verb != "fit" else _resumed if given.resume else _new
    request = make(line)
    check_settings(asked, request.args)
    return replace(
        request,
        command=shlex.join(["lightning", verb, *argv]),
        typed=line.typed(),
        images=find_images(names) if names else None,
        tta=getattr(given, "tta", None),
        asked=asked,
    )


def request_of_run(
    verb: str, run: str | None, ckpt_path: str | None, otherwise: str = ""
) -> Request:
    """Find what a verb of our own is to use.

    Args:
        verb: Its name.
        run: What ``--run`` says.
        ckpt_path: What ``--ckpt_path`` says.
        otherwise: What else it takes, for the message.

    Raises:
        UserError: If neither is given, or there is no such run or file.
    """
    if not (run or ckpt_path):
        choice = f"--run last, --run RUN or --ckpt_path FILE{otherwise}"
        raise UserError(f"lightning {verb} needs a run: {choice}")
    given = {"--run": run, "--ckpt_path": ckpt_path}
    words = [word for name, value in given.items() if value for word in (name, value)]
    return read_request("validate", words, asked=verb, own=OF_A_RUN)


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
        return {path: read_config(path) for path in map(find_config, self.given.config)}

    @property
    def recipes(self) -> list[Path]:
        """The files that name the class of the data; presets do not."""
        return [path for path, content in self.configs.items() if names_data(content)]

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
            names += [plain(name) for name, _ in leaves(content)]
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
        raise UserError(
            f"lightning fit has no setting --run. To go on with a run: --resume {given.run}"
        )
    if given.ckpt_path:
        raise UserError(
            f"lightning fit has no setting --ckpt_path. To go on with a run: --resume RUN\n"
            f"To begin a new one with these weights: --init_from {given.ckpt_path}"
        )
    configs, recipes = list(line.configs), line.recipes
    if not recipes and not (given.data and given.model):
        recipes = [find_config(str(CONFIGS / f"{BARE_RECIPE}.yaml"))]
        configs = recipes + configs
    elif recipes and not (
        given.model
        or "model.class_path" in line.typed()
        or any(map(names_task, line.configs.values()))
    ):
        file = next(name for name in given.config if find_config(name) == recipes[-1])
        raise UserError(
            f"{file} is taken as a recipe: it has data, but no model: class_path.\nStack it on "
            f"one, --config configs/{BARE_RECIPE}.yaml --config {file}, or name the task, e.g. "
            "--model project.tasks.ClassificationTask."
        )
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
        line.args([still_known(run.config), *overlays], "--experiment", run.experiment),
        run.experiment,
        run.path.parent.parent,
        run,
        run.newest_intact(),
        configs=tuple(map(str, overlays)),
    )


def _existing(line: _Line) -> Request:
    given = line.given
    for name in ("resume", "init_from"):
        if spec := vars(given)[name]:
            instead = "--ckpt_path" if Path(spec).is_file() else "--run"
            raise UserError(
                f"lightning {line.verb} has no setting --{name}. Did you mean {instead} {spec}?"
            )
    file = Path(given.ckpt_path) if given.ckpt_path not in (None, "best", "last") else None
    if file is not None and not file.is_file():
        why = f" Did you mean --run {file}?" if is_run(file) else ""
        raise UserError(f"No checkpoint {file}. --ckpt_path takes best, last or a file.{why}")
    if given.run:
        run = find_run(given.run, line.root, given.experiment)
    elif file is not None:
        run = _owner(file)
    else:
        recipes = line.recipes or [Path(BARE_RECIPE)]
        run = find_run("last", line.root, safe_name(line.experiment(recipes)))
    overlays = line.overlays(run)
    return Request(
        line.verb,
        line.args([still_known(run.config), *overlays]),
        run.experiment,
        run.path.parent.parent,
        run,
        file or run.checkpoint(given.ckpt_path or run.preferred()),
        configs=tuple(map(str, overlays)),
    )


def _owner(file: Path) -> Run:
    """Return the run that a checkpoint is of, which says what data and network it is for."""
    folders = [folder for folder in [*file.resolve().parents][:2] if is_run(folder)]
    if not zipfile.is_zipfile(file):
        raise UserError(
            f"{file} is not a checkpoint, or it is damaged.\n--ckpt_path takes best, last or a "
            "file such as RUN/checkpoints/last.ckpt."
        )
    if not folders:
        raise UserError(
            f"{file} lies in no run's folder. Name the run that it is of, too: --run RUN.\n"
            f"For a new run with its weights: lightning fit --init_from {file}"
        )
    return Run(folders[0])
