"""The front door: help and many a mistake are answered before torch is imported."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import project
from project import helptext
from project.mistakes import UserError, did_you_mean


def main(args: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        args: The command line without the program's name, e.g. ``["fit", "--run", "last"]``; by
            default what was typed.

    Returns:
        0 when done, 2 on a mistake of the user's, told on stderr. A failure of ours raises.
    """
    argv = list(sys.argv[1:] if args is None else args)
    try:
        return _answer(argv) if _is_quick(argv) else _run(argv[0], argv[1:])
    except UserError as mistake:
        rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
        print(f"{'' if rank == '0' else f'[rank {rank}] '}Error: {mistake}", file=sys.stderr)
        return 2


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
    except SystemExit as end:  # --print_config and the like are answered inside the parser
        return int(end.code or 0)
    return 0
