"""A user's mistake in one to three lines: what was given, what is allowed, what to do next."""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from project.known_classes import candidates, classes_in, near_classes


class UserError(Exception):
    """A mistake of the user's; the front door prints it without a traceback and exits with 2.

    Args:
        message: One to three lines: what was given, what is allowed, what to do next.
    """


class RunFailed(Exception):
    """A run that cannot go on, through no mistake in a setting; the exit code is 1.

    Args:
        message: A few lines: what happened, where, what to try.
    """


class Meaning(str):
    """What an error means for the user: a note on it, which plain Python shows below the traceback.

    The front door prints it alone, and exits with 1.
    """


@dataclass(frozen=True)
class Complaint:
    """What a parser says, and what is needed to say it better.

    Args:
        message: What the parser said.
        key: The setting whose parser it was, e.g. ``model.net``; empty for the verb's.
        where: Whose settings those are: a verb, or the class path.
        accepted: Names of the settings that this parser accepts.
        options: Full names of the settings that there are, e.g. ``model.net.hidden_dim``.
        typed: The value as it was typed, where that is known.
    """

    message: str
    key: str
    where: str
    accepted: Sequence[str]
    options: Sequence[str] = ()
    typed: str | None = None


def meaning(error: BaseException) -> str | None:
    """Return what an error means for the user, if somebody has noted that on it."""
    notes = getattr(error, "__notes__", [])
    return next((str(note) for note in notes if isinstance(note, Meaning)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean a or b?`` for the nearest of ``known``, or an empty string."""
    return suggest(difflib.get_close_matches(word, sorted(set(known)), n=3, cutoff=0.6))


def suggest(near: Iterable[str]) -> str:
    """Return `` Did you mean a or b?``, or an empty string where nothing is near."""
    names = dict.fromkeys(near)
    return f" Did you mean {' or '.join(names)}?" if names else ""


def reword(complaint: Complaint) -> str:
    """Put a parser's message into the words of this file: the first answer that fits."""
    for pattern, answer in ANSWERS:
        if found := re.search(pattern, complaint.message):
            return answer(found, complaint)
    return "\n".join(
        line.strip() for line in complaint.message.splitlines()[:3] if line.strip()
    ).strip()


def innermost(message: str) -> str:
    """Cut the layers off a message about a class that refused its settings."""
    if re.search(r"No supported gpu backend|Accelerator` can not run on your system", message):
        return (
            f"trainer.accelerator: {message.splitlines()[0]}\n"
            "This machine has none that PyTorch can use: set --trainer.accelerator auto or cpu."
        )
    problem = re.search(r"Problem with given class_path '([^']+)':\s*([^\n]+)", message)
    if problem is None:
        # A list of what was tried, one after another; what the class itself said stands out.
        tried = re.findall(r"^ *- ((?!Expected an? |Not a valid ).+)", message, re.MULTILINE)
        return tried[0] if tried and message.startswith("Does not validate") else message
    name, reason = problem.groups()
    if missing := re.search(r"Requirement '([^']+)' not met|No module named '([^']+)'", reason):
        of_ours = name.endswith((".WandbLogger", ".MLFlowLogger"))
        how = "-e '.[loggers]'" if of_ours else f"'{missing[1] or missing[2]}'"
        return f"{name} needs a package that is not installed: pip install {how}"
    return f"{name}: {reason.strip()}"


def _key(found: re.Match[str], complaint: Complaint) -> str:
    return complaint.key or "the configuration"


def _unknown(found: re.Match[str], complaint: Complaint) -> str:
    name = ".".join(part for part in found.groups() if part)
    full = f"{complaint.key}.{name}".strip(".")
    own = [f"{complaint.key}.{key}".strip(".") for key in complaint.accepted]
    options = sorted({*complaint.options, *own})
    roots = {option.split(".")[0] for option in options}
    leaf, leaves = _leaf(name), [_leaf(option) for option in options]
    same = [option for option, last in zip(options, leaves, strict=True) if last == leaf]
    near = difflib.get_close_matches(leaf, set(leaves), n=3, cutoff=0.72)
    near_full = [
        option
        for option in difflib.get_close_matches(full, [*options, *roots], n=9, cutoff=0.8)
        if difflib.SequenceMatcher(None, leaf, _leaf(option)).ratio() >= 0.6
    ]
    alike = [o for n in near for o, last in zip(options, leaves, strict=True) if last == n]
    inside = [option for option in alike if option.startswith(f"{complaint.key}.")]
    begun = [option for option in options if len(name) > 3 and option.startswith(f"{full}_")]
    best = same or (inside if complaint.key else []) or near_full or alike or begun
    hint = suggest([f"--{option}" for option in best[:3]])
    if not hint and 0 < len(complaint.accepted) <= 12:
        hint = f" It has: {', '.join(sorted(complaint.accepted))}."
    if not hint and not complaint.key:
        hint = f" See {complaint.where} --help."
    return f"{complaint.where} has no setting --{full}.{hint}"


def _required(found: re.Match[str], complaint: Complaint) -> str:
    names = [
        f"--{complaint.key}.{name.strip()}".replace("--.", "--") for name in found[1].split(",")
    ]
    kinds = {"dir": "a folder", "file": "a file"}
    what = " and ".join(kinds.get(name.rsplit("_", 1)[-1], "a value") for name in names)
    return f"{' and '.join(names)} is required by {complaint.where}: give it {what}."


def _no_file(found: re.Match[str], complaint: Complaint) -> str:
    return f"No file {found[1]}. A recipe is given as --config configs/NAME.yaml."


def _no_value(found: re.Match[str], complaint: Complaint) -> str:
    return f"{found[1]} needs a value."


def _ambiguous(found: re.Match[str], complaint: Complaint) -> str:
    paths = [path.strip() for path in found[2].rstrip(". \n").split(",")]
    return f"--{complaint.key} {found[1]} could be {' or '.join(paths)}: give the full path."


def _wrong_kind(found: re.Match[str], complaint: Complaint) -> str:
    return _unfit(complaint.key, found[1], found[2])


def _unfit(key: str, given: str, kind: str) -> str:
    near = candidates(key)
    example = f" One is {near[0]}." if near else ""
    return f"--{key} cannot be {given}: it is no {kind}.{example}"


def _not_in_module(found: re.Match[str], complaint: Complaint) -> str:
    return _no_class(complaint, found[1], found[2])


def _no_module(found: re.Match[str], complaint: Complaint) -> str:
    wanted = re.search(r"class_path '([^']+)'|Expected a path but (\S+) either", complaint.message)
    name = (wanted[1] or wanted[2]) if wanted else found[1] or found[2]
    is_number = re.match(r"[-+.\d]", name) or re.search("<class '(int|float)'>", complaint.message)
    if is_number:  # or should be one
        return f"--{complaint.key} cannot be {name!r}: {_expected(complaint.message)}."
    return _no_class(complaint, "", name)


def _file(found: re.Match[str], complaint: Complaint) -> str:
    file = Path(found[1])
    what = f"{file} is a file" if file.is_file() else f"there is no file {file}"
    hint = suggest(classes_in(file)) or " Give one by its full path, e.g. project.models.MLP."
    return f"--{complaint.key} takes a class, and {what}.{hint}"


def _refused(found: re.Match[str], complaint: Complaint) -> str:
    return innermost(complaint.message)


def _wrong_type(found: re.Match[str], complaint: Complaint) -> str:
    value = complaint.typed if complaint.typed is not None else found[1]
    if re.fullmatch(r"[A-Za-z_]\w*", value) and "Callable[" in complaint.message:
        return _no_class(complaint, "", value)
    kind = re.search(
        r"Subtypes: \[.*<class '[\w.]*\.(\w+)'>, <class 'NoneType'>\]", complaint.message
    )
    if kind and re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", value):
        return _unfit(complaint.key, value, kind[1])
    return f"{_key(found, complaint)} cannot be {value!r}: {_expected(complaint.message)}."


# What a parser says, and our answer; the first that fits is given.
ANSWERS: tuple[tuple[str, Callable[[re.Match[str], Complaint], str]], ...] = (
    (r"unrecognized arguments: (?:--?)?([^\s=]+)", _unknown),
    (r"[Oo]ption '([^']+)' is not accepted", _unknown),
    (r"Group '([^']+)' does not accept option '([^']+)'", _unknown),
    (r"[Oo]ption '([^']+)'", _unknown),
    (r"arguments are required: ([\w., ]+)", _required),
    (r"File does not exist: '([^']+)'", _no_file),
    (r"argument (?:-\w/)?(--\S+): expected ", _no_value),
    (r"Expected a path but (\S+\.py) either", _file),
    (r"Multiple subclasses with name (\w+)\..*ambiguity: ([^\n]+)", _ambiguous),
    (r"Import path (\S+) does not correspond to a subclass of (\w+)", _wrong_kind),
    (r"module '([\w.]+)' has no attribute '(\w+)'", _not_in_module),
    (r"No module named '([^']+)'|dot import path string: (\S+)", _no_module),
    (r"Problem with given class_path", _refused),
    (r"(?:Given|Got) value: (.*)", _wrong_type),
)


_KINDS = {
    "NoneType": "null",
    "float": "a number",
    "tuple": "numbers in brackets, e.g. '[0.5,1]',",
    "Sequence": "a list in brackets, e.g. '[256,128]'",
    "list": "a list in brackets, e.g. '[256,128]'",
}


def _expected(message: str) -> str:
    """Say what the parser would have taken, e.g. ``expected int or null``."""
    wanted: list[str] = []
    for found in re.findall(r"Expected an? ([^\n]+?)(?:\. Got value.*)?(?:\n|$)", message):
        if re.match(r"(path but|dot import path)", found):
            continue  # of a class, where a number could stand, too
        literal = re.match(r"typing\.Literal\[(.*)\]", found)
        plain = re.match(r"<class '(?:\w+\.)*(\w+)'>", found)
        name = literal[1] if literal else plain[1] if plain else found
        wanted.append(_KINDS.get(name, name))
    if "a number" in wanted:
        wanted = [name for name in wanted if name != "int"]
    return "expected " + " or ".join(dict.fromkeys(wanted)) if wanted else "it has the wrong type"


def _leaf(path: str) -> str:
    return path.rsplit(".", 1)[-1]


def _no_class(complaint: Complaint, module: str, name: str) -> str:
    """Say that there is no such class, with the nearest names that fit the setting."""
    near = near_classes(complaint.key, module, name)
    if "NoneType" in complaint.message and difflib.get_close_matches(name, ["null"], cutoff=0.75):
        near = ["null"]
    hint = suggest(near) or " Give the full path, e.g. project.models.MLP."
    given = f"{module}.{name}" if module else name
    return f"--{complaint.key}: there is no {given}.{hint}"
