"""Show where the time of a training step goes, and the memory; takes what fit takes.

Example: `lightning profile --config configs/mnist.yaml`

  --config FILE, --SETTING VALUE   as for fit; some steps are trained, and no run is made
  --steps N                        steps that are timed, after 10 to warm up; default: 50
  --output FOLDER                  of the trace; default: logs/profile/TIME

Three tables: what a step waits for and computes, the ten dearest operators, and what each module
holds in memory. The trace has every operator of 5 steps; open it at https://ui.perfetto.dev.
Without validations, in one process. On a GPU the parts are measured one after the other, so that
each has its own time; the time of the step itself is that without waiting.
"""

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from project import trial_line
from project.options import show_progress, whole


def main(argv: Sequence[str] | None = None) -> int:
    """Measure some steps and show what was found.

    Args:
        argv: What follows the verb.

    Raises:
        UserError: If a setting is wrong, as for ``fit``.
        RunFailed: If training ends at once.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = trial_line.Options("profile")
    parser.add_argument("--steps", type=whole(1), default=50)
    parser.add_argument("--output", type=Path)
    own, request = parser.read(argv)
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = own.output or request.root / "profile" / stamp
    trial_line.check_output(folder, is_folder=True)

    from project.profiling.session import Session
    from project.profiling.tables import show

    show(Session(request, own.steps, folder / "trace.json", show_progress).found)
    return 0
