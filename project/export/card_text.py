"""The sections of a model card, each as lines of Markdown."""

import json
import math
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import yaml

from project.confusion import cell, per_class_table
from project.export.card_limits import UNKNOWN, card_limits, count, known
from project.export.evaluation import Evaluation
from project.export.exported import open_exported
from project.export.facts import images_taken, origin
from project.export.latency import megabytes
from project.export.seen import Seen
from project.runs import CONFIG, DIFF, LoadedRun

PICTURE = "confusion_matrix.png"
_FOLDED = 30  # a table of more classes is folded away
_HOW = {"acc": "Wilson", "f1": "bootstrap"}


class CardText:
    """What a model card says; facts come from the run's files and from the evaluation.

    Args:
        loaded: The run.
        found: Its evaluation.
        seen: Its data.
        exported: A file made of it, if there is one.
    """

    def __init__(
        self, loaded: LoadedRun, found: Evaluation, seen: Seen, exported: Path | None
    ) -> None:
        self.loaded, self.found, self.seen, self.exported = loaded, found, seen, exported
        self.record = loaded.run.record
        self.config: dict[str, Any] = yaml.safe_load(loaded.run.config.read_text())
        self.facts, self.origin = images_taken(loaded), origin(loaded)
        self.names: list[str] = self.facts["class_names"] or []

    @property
    def class_names(self) -> list[str]:
        """Name of every row of the confusion matrix."""
        many = 0 if self.found.counts is None else len(self.found.counts)
        return self.names if len(self.names) == many else [str(label) for label in range(many)]

    def sections(self) -> list[str]:
        """Everything below the notes."""
        limits = card_limits(self.found, self.seen, self.class_names, self._chosen_by())
        size = self.facts["image_size"]
        if size:
            limits.append(f"It sees {size} x {size} px: what is finer than that is lost.")
        listed = ["## Limits", "", *(f"- {line}" for line in limits), ""]
        parts = (self.what(), self.data(), self.results(), self.training(), listed, self.use())
        return [line for part in parts for line in part]

    def title(self) -> list[str]:
        """Name of experiment and run."""
        return [f"# {cell(self.loaded.run.experiment)}, run {self.loaded.run.path.name}"]

    def what(self) -> list[str]:
        """Network, input, output and checkpoint."""
        net = getattr(self.loaded.task, "net", self.loaded.task)
        setting = (self.config["model"].get("init_args") or {}).get("net") or {}
        given = ", ".join(f"{k}={v!r}" for k, v in (setting.get("init_args") or {}).items())
        path = setting.get("class_path") or f"{type(net).__module__}.{type(net).__name__}"
        parameters = sum(parameter.numel() for parameter in net.parameters())
        epoch, step, monitor = self.origin["epoch"], self.origin["step"], self._chosen_by()
        return _section(
            "What it is",
            {
                "task": f"`{self.config['model']['class_path']}`",
                "network": f"`{path}({given})`, {parameters:,} parameters",
                "input": self._images(),
                "classes": self._classes(),
                "checkpoint": f"`{self.origin['checkpoint']}`, epoch {known(epoch)} (from 0), "
                f"step {known(step)}" + (f", the best by {monitor}" if monitor else ""),
            },
        )

    def _images(self) -> str:
        channels, size = self.facts["in_channels"], self.facts["image_size"]
        kind = {1: "grey", 3: "colour"}.get(channels, f"{known(channels)} channels")
        mean, std = self.facts["mean"], self.facts["std"]
        constants = (
            f"mean {_numbers(mean)}, deviation {_numbers(std)} of values in [0, 1]"
            if mean and std
            else f"normalisation {UNKNOWN}"
        )
        return f"images, {kind}, {f'{size} x {size} px' if size else 'of any size'}; {constants}"

    def _classes(self) -> str:
        names = self.names
        shown = ", ".join(names[:_FOLDED]) + (", …" if len(names) > _FOLDED else "")
        return f"{len(names)}: {shown}" if names else UNKNOWN

    def _chosen_by(self) -> str:
        """The score by which the checkpoint was chosen; empty if it is not the best one."""
        block = self.config.get("checkpoint") or {}
        monitor = (block.get("init_args") or {}).get("monitor")
        return str(monitor or "") if self.origin["metrics"] else ""

    def data(self) -> list[str]:
        """Where the images are from, and how they were divided."""
        seen = self.seen
        settings = ", ".join(f"`{name}: {value}`" for name, value in seen.settings.items())
        rows = {
            "module": f"`{seen.class_path}`",
            "images": ", ".join(f"{n} {count(seen.counts[n])}" for n in seen.counts),
            "settings": settings or "those of the module",
        }
        if seen.given is not None:
            is_all = seen.given == ["all"]
            rows["came divided into"] = "nothing" if is_all else ", ".join(seen.given)
        if counts := seen.class_counts:
            rows["a class has"] = f"{min(counts):,} to {max(counts):,} training images"
        # Its paragraphs as a quotation: the words are those of the module's author.
        about = [f"> {line}".rstrip() for line in seen.about.replace("``", "`").splitlines()]
        return [*_section("Data", rows), *about, ""]

    def results(self) -> list[str]:
        """Every metric with its interval, then every class, then the picture."""
        found, intervals = self.found, self.found.intervals
        total = "" if found.counts is None else f" on {int(found.counts.sum()):,} images"
        lines = [
            "## Results",
            "",
            f"Evaluated for this card{total} of the {found.split} split, by {found.device}, "
            f"torch {torch.__version__}.",
            "",
            f"| {found.split} | value | 95 % interval | |",
            "|---|---:|---:|---|",
        ]
        for name, value in found.scores.items():
            low, high = intervals.get(name, (math.nan, math.nan))
            interval = f"{low:.4f} – {high:.4f}" if name in intervals else ""
            lines.append(
                f"| {name} | {value:.4f} | {interval} | {_HOW[name] if interval else ''} |"
            )
        lines += ["", *_intervals_explained(intervals)]
        if found.per_class is not None:
            table = per_class_table(found.per_class, self.class_names).splitlines()
            folded = len(table) > _FOLDED
            lines += ["<details><summary>Every class</summary>", ""] if folded else []
            lines += [*table, ""] + (["</details>", ""] if folded else [])
            lines += [f"![Confusion matrix of the {found.split} split]({PICTURE})", ""]
        return lines

    def training(self) -> list[str]:
        """Command, code, versions, machine and time."""
        record, machine = self.record, self.record.get("hardware") or {}
        versions = record.get("versions") or {}
        rows = {
            "command": f"`{record['command']}`" if record.get("command") else UNKNOWN,
            "settings": f"all in [{CONFIG}]({CONFIG})",
            "seed": known(record.get("seed")),
            "commit": _commit(record),
            "versions": ", ".join(f"{k} {v}" for k, v in versions.items()) or UNKNOWN,
            "hardware": _hardware(machine),
            "trained": f"{known(record.get('epoch'))} epochs, {known(record.get('step'))} steps, "
            f"batches of {known(record.get('batch_size_per_process'))} in "
            f"{known(machine.get('processes'))} process" + "es" * (machine.get("processes") != 1),
            "time": _duration(record),
            "state": self.loaded.run.state
            + (", stopped early" if record.get("stopped_early") else ""),
        }
        for life in record.get("resumed", []):
            rows[f"resumed {life.get('time', '')}"] = f"`{life.get('command', UNKNOWN)}`"
        return _section("Training", rows)

    def use(self) -> list[str]:
        """Commands and code that load it."""
        which = [str(self.loaded.run.path)]
        if not self.origin["metrics"]:  # not the run's best, which is what is taken without a word
            which.append(str(self.loaded.ckpt_path))
        options = zip(("--run", "--ckpt_path"), map(shlex.quote, which), strict=False)
        of_run = " ".join(f"{option} {value}" for option, value in options)
        reads = hasattr(self.loaded.datamodule, "read")  # files, and not only its own splits
        return [
            *("## How to load it", "", "With this project:", "", "```sh"),
            f"lightning predict {of_run}{' images/' if reads else ''}",
            *([f"lightning serve {of_run}"] if reads else []),
            f"lightning export {of_run} --weights  # in weights/, to load elsewhere",
            *("```", "", "```python", "from project.runs import load_run", ""),
            f"loaded = load_run({', '.join(map(json.dumps, which))})",
            'predictions = loaded.predict("images/")' if reads else "logits = loaded.task(images)",
            *("```", ""),
            *self._exported(),
        ]

    def _exported(self) -> list[str]:
        if self.exported is None:
            return []
        about, path = open_exported(self.exported).metadata, str(self.exported)
        serve = f"lightning serve --model {shlex.quote(path)}"
        takes = "uint8 from 0 to 255" if about["preprocess"] else "normalised float32"
        return [
            f"The file `{self.exported.name}` ({about['precision']}, "
            f"{megabytes(self.exported.stat().st_size)}) takes images {takes} and gives "
            f"{'probs' if about['softmax'] else 'logits'}; its metadata say the rest:",
            "",
            *(["```sh", serve, "```", ""] if about["reader"] else []),
            "```python",
            "from project.export.exported import open_exported",
            "",
            f"probs = open_exported({json.dumps(path)}).predict(images)  # (B, C, H, W)",
            "```",
            "",
        ]


