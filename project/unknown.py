"""Settings that nothing has: told before torch is imported, where the sources say it."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from project.mistakes import Complaint, UserError, reword, suggest
from project.options import meant
from project.recipes import BLOCKS, DEFAULTS, MORE, leaves, load_yaml, plain, read_config
from project.signatures import arguments

_PLACES = re.compile(r"data|model(\.\w+)?")  # of a class, besides those in files
_CLASS = re.compile(r"[A-Za-z_]\w*(\.\w+)+")


def check_settings(verb: str, args: Sequence[str]) -> None:
    """Refuse a setting on the command line that nothing has.

    Args:
        verb: What was typed, for the message.
        args: What the parser is to read, the verb first.

    Raises:
        UserError: If a class has no such setting. Where classes are not written so that their
            sources tell, the parser will.
    """
    names = [plain(name) for name, _ in _pairs(args) if name not in MORE]
    if not names:
        return
    roots = (*BLOCKS, *MORE, *read_config(DEFAULTS))
    places = _places(args)
    faults = [(name, key) for name in names if (key := _fault(name, roots, places)) is not None]
    if not faults:
        return
    name, key = faults[0]
    settings = {place: _settings(classes[-1]) for place, classes in places.items()}
    if None in settings.values():
        return  # the parser knows them all, and has better hints
    options = [*roots, *(f"{place}.{own}" for place in settings for own in settings[place] or ())]
    where = places[key][-1] if key else f"lightning {verb}"
    said = f"option '{name.removeprefix(f'{key}.')}' is not accepted"
    told = reword(Complaint(said, key, where, (settings[key] or ()) if key else options, options))
    value = next(value for full, value in _pairs(args) if plain(full) == name)
    recipes = [option for option in meant(value, ["--config"]) if f" --{name} " in option]
    if recipes:  # one that has this setting, whatever the names here are like
        told = told.split(" Did you mean ")[0] + suggest(recipes)
    raise UserError(told)


def _pairs(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the settings of a command line with their values."""
    for arg, after in zip(args, [*args[1:], ""], strict=True):
        if arg.startswith("--") and arg != "--":
            name, _, value = arg[2:].partition("=")
            yield name.rstrip("+"), value or after


def _places(args: Sequence[str]) -> dict[str, list[str]]:
    """Return the classes that files and the command line name, the last one last."""
    pairs = [("trainer.class_path", "lightning.pytorch.Trainer"), *leaves(read_config(DEFAULTS))]
    for name, value in _pairs(args):
        if name == "config":
            text = value if "\n" in value else Path(value).read_text("utf-8")
            pairs += leaves(load_yaml(text))
        else:
            pairs.append((name, value))
    places = {plain(name) for name, _ in pairs if name.endswith(".class_path")}
    pairs = [(plain(name), value) for name, value in pairs if value not in ("null", "None")]
    places |= {key for key, value in pairs if _PLACES.fullmatch(key) and _CLASS.fullmatch(value)}
    found: dict[str, list[str]] = {}
    for key, value in pairs:
        if key in places:  # also a short name or a file, which only the parser understands
            found.setdefault(key, []).append(value)
    return found


def _fault(name: str, roots: Sequence[str], places: dict[str, list[str]]) -> str | None:
    """Return where a setting is said to be but is not: a class's place, "" for the verb."""
    parts = name.split(".")
    if {"dict_kwargs", "help"} & {*parts}:
        return None
    if parts[0] not in roots:
        return ""
    for at in range(1, len(parts)):
        key = ".".join(parts[:at])
        known = [_settings(path) for path in places.get(key, ())]
        if not known or None in known:
            return None
        if not any(parts[at] in there for there in known if there):
            return "" if key == "trainer" else key
    return None


def _settings(path: str) -> tuple[str, ...] | None:
    found = arguments(path)
    # What an optimizer or a schedule is for comes first, and from the task.
    return found[1:] if found and path.startswith("torch.optim.") else found
