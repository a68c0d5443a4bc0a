"""What the callbacks watch: is it logged, which way is better, how long do they wait."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.training_runs import real_loop, rehearsed
from project.doctor.loop import Lesson
from project.doctor.once import once
from project.mistakes import did_you_mean

LOWER = {"loss", "error", "err", "mse", "mae", "rmse", "nll", "ce", "bce", "ppl", "perplexity"}
LOWER |= {"wer", "cer", "fid", "mape", "distance", "divergence"}
HIGHER = {"acc", "accuracy", "f1", "auc", "auroc", "precision", "recall", "iou", "miou", "dice"}
HIGHER |= {"map", "bleu", "r2", "psnr", "ssim", "kappa", "mcc", "top1", "top5", "sensitivity"}


@dataclass(frozen=True)
class Watcher:
    """Something that watches a metric.

    Args:
        name: As the user calls it.
        monitor: The metric.
        mode: min or max; empty where it has none.
        settings: All its settings.
    """

    name: str
    monitor: str
    mode: str
    settings: dict[str, Any]

    @property
    def stops(self) -> bool:
        """Whether it is there to end the run."""
        return "patience" in self.settings and "factor" not in self.settings


def watchers(subject: Subject) -> list[Watcher]:
    """What the settings have that watches a metric, then the task's schedules that do."""
    blocks: list[tuple[str, Any]] = list(subject.settings.items())
    listed = subject.trainer_settings.get("callbacks") or []
    blocks += [("trainer.callbacks", block) for block in listed]
    found = []
    for key, block in blocks:
        if not isinstance(block, dict) or not isinstance(block.get("init_args"), dict):
            continue
        said = block["init_args"]
        if isinstance(said.get("monitor"), str):
            name = f"{key} ({str(block['class_path']).rsplit('.', 1)[-1]})"
            found.append(Watcher(name, said["monitor"], str(said.get("mode") or "min"), said))
    for schedule in rehearsed(subject).schedules:
        if schedule.watches and schedule.config.monitor:
            scheduler = schedule.config.scheduler
            said = {"patience": scheduler.patience, "factor": scheduler.factor}
            monitor, mode = schedule.config.monitor, str(scheduler.mode)
            found.append(Watcher(schedule.name, monitor, mode, said))
    return found


def _epoch(subject: Subject) -> Lesson:
    """Train a whole, short epoch with its validation, for what is logged at its end."""
    return once(
        subject,
        "epoch",
        lambda: subject.train(steps=2, max_epochs=1, limit_train_batches=2, log_every_n_steps=1),
    )


@check("training")
def monitor_is_logged(subject: Subject) -> Iterator[Finding]:
    """What checkpoints, early stopping and schedules watch is logged."""
    found = watchers(subject)
    if not found:
        raise Skip("nothing watches a metric")
    logged = _epoch(subject).logged | real_loop(subject).logged
    for one in found:
        if one.monitor in logged:
            yield passed(f"{one.name}: {one.monitor}")
            continue
        near = did_you_mean(one.monitor, logged) or f" Logged: {', '.join(sorted(logged))}."
        yield fail(
            f"{one.name} watches {one.monitor!r}, which is not logged",
            f"Log it with self.log, or watch another metric.{near}",
        )


@check("training")
def mode_fits_the_metric(subject: Subject) -> Iterator[Finding]:
    """A loss is to be small, an accuracy large."""
    found = watchers(subject)
    if not found:
        raise Skip("nothing watches a metric")
    for one in found:
        better = _by_name(one.monitor) or _by_training(subject, one.monitor)
        if better and one.mode in ("min", "max") and one.mode != better:
            which = "the worst" if "patience" not in one.settings else "no progress"
            yield fail(
                f"{one.name} has mode {one.mode!r}, but {one.monitor} is better when "
                f"{'small' if better == 'min' else 'large'}: it would find {which}",
                f"Set mode to {better!r}.",
            )


def _by_name(metric: str) -> str | None:
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    words |= set(re.split(r"[^a-z]+", metric.lower()))
    low, high = bool(words & LOWER), bool(words & HIGHER)
    return None if low == high else "min" if low else "max"


def _by_training(subject: Subject, metric: str) -> str | None:
    """Which way a metric goes in a training whose loss falls by far."""
    lesson = real_loop(subject)
    losses = lesson.losses
    if len(losses) < 20 or not 0 < sum(losses[-5:]) < 0.7 * sum(losses[:5]):
        return None
    try:
        before = subject.evaluate(count=4).get(metric)
        after = subject.evaluate(lesson.task, count=4).get(metric)
    except Skip:
        return None
    if before is None or after is None or abs(after - before) < 0.2 * max(abs(before), 1e-12):
        return None
    return "min" if after < before else "max"


@check("training")
def validation_decides(subject: Subject) -> Iterator[Finding]:
    """Checkpoints and early stopping go by validation data, and validation takes place."""
    found = [one for one in watchers(subject) if "factor" not in one.settings]
    if not found or "val" not in subject.splits():
        raise Skip("nothing watches a metric, or there is no val split")
    every = subject.trainer_settings.get("check_val_every_n_epoch") or 1
    epochs = subject.trainer_settings.get("max_epochs")
    for one in found:
        if re.match(r"(train|fit)", one.monitor.lower()):
            yield warn(
                f"{one.name} watches {one.monitor!r}, which is measured on the training data",
                "Watch a metric of the val split: this one goes on improving while the network "
                "learns by heart.",
            )
        elif isinstance(epochs, int) and 0 < epochs < every and one.monitor.startswith("val"):
            yield fail(
                f"{one.name} watches {one.monitor!r}, but validation runs every {every} epochs "
                f"and the run has {epochs}",
                "Lower trainer.check_val_every_n_epoch.",
            )


@check("training")
def patience_fits_the_run(subject: Subject) -> Iterator[Finding]:
    """Early stopping waits shorter than the run is long, for steps that a metric can make."""
    found = [one for one in watchers(subject) if one.stops]
    if not found:
        raise Skip("no early stopping")
    said = subject.trainer_settings
    epochs, every = said.get("max_epochs"), said.get("check_val_every_n_epoch") or 1
    within = said.get("val_check_interval")
    for one in found:
        patience, checks = int(one.settings.get("patience") or 0), None
        if isinstance(epochs, int) and epochs > 0 and within in (None, 1, 1.0):
            checks = epochs // (1 if one.settings.get("check_on_train_epoch_end") else every)
        if checks is not None and patience >= checks:
            yield warn(
                f"{one.name} has a patience of {patience}, and the run {checks} checks: it never "
                "stops it",
                "Lower patience, train for more epochs, or leave early stopping out.",
            )
        delta = abs(float(one.settings.get("min_delta") or 0))
        value = real_loop(subject).metrics.get(one.monitor)
        bound = 1.0 if _by_name(one.monitor) == "max" and value and 0 <= value <= 1 else value
        if bound is not None and bound > 0 and delta >= bound:
            yield fail(
                f"{one.name} counts only progress of more than {delta:g}, and {one.monitor} is "
                f"{value:.3g}",
                f"min_delta is in the metric's unit: lower it far below {bound:.2g}.",
            )
