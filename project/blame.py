"""Whose line is at fault: the place of an error in the user's own code."""

import dis
import importlib
import re
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

import project
from project.mistakes import RunFailed, UserError, did_you_mean, innermost

_FOREIGN = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_NAMES = r"(?:['\"]|value: |path but )([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)"

_OTHER_CLASSES = re.compile(r"The parameter 'num_classes' expected value (\d+) but got (\d+)")


def broken_import(message: str) -> str | None:
    """Return which line of a file of the user's cannot be imported, if that is what went wrong.

    Args:
        message: A parser's message; modules are named by the class paths in it.
    """
    for path in dict.fromkeys(re.findall(_NAMES, message)):
        module = path.rsplit(".", 1)[0]
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                continue  # there is no such file
            place = place_of(error)
        except Exception as error:
            place = place_of(error)
        else:
            continue
        if place:
            return place
    return None


def place_of(error: BaseException) -> str | None:
    """Return ``file, line n: what`` for the innermost line outside of installed packages."""
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*_FOREIGN, "<")):
            return f"{_short(frame.filename)}, line {frame.lineno}: {what}"
    return None


def bug_of(error: BaseException, trace: TracebackType | None) -> str | None:
    """Return ``file, line n: what`` for a bug in a file of the user's.

    Args:
        error: The error.
        trace: Where to look: its traceback or the inner part of it.

    Returns:
        None if it came through no such file; this package's top-level files are not meant.
    """
    house = Path(project.__file__).absolute().parent
    for frame in reversed(traceback.extract_tb(trace)):
        file = frame.filename
        if file.startswith((*_FOREIGN, "<")) or Path(file).absolute().parent == house:
            continue
        name, owner = getattr(error, "name", None), getattr(error, "obj", None)
        hint = did_you_mean(name, dir(owner)) if name and owner is not None else ""
        what = f"{type(error).__name__}: {error}{hint and '.'}{hint}"
        return f"{_short(file)}, line {frame.lineno}: {what}"
    return None


def judge(wrapped: BaseException) -> Exception:
    """Tell a mistake in a setting, which a constructor refuses, from other errors.

    Args:
        wrapped: What jsonargparse made of it; the chain of its causes leads to the error itself.

    Returns:
        A ``UserError``, also for a bug in a file of the user's; or the error itself, whose
        traceback is then shown.
    """
    error = _origin(wrapped)
    if found := _OTHER_CLASSES.match(str(error)):
        return UserError(
            f"torchvision's weights are for {found[1]} classes, the data have {found[2]}.\n"
            "For a new last layer: --model.net project.models.TorchvisionNet "
            "--model.net.name NAME --model.net.weights DEFAULT,\n"
            "where NAME is what you gave as torchvision.models.NAME."
        )
    if isinstance(error, UserError | RunFailed):
        return error
    if isinstance(error, ImportError):
        return UserError(innermost(str(wrapped)))
    if not isinstance(error, ValueError | OSError) and type(error).__name__ != (
        "MisconfigurationException"
    ):
        return UserError(bug) if (bug := bug_of(error, error.__traceback__)) else error
    last = _last(error.__traceback__)
    if last is None or "jsonargparse" in last.tb_frame.f_code.co_filename:
        # Of several types that were tried, the first failure is the cause; the text has them all.
        return UserError(innermost(str(wrapped)))
    owner = _refusing(error.__traceback__)
    if owner is not None:
        return UserError(f"{owner.__module__}.{owner.__qualname__}: {error}")
    return UserError(place_of(error) or str(error))


def _refusing(trace: TracebackType | None) -> type | None:
    """Return the class whose constructor raised, itself or in a function that it calls to check."""
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    code = frames[-1].tb_frame.f_code
    if code.co_code[frames[-1].tb_lasti] != dis.opmap["RAISE_VARARGS"]:
        return None
    own = not code.co_filename.startswith((*_FOREIGN, "<"))
    for frame in reversed(frames[-2:] if own else frames[-1:]):
        owner = frame.tb_frame.f_locals.get("self")
        if frame.tb_frame.f_code.co_name == "__init__" and owner is not None:
            return type(owner)
    return None


def _origin(error: BaseException) -> Exception:
    """Follow the causes past the layers that jsonargparse has put around an error."""
    link: BaseException | None = error
    found = error
    while link is not None:
        found, last = link, _last(link.__traceback__)
        if last is not None and "jsonargparse" not in last.tb_frame.f_code.co_filename:
            break
        link = link.__cause__ or link.__context__
    assert isinstance(found, Exception)
    return found


def _last(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
