"""A run's checkpoint, evaluated here and now, with how sure its figures are."""

import copy
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import yaml
from torch import Tensor

from project.confusion import Counts
from project.export.samples import find_split
from project.runs import LoadedRun
from project.short_training import quiet_trainer

Interval = tuple[float, float]

_Z = 1.959964  # 97.5 % of a normal distribution lie below it
_RESAMPLES = 1000


@dataclass(frozen=True)
class Evaluation:
    """What ``lightning test`` (or, without a test split, ``validate``) says about a checkpoint.

    Args:
        split: ``test`` or ``val``.
        scores: Value of every metric, e.g. ``acc``.
        counts: Confusion matrix ``(num_classes, num_classes)``, rows true, columns predicted; None
            for a task that counts none.
        per_class: Precision, recall, F1 and support of every class; None likewise.
        device: What it was computed on.
    """

    split: str
    scores: dict[str, float]
    counts: Counts | None
    per_class: tuple[Tensor, ...] | None
    device: str

    @property
    def intervals(self) -> dict[str, Interval]:
        """The 95 % interval of the metrics that have one, by name."""
        if self.counts is None or not self.counts.sum():
            return {}
        counts, found = self.counts, {}
        # Under these names another task may log something else, of which nothing is known here.
        if math.isclose(self.scores.get("acc", -1), _accuracy(counts), abs_tol=1e-6):
            found["acc"] = wilson(int(np.trace(counts)), int(counts.sum()))
        same_f1 = math.isclose(self.scores.get("f1", -1), _macro_f1(counts), abs_tol=1e-6)
        if same_f1 and 0 < np.trace(counts) < counts.sum():  # else all resamples are alike
            found["f1"] = bootstrap(counts, _macro_f1)
        return found


def evaluate(loaded: LoadedRun) -> Evaluation:
    """Evaluate on the whole test split, or on the validation split where there is no other.

    The run's task stays as it is: a copy is evaluated, in the precision of the run.
    """
    config = yaml.safe_load(loaded.run.config.read_text())
    trainer = quiet_trainer(
        {"precision": config["trainer"].get("precision")},
        loaded.run.path,
        callbacks=[],
        accelerator="auto",
        limit_val_batches=None,  # all; 1.0 says so on the screen
        enable_progress_bar=sys.stderr.isatty(),
    )
    data, task = loaded.datamodule, copy.deepcopy(loaded.task)
    split = find_split(data)
    run = trainer.test if split == "test" else trainer.validate
    results = run(task, datamodule=data, verbose=False)
    counts = getattr(task, "confusion_matrix", None)
    return Evaluation(
        split,
        {
            name.removeprefix(f"{split}/"): value
            for found in results
            for name, value in found.items()
        },
        None if counts is None else counts.cpu().numpy(),
        None if counts is None else tuple(cast("Any", task).per_class()),
        str(trainer.strategy.root_device),
    )


def wilson(right: int, total: int) -> Interval:
    """The 95 % score interval of a share, which keeps to [0, 1] and holds for small numbers, too.

    Wilson, https://doi.org/10.1080/01621459.1927.10502953.

    Args:
        right: Successes.
        total: Trials, at least one.
    """
    share, extra = right / total, _Z**2 / total
    middle = share + extra / 2
    half = _Z * math.sqrt(share * (1 - share) / total + extra / (4 * total))
    return max(0.0, (middle - half) / (1 + extra)), min(1.0, (middle + half) / (1 + extra))


def bootstrap(counts: Counts, metric: Callable[[Counts], float]) -> Interval:
    """The 95 % percentile interval of a metric, of 1000 evaluations drawn from this one, seed 0.

    Args:
        counts: Confusion matrix.
        metric: Of a confusion matrix.
    """
    random, total = np.random.default_rng(0), counts.sum()
    where = np.nonzero(counts)
    drawn = []
    for sample in random.multinomial(total, counts[where] / total, size=_RESAMPLES):
        resampled = np.zeros_like(counts)
        resampled[where] = sample
        drawn.append(metric(resampled))
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def _accuracy(counts: Counts) -> float:
    return float(np.trace(counts) / counts.sum())


def _macro_f1(counts: Counts) -> float:
    """Mean F1 over the classes that have samples."""
    support, predicted = counts.sum(axis=1), counts.sum(axis=0)
    there = support > 0
    return float((2 * counts.diagonal()[there] / (support + predicted)[there]).mean())
