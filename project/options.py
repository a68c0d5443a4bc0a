"""Options of verbs: what to say of a wrong one, of a word without one, and of what goes on."""

import argparse
import contextlib
import difflib
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NoReturn

from project.mistakes import UserError, suggest
from project.recipes import (
    BLOCKS,
    CONFIGS,
    DEFAULTS,
    ENDINGS,
    MORE,
    near_configs,
    read_config,
)
from project.runs import is_run

_EXPORTED = (".onnx", ".pt2", ".pt")
_IMAGES = ("--image", "--images", "--input", "--inputs", "--file", "--files", "--folder", "--path")


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
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            raise no_such(self.verb, unknown.split(" ")[0], self._option_string_actions)
        said = message.removeprefix("argument ").replace("argument", "value")
        end = "" if said[-1] in ".?" else "."
        raise UserError(f"{said[0].upper()}{said[1:]}{end} See lightning {self.verb} --help.")


def check_line(
    verb: str, settings: Iterable[str], words: Iterable[str], options: Collection[str]
) -> None:
    """Refuse what a verb has no use for, as far as that is known before torch is imported.

    Args:
        verb: Its name.
        settings: What has dashes, with values, besides its options.
        words: What has none. Those of predict are images, unless they name a run.
        options: The verb's own, with dashes.

    Raises:
        UserError: If one of them is nearly an option of the verb, or a word is of no use.
    """
    names = [arg.split("=", 1)[0] for arg in settings if arg.startswith("--")]
    doubtful = [name for name in names if "." not in name]
    known = {*BLOCKS, *MORE, *(read_config(DEFAULTS) if doubtful else ())}
    for name in doubtful:
        if name.strip("-+") in known:
            continue
        if verb == "predict" and name in _IMAGES:
            raise UserError(
                f"lightning predict has no setting {name}: images are named without an option.\n"
                "E.g. lightning predict --run last photos/"
            )
        if near_options(name, options):
            raise no_such(verb, name, options)
    told = {"--run", "--ckpt_path"} & {*options} if verb == "predict" else options
    for word in words:
        if verb != "predict" or meant(word, told):
            raise no_such(verb, word, told)


def no_such(verb: str, word: str, options: Iterable[str]) -> UserError:
    """Return what to say of a word that a verb does not take.

    Args:
        verb: Its name.
        word: As typed: an option with its dashes, or a bare word such as ``last``.
        options: The verb's own.
    """
    name = word.split("=", 1)[0]
    is_option = word.startswith("-")
    hint = suggest(near_options(name, options) if is_option else meant(word, options))
    what = f"has no setting {name}" if is_option else f"does not take {word!r} alone"
    return UserError(f"lightning {verb} {what}.{hint or f' See lightning {verb} --help.'}")


def near_options(name: str, options: Iterable[str]) -> list[str]:
    """Return the options that a name may have been meant for: it begins them, or is nearly one."""
    full = {option.lstrip("-"): option for option in options}
    word = name.lstrip("-").replace("-", "_").lower()
    near = [key for key in full if key.startswith(word)]
    return [full[key] for key in near or difflib.get_close_matches(word, full, n=2, cutoff=0.7)]


def meant(word: str, options: Iterable[str]) -> list[str]:
    """Return how a bare word would be given, e.g. ``--run last``, by what it is.

    Args:
        word: As typed.
        options: The verb's own.
    """
    path = Path(word)
    for names, fits in (
        (("--run", "--resume"), (word == "last" and not path.exists()) or is_run(path)),
        (("--ckpt_path", "--init_from"), path.suffix == ".ckpt"),
        (("--model",), path.suffix in _EXPORTED),
        (("--format",), word in ("onnx", "pt2", "torchscript")),
    ):
        if fits:
            return [f"{name} {word}" for name in names if name in options][:1]
    if "--config" not in options:
        return []
    for recipe, fits, key in (
        ("image_folder", path.is_dir(), "data_dir"),
        ("image_csv", path.suffix == ".csv", "csv_file"),
    ):
        if fits and (CONFIGS / f"{recipe}.yaml").is_file():
            return [f"--config configs/{recipe}.yaml --data.{key} {word}"]
    is_config = path.is_file() and path.suffix in ENDINGS
    return [f"--config {name}" for name in ([word] if is_config else near_configs(word))]


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return what reads a whole number for ``add_argument``, from ``low`` to ``high``."""
    kind = f"whole number from {low} " + ("on" if high is None else f"to {high}")

    def number(text: str) -> int:
        with contextlib.suppress(ValueError):
            value = int(text)
            if low <= value and (high is None or value <= high):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is no {kind}")

    return number
