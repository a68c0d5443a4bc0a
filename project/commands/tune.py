"""Measure what trains fastest and which learning rate, and write it to stack; takes what fit takes.

Example: `lightning tune --config configs/mnist.yaml`

  --config FILE, --SETTING VALUE   as for fit; short trainings on copies, and no run is made
  --only PARTS                     of workers,precision,batch_size,lr; default: all, in this order
  --output FILE                    default: tuned.yaml

Workers: the fewest with which training is as fast as with any.
Precision: float32 or bf16-mixed, and for convolutions channels_last; what is configured stays if it
is nearly as fast as any. Accuracy is not looked at: compare a run of each.
Batch size: doubled until it no longer fits, then searched in between; never larger than the
training set. Taken is the smallest that is about as fast as any and leaves an epoch 50 steps, with
the learning rate that it implies: linear for SGD, square root for others.
Learning rate: raised from step to step, 1e-6 to 10; taken is half of the first that brings nearly
the lowest loss, and none if that fell by no more than chance. The picture is in TensorBoard, below
logs/EXPERIMENT/tune.
"""

import shlex
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from project import trial_line
from project.disk import writing
from project.mistakes import UserError, did_you_mean
from project.options import show_progress
from project.tuning import PARTS


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the file, and say what to type next.

    Args:
        argv: What follows the verb.

    Raises:
        UserError: If a setting is wrong, as for ``fit``.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = trial_line.Options("tune")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--output", type=Path, default=Path("tuned.yaml"))
    own, request = parser.read(argv)
    parts = own.only.split(",")
    for part in parts:
        if part not in PARTS:
            hint = did_you_mean(part, PARTS) or f" There are: {', '.join(PARTS)}."
            raise UserError(f"--only cannot be {part!r}.{hint}")
    trial_line.check_output(own.output)
    if own.output.resolve() in [Path(name).resolve() for name in request.configs]:
        raise UserError(f"--output {own.output} is a --config, too, and would lose what it says.")

    import yaml

    from project.report import program
    from project.tuning.session import Session

    tuned = Session(request, parts, show_progress).tuned
    show_progress("")
    print("\n".join(tuned.lines))
    if tuned.picture is not None:
        folder = shlex.quote(str(tuned.picture.parent))
        print(f"Picture     {program('tensorboard')} --logdir {folder}")
    if not tuned.settings:
        return 0
    told = "".join(f"# {line.rstrip()}\n" for line in tuned.lines)
    head = "# Measured by lightning tune, to stack on the recipe it was measured for.\n"
    with writing(own.output, "or write it elsewhere: --output FILE"):
        own.output.parent.mkdir(parents=True, exist_ok=True)
        own.output.write_text(head + told + yaml.safe_dump(tuned.settings))
    again = _without(request.command, tuned.names).removeprefix("lightning ")
    print(f"Next        {program('lightning')} {again} --config {shlex.quote(str(own.output))}")
    return 0


def _without(command: str, names: Collection[str]) -> str:
    """Leave out the settings that would beat those of the file."""
    words, left = iter(shlex.split(command)), []
    for word in words:
        name, is_whole, _ = word.removeprefix("--").partition("=")
        if name.replace(".init_args", "") not in names:
            left.append(word)
        elif not is_whole:
            next(words, None)
    return shlex.join(left)
