"""The front door: help and many a mistake are answered before torch is imported."""

import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import NoReturn

import project
from project import cores, endings, heap, heavy, helptext
from project.mistakes import RunFailed, UserError, did_you_mean, meaning


class _Told(BaseException):
    """A signal that unwinds a verb of our own; a KeyboardInterrupt Lightning would make its own."""


def main(args: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        args: The command line without the program's name, e.g. ``["fit", "--run", "last"]``; by
            default what was typed.

    Returns:
        0 when done, 1 if a run failed for a reason that has a name, 2 on a mistake of the user's,
        75 if a run was told to stop and can go on, 130 for a KeyboardInterrupt; all told on stderr.
        A verb of our own that a signal ends: 128 and its number.
        Any other failure raises, with a note on what it means if that is well known.
    """
    argv = list(sys.argv[1:] if args is None else args)
    try:
        if _is_quick(argv):
            return _answer(argv)
        # Called from Python, e.g. in a notebook, signals are that program's matter.
        trains = argv[0] in helptext.SETTINGS
        if args is None and not trains:
            _unwind_at_signals()
        with endings.in_charge(take_signals=args is None and trains):
            return _run(argv[0], argv[1:])
    except UserError as mistake:
        return _tell(f"Error: {mistake}", 2)
    except RunFailed as failure:
        return _tell(f"Error: {failure}", endings.FAILED)
    except endings.Preempted as stop:
        return _tell(stop.message, endings.TRY_AGAIN)
    except BrokenPipeError:  # `lightning … | head`; the streams are flushed again at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        if args is not None:
            raise
        return 130
    except _Told as signaled:
        return 128 + int(signaled.args[0])
    except Exception as error:
        if known := meaning(error):
            return _tell(f"Error: {known}", endings.FAILED)
        from project.explain import add_explanation

        add_explanation(error)
        raise


def _tell(message: str, code: int) -> int:
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    if rank == "0" or code != endings.TRY_AGAIN:  # which all ranks have agreed on
        print(f"{'' if rank == '0' else f'[rank {rank}] '}{message}", file=sys.stderr)
    return code


def _is_quick(argv: Sequence[str]) -> bool:
    verb = argv[0] if argv else ""
    return verb not in helptext.verbs() or bool({"-h", "--help"} & set(argv))


def _answer(argv: Sequence[str]) -> int:
    verb = argv[0] if argv else "--help"
    if verb == "help" and argv[1:2] and argv[1] in helptext.verbs():
        verb = argv[1]
    if verb in helptext.SETTINGS:
        print(helptext.SETTINGS[verb], flush=True)
    elif verb in helptext.verbs():
        print(*helptext.own_commands()[verb], sep="\n", flush=True)
    elif verb in ("-h", "--help", "help"):
        print(helptext.overview(), flush=True)
    elif verb in ("-V", "--version", "version"):
        print(f"{project.__name__} {project.__version__}")
    else:
        known = helptext.verbs()
        hint = did_you_mean(verb, known) or f" There are: {', '.join(known)}."
        raise UserError(f"There is no verb {verb!r}.{hint}")
    return 0


def _unwind_at_signals() -> None:
    """Have what asks a process to end unwind this one: no draft, no temporary folder stays."""

    def unwind(number: int, frame: object) -> NoReturn:
        raise _Told(number)

    for number in endings.numbers():
        signal.signal(number, unwind)


def _run(verb: str, argv: list[str]) -> int:
    cores.prepare()
    heap.keep()
    _tell_tasks_from_shells()
    if not {os.getcwd(), ""} & set(sys.path):
        sys.path.append(os.getcwd())  # a network in the user's folder; last, to shadow nothing
    if verb not in helptext.SETTINGS:
        command: int = import_module(f"{project.__name__}.commands.{verb}").main(argv)
        return command
    from project.request import read_request

    everything = "--help-all" in argv
    asked = helptext.of_a_class(argv)
    request = read_request(
        verb, [] if asked or everything else argv, look=not (asked or everything)
    )
    if asked:  # alone: what else a verb needs stands in the way
        request = replace(request, args=[verb, *asked])
    heavy.import_lightning()
    from project.verbs import Command

    return _finish(lambda: Command(request), helptext.OF_CLASSES if everything else "")


def _finish(run: Callable[[], object], more: str) -> int:
    """Run a command; return its exit code. What the parser prints is followed by ``more``."""
    try:
        run()
    except endings.Preempted:
        raise
    except SystemExit as end:  # --print_config and the like are answered inside the parser
        if isinstance(end.__context__, KeyboardInterrupt):  # Lightning turns it into exit code 1
            return 130
        if isinstance(end.code, str):
            return _tell(end.code, endings.FAILED)
        print(more, end="\n" if more else "")
        sys.stdout.flush()  # here a reader that has gone is no failure
        return end.code or 0
    return 0


def _tell_tasks_from_shells() -> None:
    """Tell Lightning that a shell of a SLURM job is no task that srun has started.

    It goes by the number of tasks and the job's name: in an interactive allocation with any name
    but "bash" or "interactive" it refuses to start, or waits for processes that nobody starts. Only
    srun sets the number of a step.
    """
    if "SLURM_NTASKS" in os.environ and "SLURM_STEP_ID" not in os.environ:
        os.environ["SLURM_JOB_NAME"] = "interactive"
        if os.environ.get("SLURM_NNODES", "1") == "1":  # where we start the processes ourselves
            warnings.filterwarnings("ignore", message=".*`srun` command is available")
