"""Measure what trains a recipe fastest, one after the other."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule

from project.request import Request
from project.runs import find_class
from project.trial import Trial
from project.tuning import PARTS, batch_size, picture, precision, rate, workers
from project.tuning.bench import Bench

Settings = dict[str, Any]


@dataclass
class Tuned:
    """What was found.

    Args:
        settings: What goes into the file, nested as in a recipe.
        names: The same settings, as the command line names them.
        lines: What is to be said about it.
        picture: Folder of the event file, if there is one.
    """

    settings: Settings = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    picture: Path | None = None

    def set(self, value: object, *keys: str) -> None:
        """Put a value where a recipe has it."""
        place = self.settings
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = value
        self.names.add(".".join(key for key in keys if key != "init_args"))


class Session(Trial):
    """The verb `fit` with measurements instead of a run.

    Args:
        request: A new run's.
        parts: Which of ``PARTS`` are measured.
        progress: Is told what goes on.
    """

    def __init__(
        self, request: Request, parts: Collection[str], progress: Callable[[str], None]
    ) -> None:
        self.tuned, self.parts, self.progress = Tuned(), parts, progress
        super().__init__(request)

    def fit(self, model: LightningModule, datamodule: LightningDataModule) -> None:
        """Measure, each part with what the one before has found."""
        config = self._dumped()
        seed = int(config.get("seed_everything") or 0)
        self.bench = Bench(model, datamodule, config["trainer"], seed, self.nowhere)
        self.config, self.changes = config["model"], {}
        # The batch size that the rate is given for; the task multiplies it.
        self.scale = (self.config.get("init_args") or {}).get("scale_lr")
        measures = {"workers": self._workers, "precision": self._precision}
        measures |= {"batch_size": self._batch_size, "lr": self._rate}
        for part in PARTS:
            if part in self.parts:
                self.progress(f"measuring {part}")
                measures[part]()

    changes: dict[str, Any]  # attributes of the data module, as measured

    def _workers(self) -> None:
        rates = workers.measure(self.bench)
        if rates and workers.repeats(self.bench):
            self._say("workers", "not measured: each of them gives all samples of the data set")
            self._say("", "share them out in its __iter__: torch.utils.data.get_worker_info()")
            return
        if not rates:
            self._say("workers", "not measured: the data module has no num_workers to set")
            return
        best = workers.best(rates)
        told = ", ".join(f"{count}: {value:,.0f}" for count, value in rates.items())
        self._say("workers", f"{best}; samples per second with {told}")
        self.tuned.set(best, "data", "init_args", "num_workers")
        self.changes["num_workers"] = best

    def _precision(self) -> None:
        rates = precision.measure(self.bench)
        if len(rates) < 2:
            self._say("precision", "not measured: there is nothing else that would do")
            return
        now, best = next(iter(rates)), precision.best(rates)
        told = ", ".join(f"{kind}: {value:,.0f}" for kind, value in rates.items())
        self._say("precision", str(best))
        self._say("", f"samples per second with {told}")
        if best.precision != now.precision:
            self.tuned.set(best.precision, "trainer", "precision")
        if best.channels_last != now.channels_last:
            self.tuned.set(best.channels_last, "model", "init_args", "channels_last")
        self.bench = precision.otherwise(self.bench, best)

    def _batch_size(self) -> None:
        found = batch_size.measure(self.bench, self.progress)
        if found is None:
            self._say("batch size", "not measured: the data have no batch_size to set or no length")
            return
        best, tried = found.best, found.tried
        told = ", ".join(f"{size}: {tried[size].rate:,.0f}" for size in sorted(tried))
        self._say("batch size", f"{best}; samples per second with {told}")
        why = found.end or (
            "the training set has no more" if found.largest == found.samples else "no more fits"
        )
        steps = batch_size.STEPS_PER_EPOCH
        self._say("", f"the largest that fits is {found.largest}: {why}")
        if best == found.now:
            self._say("", f"{best} is kept: no faster one leaves an epoch {steps} steps or more")
        else:
            self._say("", f"{best} is as fast as any that leaves an epoch {steps} steps or more")
        self.tuned.set(best, "data", "init_args", "batch_size")
        self.changes["batch_size"] = best
        self._imply(found)

    def _imply(self, found: batch_size.Sizes) -> None:
        """Say which learning rate goes with the batch size; note it if none is measured."""
        keys, now = rate_setting(self.config)
        optimizer = (self.config.get("init_args") or {}).get("optimizer")
        if now is None or not isinstance(optimizer, dict) or self.scale:
            return  # scale_lr does it
        kind = find_class(optimizer["class_path"])
        for size in dict.fromkeys((found.largest, found.best)):
            implied, rule = batch_size.implied_rate(now, kind, size / found.now)
            implied = float(f"{implied:.2g}")
            if size != found.now:
                self._say("", f"with {size}, lr {now:g} becomes {implied:g} ({rule} rule)")
            if size == found.best != found.now:
                self._set_rate(implied, keys)

    def _rate(self) -> None:
        changes = {key: value for key, value in self.changes.items() if key == "batch_size"}
        found = rate.measure(self.bench, **changes)
        if found.rates:
            folder = self.request.root / self.request.experiment / "tune"
            self.tuned.picture = picture.write(found, folder)
        keys, now = rate_setting(self.config)
        if not found.losses:
            self._say("lr", "none suggested: training_step returns no loss, or one that is NaN")
        elif found.rate is None:
            kept = "none suggested" if now is None else f"lr {now:g} is kept"
            self._say("lr", f"no clear descent, the loss falls by no more than chance: {kept}")
        elif not keys:
            self._say("lr", f"{found.rate:g}, but the task has no setting for it that is known")
        else:
            size = self.changes.get("batch_size", getattr(self.bench.data, "batch_size", 1))
            value = float(f"{found.rate * (self.scale or size) / size:.2g}")
            self._say("lr", f"{value:g}" + ("" if now is None else f", which was {now:g}"))
            self._set_rate(value, keys)

    def _set_rate(self, value: float, keys: list[str]) -> None:
        """Note it with the class of the optimizer or schedule: for another it would be wrong."""
        if len(keys) > len(["model", "init_args", "lr"]):
            owner = self.config["init_args"][keys[2]]
            self.tuned.set(owner["class_path"], *keys[:3], "class_path")
        self.tuned.set(value, *keys)

    def _say(self, name: str, line: str) -> None:
        self.tuned.lines.append(f"{name:<12}{line}")


def rate_setting(config: dict[str, Any]) -> tuple[list[str], float | None]:
    """Return where a task's configuration has its learning rate, and the rate.

    Args:
        config: The block ``model``.

    Returns:
        No keys if there is no such setting; None for a rate that is the optimizer's own default.
    """
    arguments = config.get("init_args") or {}
    optimizer, scheduler = arguments.get("optimizer"), arguments.get("scheduler")
    if isinstance(scheduler, dict) and "max_lr" in (peaks := scheduler.get("init_args") or {}):
        # OneCycleLR and CyclicLR: the optimizer's own has no effect.
        return ["model", "init_args", "scheduler", "init_args", "max_lr"], peaks["max_lr"]
    if isinstance(optimizer, dict):
        rate = (optimizer.get("init_args") or {}).get("lr")
        return ["model", "init_args", "optimizer", "init_args", "lr"], rate
    for name in ("lr", "learning_rate"):
        if name in arguments:
            return ["model", "init_args", name], arguments[name]
    return [], None
