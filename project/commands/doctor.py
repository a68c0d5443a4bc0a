"""Check data, model, training settings and machine before a long run; takes what fit takes.

Example: `lightning doctor --config configs/mnist.yaml`

  --config FILE, --SETTING VALUE   as for fit; nothing is trained on and no run is made
  --run RUN                        a run's configuration, with the weights of its best checkpoint
  --output FILE                    also write all findings as JSON

Exit code 1 if a check fails. A picture of a training batch is in TensorBoard, below
logs/EXPERIMENT/doctor.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from project import quiet
from project.mistakes import UserError
from project.options import show_progress
from project.request import Request, read_request


def main(argv: Sequence[str] | None = None) -> int:
    """Run all checks and show what they found.

    Args:
        argv: What follows the verb.

    Returns:
        1 if a check fails, else 0.

    Raises:
        UserError: If a setting is wrong, as for ``fit``.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    own, rest = _own(argv)
    request = _request(rest)
    quiet.prepare()  # from here on torch and Lightning are imported, which takes seconds
    return _check(request, own.output)


def _own(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--output", type=Path)
    try:
        return parser.parse_known_args(argv)
    except argparse.ArgumentError:
        raise UserError("--output needs a file, e.g. --output report.json") from None


def _request(argv: list[str]) -> Request:
    """Resolve the command line as ``fit`` would, or as ``validate`` where it names a run."""
    names = {arg.split("=", 1)[0] for arg in argv}
    for name in ("--resume", "--init_from"):
        if name in names:
            raise UserError(f"doctor has no setting {name}. To check a run: --run RUN")
    if not names & {"--run", "--ckpt_path"}:
        return read_request("fit", argv)
    request = read_request("validate", argv)
    return replace(request, verb="fit", args=["fit", *request.args[1:]])


def _check(request: Request, output: Path | None) -> int:
    from project.doctor.examination import Examination
    from project.doctor.table import show

    try:
        examination = Examination(request, show_progress)
    finally:
        show_progress("")
    show(examination.report, examination.picture)
    if output is not None:
        examination.report.write(output)
    return 1 if examination.report.failed else 0
