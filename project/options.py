"""What verbs of our own share: options, what to say of a wrong one, and of what goes on."""

import argparse
import sys
from typing import Any, NoReturn

from project.mistakes import UserError, did_you_mean


def show_progress(name: str) -> None:
    """Say on a terminal's line what goes on; the next one overwrites it, "" clears it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{name}", end="", file=sys.stderr, flush=True)


class VerbParser(argparse.ArgumentParser):
    """Complains in a line: the parser's own complaints come with a page of usage.

    Args:
        verb: Its name.
        kwargs: See ``argparse.ArgumentParser``.
    """

    def __init__(self, verb: str, **kwargs: Any) -> None:
        super().__init__(add_help=False, allow_abbrev=False, **kwargs)
        self.verb = verb

    def error(self, message: str) -> NoReturn:
        """Say what is wrong.

        Raises:
            UserError: Always.
        """
        see = f" See lightning {self.verb} --help."
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            word = unknown.split(" ")[0].split("=")[0]
            near = did_you_mean(word, self._option_string_actions)
            raise UserError(f"{self.verb} has no setting {word}.{near or see}")
        said = message.removeprefix("argument ").replace("argument", "value")
        end = "" if said[-1] in ".?" else "."
        raise UserError(f"{said[0].upper()}{said[1:]}{end}{see}")
