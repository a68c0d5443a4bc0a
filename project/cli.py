"""The front door: help and many a mistake are answered before torch is imported."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import project
from project import endings, helptext
from project.mistakes import RunFailed, UserError, did_you_mean, meaning


def main(args: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        args: The command line without the program's name, e.g. ``["fit", "--run", "last"]``; by
            default what was typed.

    Returns:
        0 when done, 1 if a run failed for a reason that has a name, 2 on a mistake of the user's,
        75 if a run was told to stop and can go on, 130 for a KeyboardInterrupt; all told on stderr.
        Any other failure raises.
    """
    argv = list(sys.argv[1:] if args is None else args)
    try:
        if _is_quick(argv):
            return _answer(argv)
        # Called from Python, e.g. in a notebook, signals are that program's matter.
        with endings.in_charge(take_signals=args is None and argv[0] in helptext.SETTINGS):
            return _run(argv[0], argv[1:])
    except UserError as mistake:
        return _tell(f"Error: {mistake}", 2)
    except RunFailed as failure:
        return _tell(f"Error: {failure}", endings.FAILED)
    except endings.Preempted as stop:
        return _tell(stop.message, endings.TRY_AGAIN)
    except KeyboardInterrupt:
        if args is not None:
            raise
        return 130
    except Exception as error:
        if known := meaning(error):
            return _tell(f"Error: {known}", endings.FAILED)
        raise


def _tell(message: str, code: int) -> int:
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    if rank == "0" or code != endings.TRY_AGAIN:  # which all ranks have agreed on
        print(f"{'' if rank == '0' else f'[rank {rank}] '}{message}", file=sys.stderr)
    return code


def _is_quick(argv: Sequence[str]) -> bool:
    verb = argv[0] if argv else ""
    return verb not in helptext.verbs() or (
        verb in helptext.SETTINGS and bool({"-h", "--help"} & set(argv))
    )


def _answer(argv: Sequence[str]) -> int:
    verb = argv[0] if argv else "--help"
    if verb in helptext.SETTINGS:
        print(helptext.SETTINGS[verb])
    elif verb in ("-h", "--help", "help"):
        print(helptext.overview())
    elif verb in ("-V", "--version", "version"):
        print(f"{project.__name__} {project.__version__}")
    else:
        known = helptext.verbs()
        hint = did_you_mean(verb, known) or f" There are: {', '.join(known)}."
        raise UserError(f"There is no verb {verb!r}.{hint}")
    return 0


def _run(verb: str, argv: list[str]) -> int:
    if verb not in helptext.SETTINGS:
        command: int = import_module(f"{project.__name__}.commands.{verb}").main(argv)
        return command
    from project.request import read_request

    everything = "--help-all" in argv
    request = read_request(verb, [arg for arg in argv if arg != "--help-all"], look=not everything)
    from project import quiet  # from here on torch and Lightning are imported, which takes seconds

    quiet.prepare()
    from project.verbs import Command

    try:
        Command(request)
    except endings.Preempted:
        raise
    except SystemExit as end:  # --print_config and the like are answered inside the parser
        if isinstance(end.__context__, KeyboardInterrupt):  # Lightning turns it into exit code 1
            return 130
        if isinstance(end.code, str):
            return _tell(end.code, endings.FAILED)
        return end.code or 0
    return 0
