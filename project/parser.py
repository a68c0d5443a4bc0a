"""What we change in LightningCLI's parser: data answers some settings, mistakes know whose."""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import Namespace, set_dumper
from lightning.pytorch.cli import LightningArgumentParser

from project.blame import broken_import, judge
from project.from_data import FROM_DATA
from project.mistakes import Complaint, UserError, reword
from project.recipes import BLOCKS, load_yaml

# By PyYAML's dumper in C: ten times faster, but it breaks long lines elsewhere.
QUICK_YAML = "quick_yaml"
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
set_dumper(QUICK_YAML, lambda data: yaml.dump(data, Dumper=_Dumper, sort_keys=False))


class Parser(LightningArgumentParser):
    """A parser that leaves open what the data will say, and remembers whose setting was wrong."""

    owner = ""
    _from_files: Namespace | None = None

    def add_class_arguments(self, *args: Any, **kwargs: Any) -> list[str]:
        """Add a class's arguments; those in ``FROM_DATA`` need not be given."""
        return self._relaxed(super().add_class_arguments(*args, **kwargs), args[0])

    def add_function_arguments(self, *args: Any, **kwargs: Any) -> list[str]:
        """Add a function's arguments; those in ``FROM_DATA`` need not be given."""
        return self._relaxed(super().add_function_arguments(*args, **kwargs), args[0])

    def parse_args(self, args: Any = None, *more: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]  # noqa: ANN401
        """Parse; a null for a class within a class, which arrives here as None, stays a null."""
        if args and len(args) == 1 and args[0].endswith("=None"):
            args = [args[0].removesuffix("None") + "null"]
        found: Namespace = super().parse_args(args, *more, **kwargs)
        return found

    def get_defaults(self, *args: Any, **kwargs: Any) -> Namespace:
        """Read the files of defaults once: jsonargparse would at every stage of parsing."""
        if not self.default_config_files:
            found: Namespace = super().get_defaults(*args, **kwargs)
            return found
        if self._from_files is None:
            self._from_files = super().get_defaults(*args, **kwargs)
        return self._from_files.clone()

    def _relaxed(self, added: list[str], owner: type) -> list[str]:
        self.owner = _shortest(owner)
        for action in self._actions:
            if action.dest in FROM_DATA:
                action.required = False
        return added

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise the message together with the parser that knows which settings there are."""
        raise Told(message, self) from ex

    def instantiate_classes(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Build what a configuration describes; a constructor's bug keeps its traceback."""
        try:
            return super().instantiate_classes(*args, **kwargs)
        except Exception as wrapped:
            error = judge(wrapped)
        raise error

    def _load_config_parser_mode(self, content: str, *args: Any, **kwargs: Any) -> Namespace:
        """Leave out blocks whose lines are all commented out."""
        loaded = load_yaml(content)
        if isinstance(loaded, dict) and any(loaded.get(key, "") is None for key in BLOCKS):
            kept = {k: v for k, v in loaded.items() if v is not None or k not in BLOCKS}
            content = yaml.safe_dump(kept, sort_keys=False)
        found: Namespace = super()._load_config_parser_mode(content, *args, **kwargs)
        return found


class Told(argparse.ArgumentError):
    """A message together with the parser that gave it.

    Args:
        message: What is wrong.
        parser: Knows which settings there are.
    """

    def __init__(self, message: str, parser: Parser) -> None:
        super().__init__(None, message)
        self.parser = parser

    def chain(self) -> "Iterator[Told]":
        """Yield the messages that it wraps, itself first: nested parsers wrap one another's."""
        link: BaseException | None = self
        while link is not None:
            if isinstance(link, Told):
                yield link
            link = link.__cause__ or link.__context__


