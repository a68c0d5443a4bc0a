"""What the data module answers for: numbers that task and network need and the user left out."""

import importlib
import inspect
from collections.abc import Collection
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from project.mistakes import UserError

# Settings of a task or a network that the data module answers where the user does not.
FROM_DATA = ("num_classes", "class_names", "in_channels", "image_size")


def accepted(class_path: str) -> dict[str, Any]:
    """Return the settings in ``FROM_DATA`` that a class or function takes, with their defaults."""
    module, name = class_path.rsplit(".", 1)
    target = getattr(importlib.import_module(module), name)
    parser = ArgumentParser(exit_on_error=False)
    add = parser.add_class_arguments if inspect.isclass(target) else parser.add_function_arguments
    names = [key for key in add(target, fail_untyped=False) if key in FROM_DATA]
    defaults = parser.get_defaults()
    return {key: defaults.get(key) for key in names}


def keep_found(settings: Any, data: object) -> None:  # noqa: ANN401
    """Note in the settings of a data module what it has found out where the user left it open.

    So that a later command on the run goes by the classes that were trained, whatever there is now.

    Args:
        settings: Its ``class_path`` with ``init_args``; changed in place.
        data: The data module; its attribute ``found``, if it has one, names these settings.
    """
    for name in getattr(data, "found", ()):
        if settings.init_args.get(name) in (None, "auto"):
            settings.init_args[name] = getattr(data, name)


def fill_from_data(settings: Any, key: str, data: object, typed: Collection[str]) -> None:  # noqa: ANN401
    """Give a task or a network the numbers that the data knows and the user left out.

    Args:
        settings: A ``class_path`` with ``init_args``; changed in place.
        key: Where it stands, e.g. ``model.net``.
        data: The data module.
        typed: The settings that the user has given.

    Raises:
        UserError: If the user gave another number than the data has, or if nobody gives it.
    """
    if not settings or not settings.get("class_path"):
        return
    init_args = settings.get("init_args") or Namespace()  # type: ignore[no-untyped-call]
    for name, default in accepted(settings["class_path"]).items():
        given, known = init_args.get(name), getattr(data, name, None)
        known = list(known) if isinstance(known, tuple) else known  # as the configuration holds it
        chosen = f"{key}.{name}" in typed or given not in (None, default)
        if known is None and given is None and default is None and name != "class_names":
            raise UserError(
                f"{settings['class_path']} needs {name}, which the data does not say.\n"
                f"Set --{key}.{name}."
            )
        if known is None or given == known or (chosen and name == "image_size"):
            continue
        if chosen:
            raise UserError(
                f"{key}.{name} is {given}, but the data has {known}.\n"
                f"Leave it out, or set it to {known}."
            )
        init_args[name] = known
        settings["init_args"] = init_args
