"""Whose line is at fault: the place of an error in the user's own code."""

import dis
import importlib
import re
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

from project.mistakes import RunFailed, UserError, innermost

_FOREIGN = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_NAMES = r"(?:['\"]|value: |path but )([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)"


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


def judge(wrapped: BaseException) -> Exception:
    """Tell a mistake in a setting, which a constructor refuses, from a bug in the constructor.

    Args:
        wrapped: What jsonargparse made of it; the chain of its causes leads to the error itself.

    Returns:
        A ``UserError``, or the error itself, whose traceback is then shown.
    """
    error = _origin(wrapped)
    if isinstance(error, UserError | RunFailed):
        return error
    if isinstance(error, ImportError):
        return UserError(innermost(str(wrapped)))
    if not isinstance(error, ValueError | OSError) and type(error).__name__ != (
        "MisconfigurationException"
    ):
        return error
    last = _last(error.__traceback__)
    if last is None or "jsonargparse" in last.tb_frame.f_code.co_filename:
        # Of several types that were tried, the first failure is the cause; the text has them all.
        return UserError(innermost(str(wrapped)))
    code = last.tb_frame.f_code
    owner = last.tb_frame.f_locals.get("self")
    raised = code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    if raised and code.co_name == "__init__" and owner is not None:
        return UserError(f"{type(owner).__module__}.{type(owner).__qualname__}: {error}")
    return UserError(place_of(error) or str(error))


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
