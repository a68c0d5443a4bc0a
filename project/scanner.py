"""The options of fit, validate, test and predict that are no settings: files, runs, checkpoints."""

import argparse
from pathlib import Path
from typing import Any

from project.mistakes import UserError

# The options of a verb that are no settings, besides --config and --experiment.
OF_A_RUN = ("--run", "--ckpt_path")
OPTIONS = {
    "fit": ("--resume", "--init_from"),
    "validate": OF_A_RUN,
    "test": OF_A_RUN,
    "predict": (*OF_A_RUN, "--output", "--top_k", "--tta"),
}


class _Scanner(argparse.ArgumentParser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401
        for arg in args:
            if f"-{arg}" in self._option_string_actions:
                raise UserError(f"There is no {arg}. Did you mean -{arg}?")
        try:
            return super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            name = str(error.argument_name).rsplit("/", 1)[-1]
            raise UserError(f"{name} needs a value. See {self.prog} --help.") from None


def _config_name(name: str) -> str:
    if Path(name).is_dir():
        inside = Path(name) / "config.yaml"
        hint = f" Did you mean --config {inside}?" if inside.is_file() else ""
        raise UserError(f"{name} is a folder; --config takes a file.{hint}")
    return name


def scanner(verb: str) -> argparse.ArgumentParser:
    """Return what takes the options about files and runs out of a command line."""
    found = _Scanner(f"lightning {verb}", add_help=False, allow_abbrev=False, exit_on_error=False)
    found.add_argument("-c", "--config", action="append", default=[], type=_config_name)
    # Those of the other verbs, too: they are refused with what to say instead.
    about_runs = ("--run", "--resume", "--init_from", "--ckpt_path")
    for name in dict.fromkeys((*about_runs, "--experiment", "--data", "--model", *OPTIONS[verb])):
        found.add_argument(name)
    found.add_argument("--trainer.default_root_dir", dest="root")
    return found
