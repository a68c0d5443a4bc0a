"""What the verbs print: which checkpoint, which scores, where to look next."""

import math
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.table import Table

from project.request import Request
from project.resume import timed_out

MAX_CLASSES = 20  # more would not fit a screen
WORST = 10  # of them are shown then
_UNEVEN = 4  # times as many images in one class as in another are worth a line


def show_start(trainer: Trainer, model: LightningModule, run_dir: Path) -> None:
    """Say what is about to be trained on what, and where the run's folder is."""
    datamodule = getattr(trainer, "datamodule", None)
    net = getattr(model, "net", model)
    parameters = sum(p.numel() for p in model.parameters())
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    sizes = {name: getattr(datamodule, f"{name}_set", None) for name in ("train", "val")}
    counts = ", ".join(
        f"{len(split):,} {name}" for name, split in sizes.items() if split is not None
    )
    _print(
        f"Model  {type(net).__name__}, {parameters:,} parameters"
        + (f", {frozen:,} of them frozen" if frozen else "")
    )
    known = [type(datamodule).__name__, *_contents(datamodule)]
    _print(f"Data   {', '.join([*known, f'{counts} samples'] if counts else known)}")
    if rare := _rare_classes(datamodule):
        _print(f"       {rare}: see --data.balanced")
    _print(f"Run    {run_dir}")


def _contents(datamodule: object) -> list[str]:
    """Say what a data module has found or knows: classes, and channels x height x width."""
    keys = ("num_classes", "in_channels", "image_size")
    classes, channels, size = (getattr(datamodule, key, None) for key in keys)
    said = [_count(classes, "class", "classes")] if isinstance(classes, int) else []
    if isinstance(channels, int):
        sized = isinstance(size, int)
        said.append(f"{channels} x {size} x {size}" if sized else _count(channels, "channel"))
    return said


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number:,} {one if number == 1 else more or f'{one}s'}"


def _rare_classes(datamodule: object) -> str:
    """Name the rarest and the most frequent class, if they are far apart."""
    names, counts = (getattr(datamodule, key, None) for key in ("class_names", "class_counts"))
    if not names or not counts or max(counts) < _UNEVEN * max(1, min(counts)):
        return ""
    few, many = (counts.index(pick(counts)) for pick in (min, max))
    return f"{names[few]} has {counts[few]:,} images, {names[many]} {counts[many]:,}"


def show_checkpoint(request: Request, differ: Sequence[tuple[str, str, str]]) -> None:
    """Say which run and which file is used, and which settings are not those of the run."""
    _print(f"Run    {request.run.path if request.run else 'none'}")
    _print(f"File   {request.ckpt_path}")
    # Where predictions go has nothing to do with the training, and their last line says it.
    shown = [r for r in differ if r[0] in request.typed or not r[0].startswith("predictions.")]
    if shown:
        table = Table("setting", "the run's", "now")
        for row in shown:
            table.add_row(*row)
        _print(table)