def _section(title: str, rows: dict[str, str]) -> list[str]:
    table = [f"| {name} | {cell(value)} |" for name, value in rows.items()]
    return [f"## {title}", "", "| | |", "|---|---|", *table, ""]


def _intervals_explained(intervals: dict[str, Any]) -> list[str]:
    how = {
        "acc": "Accuracy: Wilson's score interval.",
        "f1": "F1 (mean over the classes): percentiles of 1000 bootstrap resamples.",
    }
    said = [how[name] for name in intervals]
    return [" ".join(said), ""] if said else []


def _commit(record: dict[str, Any]) -> str:
    commit, is_dirty = record.get("git_commit"), record.get("git_dirty")
    if commit is None:
        return UNKNOWN
    changes = f"with uncommitted changes: [{DIFF}]({DIFF})" if is_dirty else "nothing uncommitted"
    return f"`{commit}`, {'changes unknown' if is_dirty is None else changes}"


def _duration(record: dict[str, Any]) -> str:
    """Wall time from the start to the end, as far as the record has them."""
    if not record.get("started") or not record.get("ended"):
        return UNKNOWN
    began, ended = (datetime.fromisoformat(record[name]) for name in ("started", "ended"))
    pauses = ", pauses before it was resumed included" if record.get("resumed") else ""
    return f"{ended - began} (h:mm:ss), from {record['started']}{pauses}"


def _hardware(machine: dict[str, Any]) -> str:
    if not machine:
        return UNKNOWN
    gpus = ", ".join(machine.get("gpus") or []) or "no GPU"
    cores, kind = known(machine.get("cpu_cores")), known(machine.get("machine"))
    precision = known(machine.get("precision"))
    return f"{kind}, {cores} CPU cores, {gpus}; {known(machine.get('accelerator'))}, {precision}"


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