def parse(
    parser: LightningArgumentParser,
    args: Sequence[str],
    verb_parser: LightningArgumentParser,
    asked: str,
) -> Namespace:
    """Parse a command line; ``asked`` is the verb that was typed.

    Raises:
        UserError: With one to three lines about a mistake in it.
    """
    try:
        found: Namespace = parser.parse_args(args)
        return found
    except argparse.ArgumentError as error:
        raise UserError(_answer(error, parser, args, verb_parser, asked)) from None


def _answer(
    error: argparse.ArgumentError,
    parser: LightningArgumentParser,
    args: Sequence[str],
    verb_parser: LightningArgumentParser,
    asked: str,
) -> str:
    if broken := broken_import(str(error)):
        return broken
    chain = list(error.chain()) if isinstance(error, Told) else []
    told = chain[-1] if chain else error
    said = dict.fromkeys(re.match(r'Parser key "([^"]+)"|', str(link))[1] for link in chain)  # type: ignore[index]
    key = ".".join(part for part in said if part)
    at_fault = chain[-1].parser if chain and key else verb_parser
    known = [action.dest for action in at_fault._actions if not _NO_SETTING.search(action.dest)]
    unknown = re.search("unrecognized|[Oo]ption|Group", str(told))
    return reword(
        Complaint(
            str(told),
            key,
            getattr(at_fault, "owner", "") if key else f"lightning {asked}",
            known,
            _options(parser, args) if unknown else (),
            _typed(key, args),
        )
    )


_NO_SETTING = re.compile(r"\.help$|^(help|config|print_config|print_shtab)$")
_CLASSES = re.compile(r"--(config|data|model|model\.(net|optimizer|scheduler))(=|$)")


def _options(parser: LightningArgumentParser, args: Sequence[str]) -> list[str]:
    """List the settings of the classes at hand: those that the files and the line name."""
    kept = [args[0]]
    for arg, value in zip(args, [*args[1:], ""], strict=True):
        if _CLASSES.match(arg):
            kept += [arg] if "=" in arg else [arg, value]
    try:
        found = parser.parse_args(kept)[args[0]]
    except argparse.ArgumentError:
        return []
    names = [key.replace(".init_args", "") for key in found.keys(branches=True)]
    return [name for name in names if not name.endswith(".class_path")]


def _typed(key: str, args: Sequence[str]) -> str | None:
    """Return a setting's value as it stands on the command line or in a file."""
    typed: str | None = None
    for arg, value in zip(args, [*args[1:], ""], strict=True):
        if arg == "--config" and Path(value).is_file():
            content: Any = yaml.load(Path(value).read_text("utf-8"), yaml.BaseLoader)
            for part in key.split("."):
                content = content.get(part) if isinstance(content, dict) else None
            typed = content if isinstance(content, str) else typed
        elif arg.split("=", 1)[0] == f"--{key}":
            typed = arg.split("=", 1)[1] if "=" in arg else value
    return typed


def _shortest(owner: type) -> str:
    """Return the shortest path that a class can be imported by."""
    parts = owner.__module__.split(".")
    for end in range(1, len(parts)):
        module = ".".join(parts[:end])
        if getattr(sys.modules.get(module), owner.__qualname__, None) is owner:
            return f"{module}.{owner.__qualname__}"
    return f"{owner.__module__}.{owner.__qualname__}"


def substitute(value: Any, words: dict[str, str]) -> Any:  # noqa: ANN401
    """Replace ``{run_dir}`` and the like in every string of a configuration."""
    if isinstance(value, str):
        for word, meaning in words.items():
            value = value.replace("{" + word + "}", meaning)
    elif isinstance(value, Namespace):
        return namespace({key: substitute(item, words) for key, item in vars(value).items()})
    elif isinstance(value, dict):
        return {key: substitute(item, words) for key, item in value.items()}
    elif isinstance(value, list):
        return [substitute(item, words) for item in value]
    return value


def namespace(items: dict[str, object]) -> Namespace:
    """Return jsonargparse's kind of dictionary, whose constructor has no types."""
    made: Namespace = Namespace(items)  # type: ignore[no-untyped-call]
    return made
