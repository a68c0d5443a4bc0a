"""What a check may use: copies of the task, batches, short trainings."""

import copy
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from project.doctor.copies import (
    as_datamodule,
    as_they_are,
    copied,
    copied_task,
    has_loader,
    stand_in,
)
from project.doctor.given import made_by_the_step
from project.doctor.loop import (
    Broken,
    Lesson,
    Recorder,
    Repeated,
    metrics,
    of_the_user,
    watch,
)
from project.doctor.originals import Originals
from project.doctor.reading import SETTINGS, STAGES, Reading, read
from project.doctor.registry import Skip
from project.doctor.structures import clone, forward_of, pair, tensor_in
from project.short_training import quiet_trainer


class Subject:
    """A task with its data, to be looked at.

    Nothing that a check does here reaches the originals.

    Args:
        task: Stays as it is.
        data: A data module, loaders as a Trainer takes them or by split, or None for the task's.
        settings: The resolved configuration, empty from Python.
        seconds: Time for all checks.
    """

    def __init__(
        self,
        task: L.LightningModule,
        data: object = None,
        settings: Mapping[str, Any] | None = None,
        seconds: float = 45.0,
    ) -> None:
        self._task, self._data = task, data
        self.settings: dict[str, Any] = copy.deepcopy(dict(settings or {}))
        self.trainer_settings: dict[str, Any] = self.settings.get("trainer") or {}
        self.seed = int(self.settings.get("seed_everything") or 0)
        self.end = self.check_end = time.monotonic() + seconds
        self._readings: dict[tuple[str, int], Reading] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="doctor-")
        self.folder = Path(self._folder.name)
        self._stages: set[str] = set()
        self.kept, self.trained = Originals(task), False  # trained: with a checkpoint's weights
        self.other_inputs = False  # whether training gives forward nothing, or more than inputs
        self.memo: dict[str, Any] = {}  # see once
        self._ready_data: L.LightningDataModule | Broken | None = None

    def close(self) -> None:
        """Remove the folder of this doctor, and what it has kept."""
        self.memo.clear()
        self._folder.cleanup()

    @property
    def seconds_left(self) -> float:
        """Time left for the check that runs."""
        return min(self.check_end, self.end) - time.monotonic()

    def fresh_task(self) -> L.LightningModule:
        """Return a new copy of the task, weights and modes as given."""
        return copied_task(self._task)

    @property
    def datamodule(self) -> L.LightningDataModule:
        """The data module, set up to train and validate; shared by all checks, only to look at.

        Raises:
            Broken: If it cannot be set up.
        """
        if self._ready_data is None:
            try:
                self._ready_data = self._set_up()
            except Broken as error:
                self._ready_data = error
        if isinstance(self._ready_data, Broken):
            raise self._ready_data
        return self._ready_data

    def _set_up(self) -> L.LightningDataModule:
        with of_the_user():
            data = copied(as_datamodule(self._data, self._task))
            data.trainer = self.make_trainer()
            data.prepare_data()
            data.setup("fit")
        return data

    def _ready(self, split: str) -> L.LightningDataModule:
        """Return the data module, set up for a split.

        Raises:
            Skip: If it has no such split.
        """
        data = self.datamodule
        late = split in ("test", "predict")
        if not has_loader(data, split) or (late and not getattr(data, "has_test", True)):
            raise Skip(f"the data has no {split} split")
        if late and split not in self._stages:
            with of_the_user():
                data.setup(split)
            self._stages.add(split)
        return data

    def make_trainer(self, *callbacks: Callback, **settings: Any) -> L.Trainer:
        """Build a Trainer of the user's settings but for these; see ``quiet_trainer``."""
        return quiet_trainer(self.trainer_settings, self.folder, callbacks, **settings)

    def reading(self, split: str, count: int, seed: int | None = None) -> Reading:
        """Read the first batches of a split; remembered, so only to look at.

        Args:
            split: train, val, test or predict.
            count: How many batches; fewer come where the split is shorter or time is short.
            seed: What random numbers begin with; another one is another pass.

        Raises:
            Skip: If there is no such split.
        """
        key = (split, self.seed if seed is None else seed)
        known = self._readings.get(key)
        if known is None or (len(known.batches) < count and not known.complete):
            limit: dict[str, Any] = {f"limit_{split}_batches": count}
            if split == "train":
                limit |= SETTINGS
            data = stand_in(self._ready(split))
            L.seed_everything(key[1], workers=True, verbose=False)
            trainer = self.make_trainer(**limit)
            deadline = time.monotonic() + max(self.seconds_left, 0.5)
            known = read(split, count, trainer, self.fresh_task(), data, deadline)
            self._readings[key] = known
        return known

    def batches(self, split: str, count: int = 1, seed: int | None = None) -> list[Any]:
        """Return the first batches as the network gets them, augmented in training; see reading."""
        return [clone(batch) for batch in self.reading(split, count, seed).batches[:count]]

    def raw(self, split: str, count: int = 1, seed: int | None = None) -> list[Any]:
        """Return the same batches as the loader collates them, before any transfer."""
        return [clone(batch) for batch in self.reading(split, count, seed).raw[:count]]

    def pairs(self, split: str, count: int = 1) -> list[tuple[Tensor, Tensor]]:
        """Return the first batches as (inputs, targets); training inputs as forward gets them.

        Raises:
            Skip: If batches are built in another way, or if there are none.
        """
        batches = self.batches(split, count)
        if not (found := list(map(pair, batches))):
            raise Skip(f"the {split} split has no batch")
        return made_by_the_step(self, batches, found) if split == "train" else found

    def loader(self, split: str) -> Any:  # noqa: ANN401
        """Return the first loader of a split as the user has made it, workers included."""
        with of_the_user():
            loaders = getattr(self._ready(split), f"{split}_dataloader")()
        return loaders[0] if isinstance(loaders, list | tuple) else loaders

    def dataset(self, split: str) -> Any:  # noqa: ANN401
        """Return the dataset of a split.

        Raises:
            Skip: If its loader has none.
        """
        loader = self.loader(split)
        if not hasattr(loader, "dataset"):
            raise Skip(f"the {split} loader, a {type(loader).__name__}, has no dataset")
        return loader.dataset

    def splits(self) -> list[str]:
        """Return those of train, val and test that there are."""
        data = self.datamodule
        known = ("train", "val", "test") if getattr(data, "has_test", True) else ("train", "val")
        return [split for split in known if has_loader(data, split)]

    @property
    def num_classes(self) -> int | None:
        """Number of classes, as the data says, else the task; None where neither does."""
        for owner in (self.datamodule, self._task, self._task.hparams):
            found = getattr(owner, "num_classes", None)
            if isinstance(found, int):
                return found
        return None

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, as the data says, else the task."""
        for owner in (self.datamodule, self._task):
            names = getattr(owner, "class_names", None)
            if names is not None:
                return [str(name) for name in names]
        return None

    def logits(self, task: L.LightningModule, images: Tensor) -> Tensor:
        """Return what ``forward`` gives, in whatever mode the task is, with its graph.

        Raises:
            Skip: If the task has no ``forward`` or it gives no tensor.
        """
        run = forward_of(task)
        try:
            with of_the_user():
                output = run(images.to(task.device).clone())  # a network may change it
        except Broken as error:
            if self.other_inputs:
                raise Skip("training uses no forward, and it takes something else") from error
            raise
        found = tensor_in(output)
        if found is None:
            raise Skip(f"forward gives no tensor but {type(output).__name__}")
        return found

    def train(
        self,
        task: L.LightningModule | None = None,
        steps: int = 30,
        batches: Sequence[Any] | None = None,
        callbacks: Sequence[Callback] = (),
        ckpt_path: Path | None = None,
        **trainer: Any,
    ) -> Lesson:
        """Train for some optimizer steps in a real Lightning loop.

        Optimizer, schedule and clipping are the user's; a batch is validated at an epoch's end.

        Args:
            task: A copy, which is changed; by default a fresh one.
            steps: Optimizer steps; fewer if the time of the check is over.
            batches: What to train on, as the network gets it; by default the data's.
            callbacks: Callbacks of the check.
            ckpt_path: A checkpoint to go on from.
            trainer: Settings of Trainer that are to be otherwise.

        Raises:
            Broken: If the user's code raises.
            Skip: If there is nothing to train on.
        """
        task = task or self.fresh_task()
        lesson = Lesson(task, self.make_trainer(*callbacks, **trainer))
        data = self.loop_data(batches, steps * lesson.trainer.accumulate_grad_batches)

        def fit(recorder: Recorder) -> None:
            lesson.trainer.callbacks.append(recorder)  # type: ignore[attr-defined]
            lesson.trainer.fit(task, datamodule=data, ckpt_path=ckpt_path, weights_only=True)

        end = time.monotonic() + max(self.seconds_left, 0.5)
        return watch(lesson, Recorder(lesson, steps, end, self.kept.ids), fit)

    def loop_data(
        self, batches: Sequence[Any] | None = None, length: int = 1
    ) -> L.LightningDataModule:
        """Return a data module for one loop of a Trainer.

        Args:
            batches: What to train on instead of the data's batches, as the network gets it.
            length: Batches of an epoch, where ``batches`` are given.
        """
        data = self._ready("train")
        if batches is None:
            return stand_in(data)
        if not batches:
            raise Skip("there is no batch to train on")
        return stand_in(data, **as_they_are(data, lambda: Repeated(batches, length)))

    def evaluate(
        self, task: L.LightningModule | None = None, split: str = "val", count: int = 1
    ) -> dict[str, float]:
        """Evaluate on the first batches of val or test; return what was logged.

        Raises:
            Broken: If the user's code raises.
            Skip: If there is no such split.
        """
        trainer = self.make_trainer(**{f"limit_{split}_batches": count})
        data = stand_in(self._ready(split))
        with of_the_user():
            task = task or self.fresh_task()
            getattr(trainer, STAGES[split])(task, datamodule=data, verbose=False)
        return metrics(trainer)
