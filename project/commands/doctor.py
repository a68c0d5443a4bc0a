"""Check data, model, training settings and machine before a long run; takes what fit takes.

Example: `lightning doctor --config configs/mnist.yaml`

  --config FILE, --SETTING VALUE   as for fit; nothing is trained on and no run is made
  --run RUN                        a run's configuration, with the weights of its best checkpoint
  --output FILE                    also write all findings as JSON

Exit code 1 if a check fails. A picture of a training batch is in TensorBoard, below
logs/EXPERIMENT/doctor.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from project import heavy
from project.mistakes import UserError
from project.options import VerbParser, show_progress
from project.request import Request, read_request
from project.trial_line import check_output


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
    parser = VerbParser("doctor")
    parser.add_argument("--output", type=Path)
    own, rest = parser.parse_known_args(argv)
    if own.output is not None:
        check_output(own.output)
    request = _request(rest)
    heavy.import_lightning()
    return _check(request, own.output)


def _request(argv: list[str]) -> Request:
    """Resolve the command line as ``fit`` would, or as ``validate`` where it names a run."""
    names = {arg.split("=", 1)[0] for arg in argv}
    for name in ("--resume", "--init_from"):
        if name in names:
            raise UserError(f"lightning doctor has no setting {name}. To check a run: --run RUN")
    own = ("--run", "--ckpt_path", "--output")
    if not names & {"--run", "--ckpt_path"}:
        return read_request("fit", argv, asked="doctor", own=own)
    request = read_request("validate", argv, asked="doctor", own=own)
    return replace(request, verb="fit", args=["fit", *request.args[1:]])


def _check(request: Request, output: Path | None) -> int:
    from project.doctor.examination import Examination
    from project.doctor.table import show

    try:
        examination = Examination(request, show_progress)
    finally:
        show_progress("")
    if output is not None:
        examination.report.write(output)
    show(examination.report, examination.picture, output)
    return 1 if examination.report.failed else 0
