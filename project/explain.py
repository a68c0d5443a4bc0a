"""What a well-known error of torch or Lightning means: a few lines below its traceback."""

import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import project
from project.blame import place_of


class Explanation(str):
    """The lines that stand below a traceback, as a note on the error; Python prints them there."""


@dataclass(frozen=True)
class Scene:
    """An error and the code that it came through.

    Args:
        error: The error.
        kind: Name of its type; of an error in a worker of a data loader, the worker's.
        message: What it says.
    """

    error: BaseException
    kind: str
    message: str

    def frames(self) -> Iterator[FrameType]:
        """Yield the frames, innermost first."""
        found = [frame for frame, _ in traceback.walk_tb(self.error.__traceback__)]
        return reversed(found)

    def passed(self, file: str) -> bool:
        """Whether the error came through a file whose path holds ``file``."""
        return any(file in frame.f_code.co_filename.replace("\\", "/") for frame in self.frames())

    def modules(self) -> list[Any]:
        """The torch modules whose methods the error came through, innermost first."""
        module = import_module("torch.nn").Module
        owners = [frame.f_locals.get("self") for frame in self.frames()]
        return [owner for owner in owners if isinstance(owner, module)]

    def layer(self) -> str:
        """The innermost module with its name in the outermost one, e.g. ``net.fc (Linear)``."""
        modules = self.modules()
        if not modules:
            return ""
        inner = modules[0]
        for outer in reversed(modules):
            for name, module in outer.named_modules():
                if module is inner and name:
                    return f"{name} ({type(inner).__name__})"
        return type(inner).__name__

    def local(self, name: str) -> Any:  # noqa: ANN401
        """The innermost local variable of that name."""
        return next((f.f_locals[name] for f in self.frames() if name in f.f_locals), None)

    def place(self) -> str:
        """File and line of the user's code, e.g. ``my/net.py, line 12``; empty if there is none."""
        worker = re.findall(r'File "([^"<]+)", line (\d+)', str(self.error))
        for file, line in reversed(worker):
            if "site-packages" not in file and "/lib/python" not in file:
                return f"{file}, line {line}"
        said = place_of(self.error)
        found = re.match(r"(.+?), line \d+(?=: )", said or "")
        if found is None:
            return ""
        # The house's own files only lead to the user's.
        house = Path(found[1]).absolute().parent == Path(project.__file__).absolute().parent
        return "" if house else found[0]


@dataclass(frozen=True)
class Answer:
    """What an error means.

    Args:
        what: What has happened, with the shapes, devices and names involved.
        cause: The usual cause.
        step: What to do next.
    """

    what: str
    cause: str
    step: str


@dataclass(frozen=True)
class Classic:
    """An error as torch or Lightning words it.

    Args:
        kinds: Names of its types.
        pattern: What its message says.
        answer: What it means; ``{1}`` stands for a group of the pattern, ``{layer}`` for the layer
            it happened in and ``{inside}`` for `` in LAYER``. A function answers None if it turns
            out to be another error.
    """

    kinds: tuple[str, ...]
    pattern: str
    answer: Answer | Callable[[re.Match[str], Scene], Answer | None]

    def apply(self, scene: Scene) -> Answer | None:
        """Return what the error means, if it is this one."""
        found = re.search(self.pattern, scene.message) if scene.kind in self.kinds else None
        if found is None:
            return None
        answer = self.answer if isinstance(self.answer, Answer) else self.answer(found, scene)
        if answer is None:
            return None
        layer = scene.layer()
        words = {"layer": layer or "A layer", "inside": f" in {layer}" if layer else ""}
        words |= {str(i): part or "" for i, part in enumerate(found.groups(), start=1)}
        what, step = (_filled(text, words) for text in (answer.what, answer.step))
        return Answer(what, answer.cause, step)


def _filled(text: str, words: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: words.get(found[1], found[0]), text)


def explain(error: BaseException) -> Explanation | None:
    """Return what an error means, in four or five lines; None if it is none of the classics."""
    scene = _scene(error)
    tensors = import_module(f"{project.__name__}.errors_of_tensors").TENSORS
    for classic in (*tensors, *import_module(f"{project.__name__}.errors_of_runs").RUNS):
        if answer := classic.apply(scene):
            return _box(answer, scene.place())
    return None


def add_explanation(error: BaseException) -> None:
    """Note on an error what it means, if it is a classic; Python shows that below the traceback."""
    if not any(isinstance(note, Explanation) for note in getattr(error, "__notes__", [])):
        try:
            known = explain(error)
        except Exception:  # the error itself must be seen, whatever is wrong with its explanation
            return
        if known is not None:
            error.add_note(known)


# A loader that cannot begin makes Lightning's clean-up fail too, and that error then stands last.
_AFTER = "Please call `iter(combined_loader)` first."


def _scene(error: BaseException) -> Scene:
    if str(error) == _AFTER and error.__context__ is not None:
        error = error.__context__
    kind, message = type(error).__name__, str(error)
    if re.match(r"Caught \w+ in \w+ worker process", message):
        ends = list(re.finditer(r"^(?:\w+\.)*(\w+): ", message, re.MULTILINE))
        if ends:
            return Scene(error, ends[-1][1], message[ends[-1].end() :])
    return Scene(error, kind, message)


def _box(answer: Answer, place: str) -> Explanation:
    lines = ["┌ What this means", f"│ {answer.what}", f"│ Usual cause: {answer.cause}"]
    if place:
        lines.insert(2, f"│ Your code: {place}")
    lines.append(f"└ Next: {answer.step}")
    return Explanation("\n".join(line.replace("\n", " ") for line in lines))
