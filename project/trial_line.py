"""The command line of a verb that takes what `fit` takes and makes no run, read without torch."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from project import heavy
from project.mistakes import UserError
from project.options import VerbParser
from project.request import Request, read_request


def check_output(path: Path, is_folder: bool = False) -> None:
    """Refuse a place that cannot be written to, before minutes of measuring.

    Raises:
        UserError: If there is a folder instead of a file or the other way round, or no permission.
    """
    whole = path.absolute()
    there = next(place for place in (whole, *whole.parents) if place.exists())
    wants_file = there == whole and not is_folder
    if there.is_dir() == wants_file or not os.access(there, os.W_OK):
        raise UserError(f"{path} cannot be written: see {there}. Give another --output.")


class Options(VerbParser):
    """The verb's own options; all others are settings."""

    def read(self, argv: Sequence[str]) -> tuple[argparse.Namespace, Request]:
        """Take the options out of a command line, resolve the rest as for `fit`.

        Raises:
            UserError: If something is missing, or about a run that there is already.
        """
        own, rest = self.parse_known_args(argv)
        names = {arg.split("=", 1)[0] for arg in rest}
        for name in ("--resume", "--init_from", "--run", "--ckpt_path"):
            if name in names:
                raise UserError(
                    f"lightning {self.verb} has no setting {name}: it takes a recipe, --config."
                )
        request = read_request("fit", rest, asked=self.verb, own=self._option_string_actions)
        heavy.import_lightning()
        return own, request
