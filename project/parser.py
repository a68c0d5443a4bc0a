"""What we change in LightningCLI's parser: data answers some settings, mistakes know whose."""

import argparse
import importlib
import inspect
from typing import Any, NoReturn

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from project.mistakes import UserError

# Settings of a task or a network that the data module answers where the user does not.
FROM_DATA = ("num_classes", "class_names", "in_channels", "image_size")


class Parser(LightningArgumentParser):
    """A parser that leaves open what the data will say, and remembers whose setting was wrong."""

    owner = ""

    def add_class_arguments(self, *args: Any, **kwargs: Any) -> list[str]:
        """Add a class's arguments; those in ``FROM_DATA`` need not be given."""
        return self._relaxed(super().add_class_arguments(*args, **kwargs), args[0])

    def add_function_arguments(self, *args: Any, **kwargs: Any) -> list[str]:
        """Add a function's arguments; those in ``FROM_DATA`` need not be given."""
        return self._relaxed(super().add_function_arguments(*args, **kwargs), args[0])

    def _relaxed(self, added: list[str], owner: type) -> list[str]:
        self.owner = f"{owner.__module__}.{owner.__qualname__}"
        for action in self._actions:
            if action.dest in FROM_DATA:
                action.required = False
        return added

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise the message together with the parser that knows which settings there are."""
        raise Told(message, self) from ex


class Told(argparse.ArgumentError):
    """A message together with the parser that gave it.

    Args:
        message: What is wrong.
        parser: Knows which settings there are.
    """

    def __init__(self, message: str, parser: Parser) -> None:
        super().__init__(None, message)
        self.parser = parser

    def innermost(self) -> "Told":
        """Return the first of the chain of messages: nested parsers wrap one another's."""
        told, link = self, self.__cause__ or self.__context__
        while link is not None:
            told = link if isinstance(link, Told) else told
            link = link.__cause__ or link.__context__
        return told


def accepted(class_path: str) -> dict[str, Any]:
    """Return the settings in ``FROM_DATA`` that a class or function takes, with their defaults."""
    module, name = class_path.rsplit(".", 1)
    target = getattr(importlib.import_module(module), name)
    parser = Parser(exit_on_error=False)
    add = parser.add_class_arguments if inspect.isclass(target) else parser.add_function_arguments
    names = [key for key in add(target, fail_untyped=False) if key in FROM_DATA]
    defaults = parser.get_defaults()
    return {key: defaults.get(key) for key in names}


def fill_from_data(settings: Namespace, key: str, data: object) -> None:
    """Give a task or a network the numbers that the data knows and the user left out.

    Args:
        settings: A ``class_path`` with ``init_args``; changed in place.
        key: Where it stands, for the message.
        data: The data module.

    Raises:
        UserError: If the user gave another number than the data has, or if nobody gives it.
    """
    if settings is None or not settings.get("class_path"):
        return
    init_args = (
        settings.setdefault("init_args", Namespace())
        if isinstance(settings, dict)
        else settings.init_args
    )
    for name, default in accepted(settings["class_path"]).items():
        given, known = init_args.get(name), getattr(data, name, None)
        if known is None and given is None and default is None and name != "class_names":
            raise UserError(
                f"{settings['class_path']} needs {name}, which the data does not say.\n"
                f"Set --{key}.{name}."
            )
        if known is None or (given not in (None, default, known) and name == "image_size"):
            continue
        if given not in (None, default, known):
            raise UserError(
                f"{key}.{name} is {given}, but the data has {known}.\n"
                f"Leave it out, or set it to {known}."
            )
        init_args[name] = known


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
