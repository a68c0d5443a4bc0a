"""What the command says about itself without importing anything: one screen for each verb."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import project

FIT = """\
lightning fit: train a model, then test its best checkpoint

  lightning fit                                   the digits recipe, some seconds on a laptop
  lightning fit --config configs/mnist.yaml       another recipe; configs/*.yaml has all
  lightning fit --config configs/mnist.yaml --config configs/presets/bf16.yaml
  lightning fit --config configs/image_folder.yaml --data.data_dir photos     your own images

What people set (any setting of a YAML can be given as --a.b.c VALUE, and then beats the YAML):
  --config FILE                       recipe or preset; repeat it to stack, later ones win
  --experiment NAME                   folder of the run below logs/; default: the recipe's name
  --resume RUN|last                   go on with a run where it stopped, in the same folder
  --init_from RUN|FILE                begin a new run with the weights of another
  --seed_everything N                 seed of weights, order and augmentation
  --trainer.max_epochs N              passes over the training split
  --trainer.max_time DD:HH:MM:SS      stop after so long
  --trainer.devices N                 GPUs or processes; see also configs/presets/ddp.yaml
  --trainer.precision P               32-true, bf16-mixed, 16-mixed
  --trainer.accumulate_grad_batches N batches per optimizer step
  --trainer.gradient_clip_val X       largest norm of the gradient
  --data CLASS                        where images come from, e.g. project.data.MNISTDataModule
  --data.data_dir DIR                 where its files are
  --data.batch_size N                 images per step and process
  --data.num_workers N                processes that load
  --model.net CLASS                   the network, e.g. torchvision.models.resnet18
  --model.net.hidden_dims '[256,128]' … and any argument of its constructor
  --model.optimizer CLASS             e.g. torch.optim.SGD, with --model.optimizer.lr X
  --model.scheduler CLASS             e.g. torch.optim.lr_scheduler.StepLR, or null
  --checkpoint.monitor NAME           the metric that decides which checkpoint is best
  --early_stopping.patience N         validations without progress; --early_stopping null: never
  --autosave.every_n_minutes N        checkpoint to resume from, kept apart from the best ones
  --finite_guard null                 do not stop at the first NaN or Inf
  --print_config                      show every setting and stop
  --help-all                          list every setting there is
  LIGHTNING_SHARED_MACHINE=1          before the command: one thread, where others compute too
"""

_EXISTING = """\
lightning {verb}: {what}

  lightning {verb} --run last                       the newest run of all
  lightning {verb} --run logs/mnist/2026-01-31_12-00-00
  lightning {verb} --config configs/mnist.yaml      the newest run of that recipe

  --run RUN                           folder of a run, or last
  --experiment NAME                   the newest run of this experiment
  --ckpt_path best|last|FILE          which checkpoint of it; default: best
  --config FILE                       a recipe, which names the run, or a preset to stack
  --data.batch_size N                 … and any setting; beats what the run was trained with
  --print_config                      show every setting and stop
  --help-all                          list every setting there is
"""

PREDICT = """\
lightning predict: write a run's predictions of images, or of its test split, to a file

  lightning predict --run last                      the test split, with the labels
  lightning predict --run last photos/              all images below a folder
  lightning predict --run last a.jpg 'b/**/*.png' list.csv --output out.parquet --top_k 3

Images are files, folders, patterns, or a CSV with a column path. They are read as in training. One
that cannot be read is a row with its error, and is counted at the end. If none can, nothing is
written.

  --run RUN                           folder of a run, or last
  --experiment NAME                   the newest run of this experiment
  --ckpt_path best|last|FILE          which checkpoint of it; default: best
  --output FILE                       .csv, .jsonl or .parquet; default: predictions.csv in the run
  --top_k N                           name the N most probable classes; default: 1
  --tta flip                          average over each image and its mirror image
  --predictions.max_class_columns N   a column for each class, if there are no more; default: 20
  --data.eval_batch_size N            images at a time
  --data.num_workers N                processes that read images
  --trainer.devices N                 GPUs or processes; the file is the same
  --trainer.precision P               32-true, bf16-mixed, 16-mixed
  --config FILE                       a recipe, which names the run, or a preset to stack
  --print_config                      show every setting and stop
  --help-all                          list every setting there is

In Python: load_run("last").predict("photos/"), from project.runs; images in memory will do, too.
"""

WHAT = {
    "fit": "train a model, then test its best checkpoint",
    "validate": "evaluate a run's checkpoint on the validation split",
    "test": "evaluate a run's checkpoint on the test split",
    "predict": "write a run's predictions of images, or of its test split, to a file",
}
EXAMPLES = {
    "fit": "lightning fit --config configs/mnist.yaml",
    "validate": "lightning validate --run last",
    "test": "lightning test --run last",
    "predict": "lightning predict --run last photos/",
}
SETTINGS = {"fit": FIT} | {
    verb: _EXISTING.format(verb=verb, what=WHAT[verb]) for verb in ("validate", "test")
}
SETTINGS["predict"] = PREDICT
OF_CLASSES = """
The settings of a class: --data.help CLASS, --model.help CLASS, --model.net.help CLASS, e.g.
  lightning fit --data.help project.data.DigitsDataModule"""
COMMANDS = Path(project.__file__).parent / "commands"


def of_a_class(argv: Sequence[str]) -> list[str]:
    """Return what asks for the settings of one class, e.g. ``--data.help CLASS``."""
    for at, arg in enumerate(argv):
        if re.match(r"--[\w.]+\.help(=|$)", arg):
            name, _, value = arg.partition("=")
            value = value or "".join(argv[at + 1 : at + 2])
            inner = re.match(r"--model\.\w+\.help", name)
            task = ["--config", str(COMMANDS.parents[1] / "configs" / "digits.yaml")]
            return [*(task if inner else []), f"{name}={value}" if value else name]
    return []


def own_commands() -> dict[str, list[str]]:
    """Return the docstring of every file in ``commands/``: what it does, and an `Example:`."""
    found = {}
    for file in sorted(COMMANDS.glob("[a-z]*.py")):
        found[file.stem] = (ast.get_docstring(ast.parse(file.read_text())) or "").splitlines()
    return found


def verbs() -> list[str]:
    """Return the verbs that there are."""
    return [*WHAT, *own_commands()]


def overview() -> str:
    """Return what `lightning --help` prints."""
    lines = [
        f"{project.__name__} {project.__version__}: train and use networks with PyTorch Lightning",
        "",
        "Verbs:",
    ]
    lines += [f"  {verb:<10} {what}\n  {'':<10}   {EXAMPLES[verb]}" for verb, what in WHAT.items()]
    for verb, doc in own_commands().items():
        example = next(
            (
                line.removeprefix("Example:").strip(" `")
                for line in doc
                if line.startswith("Example:")
            ),
            "",
        )
        what = doc[0].rstrip(".") if doc else ""
        lines.append(f"  {verb:<10} {what[:1].lower()}{what[1:]}\n  {'':<10}   {example}")
    lines += [
        "",
        "More: lightning VERB --help (one screen), --help-all (every setting), README.md",
    ]
    return "\n".join(lines)