def show_init(file: Path, left: Sequence[str]) -> None:
    """Say which weights a new run begins with, and which of them did not fit."""
    _print(f"Weights of {file}" + (", except:" if left else ", all of them"))
    for line in left:
        _print(f"       {line}")


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the settings that differ, named as the command line names them.

    Args:
        before: The configuration that the run was trained with.
        now: The configuration at hand.

    Returns:
        Name, old value and new value of each.
    """
    old, new = _flat(before), _flat(now)
    keys = [key for key in {**old, **new} if key != "experiment" and old.get(key) != new.get(key)]
    return [(key, _word(old.get(key)), _word(new.get(key))) for key in keys]


def _flat(config: object, key: str = "") -> dict[str, object]:
    """Name every setting by its path, e.g. ``model.net.hidden_dim``, as the command line does."""
    if not isinstance(config, Mapping) or not config:
        return {key: config}
    found: dict[str, object] = {}
    for name, value in config.items():
        inner = key if name in ("class_path", "init_args") else f"{key}.{name}".lstrip(".")
        found |= _flat(value, inner)
    return found


def _word(value: object) -> str:
    return "null" if value is None else str(value)


def show_scores(results: Iterable[Mapping[str, float]], model: LightningModule) -> None:
    """Print a table of scores, and one of the classes where the task has figures for each."""
    table = Table("metric", "value")
    for scores in results:
        for name, value in scores.items():
            table.add_row(name, f"{value:.4f}")
    _print(table)
    _show_classes(model)


def _show_classes(model: LightningModule, of: str = "") -> None:
    """Print figures of every class, where the task has them; of many classes, the worst."""
    names, task = getattr(model, "class_names", None), cast("Any", model)
    if not names or getattr(model, "confusion_matrix", None) is None:
        return
    found, rows = task.per_class(), range(len(names))
    if len(names) > MAX_CLASSES:
        rows = task.worst_classes(WORST)
        _print(f"The {len(rows)} of {len(names)} classes with the lowest recall")
    table = Table(f"class{of}", "precision", "recall", "f1", "samples")
    for row in rows:
        values = (found.precision[row], found.recall[row], found.f1[row])
        shown = ("n/a" if math.isnan(value) else f"{value:.4f}" for value in map(float, values))
        table.add_row(names[row], *shown, str(int(found.support[row])))
    _print(table)


def show_fit(
    scores: dict[str, float],
    trainer: Trainer,
    model: LightningModule,
    seconds: float,
    run_dir: Path | None,
    ends: Iterable[str],
) -> None:
    """Print how a training went and the commands that follow.

    Args:
        scores: ``val/…`` of the best checkpoint and ``test/…``.
        trainer: The trainer, after the test.
        model: The task, which has the figures of the classes.
        seconds: Wall time since the command began.
        run_dir: The run's folder; None when nothing was kept.
        ends: What ``ends`` said before the test.
    """
    names = dict.fromkeys(
        key.split("/", 1)[1] for key in scores if key.startswith(("val/", "test/"))
    )
    if names:
        table = Table("", "val (best)", "test")
        for name in names:
            row = (scores.get(f"{split}/{name}") for split in ("val", "test"))
            table.add_row(name, *("" if value is None else f"{value:.4f}" for value in row))
        _print(table)
        was_tested = any(key.startswith("test/") for key in scores)
        _show_classes(model, " (test)" if was_tested else " (last validation)")
    epochs = _count(trainer.current_epoch, "epoch")
    _print(f"{epochs}, {_count(trainer.global_step, 'step')}, {seconds:.0f} s")
    for line in ends:
        _print(line)
    if run_dir is None:
        _print("Nothing was kept: a trial run (fast_dev_run).")
        return
    _print(f"Run    {run_dir}")
    for file in sorted(run_dir.glob("fit-*.txt")):  # a profiler's
        _print(f"Table  {file}")
    logs, run = (shlex.quote(str(folder)) for folder in (run_dir.parent.parent, run_dir))
    steps = {
        "events.out.tfevents*": f"{program('tensorboard')} --logdir {logs}",
        "checkpoints/*.ckpt": f"{program('lightning')} predict --run {run}",
    }
    there = [command for files, command in steps.items() if any(run_dir.glob(files))]
    for command in there:
        _print(f"{'Next' if command is there[0] else '':<7}{command}")


def program(name: str) -> str:
    """Return how to call a program of this environment, also where that is not activated."""
    ours, found = shutil.which(name, path=str(Path(sys.executable).parent)), shutil.which(name)
    # By their folders: an environment's python is a link to the one it was made with.
    if ours is None or (found and Path(found).parent.samefile(Path(ours).parent)):
        return name
    path, here = Path(ours), Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def ends(trainer: Trainer, keeper: ModelCheckpoint | None) -> list[str]:
    """Say why the training stopped before its end, and which checkpoint is the best one.

    Args:
        trainer: The trainer, before it tests.
        keeper: What chooses the best checkpoint.
    """
    lines = []
    if timed_out(trainer) is not None:
        lines.append("Time   stopped by --trainer.max_time; --resume goes on with a longer one")
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if line := getattr(callback, "closing_line", ""):
            lines.append(line)
        if isinstance(callback, EarlyStopping) and callback.stopped_epoch:
            lines.append(
                f"Early  stopped: no better {callback.monitor} in "
                + _count(callback.patience, "validation")
            )
    if keeper and keeper.best_model_path and keeper.monitor:
        lines.append(f"Best   {Path(keeper.best_model_path).name}, by {keeper.monitor}")
    return lines


def say(line: str) -> None:
    """Print a line, once for all processes."""
    _print(line)


@rank_zero_only
def _print(what: str | Table) -> None:
    Console(highlight=False, soft_wrap=True).print(what, markup=False)
