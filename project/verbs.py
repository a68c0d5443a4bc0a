"""The verbs fit, validate, test and predict, from settings to a result: our LightningCLI."""

import argparse
import re
import time
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import _get_rank
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, LearningRateMonitor, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from project import report
from project.mistakes import UserError, did_you_mean, explain, innermost
from project.parser import Parser, Told, fill_from_data, namespace, substitute
from project.record import RunRecord
from project.request import CONFIGS, Request
from project.runs import discard_if_empty, new_run

DEFAULTS = CONFIGS / "default.yaml"
SKIPPED = {
    "fit": {
        "model",
        "train_dataloaders",
        "val_dataloaders",
        "datamodule",
        "ckpt_path",
        "weights_only",
    },
    "validate": {"model", "dataloaders", "datamodule", "ckpt_path", "weights_only", "verbose"},
    "test": {"model", "dataloaders", "datamodule", "ckpt_path", "weights_only", "verbose"},
    "predict": {
        "model",
        "dataloaders",
        "datamodule",
        "ckpt_path",
        "weights_only",
        "return_predictions",
    },
}


class Command(LightningCLI):
    """One verb, from its settings to its result.

    Args:
        request: What the command line asks for.

    Raises:
        UserError: If a setting does not exist, has the wrong type or contradicts another.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.run_dir: Path | None = None
        self.record: RunRecord | None = None
        self.began = time.time()
        parser_kwargs = {
            "exit_on_error": False,
            "allow_abbrev": False,
            "default_config_files": [str(DEFAULTS)],
        }
        try:
            super().__init__(
                save_config_callback=None,
                seed_everything_default=42,
                parser_class=Parser,
                parser_kwargs={
                    "exit_on_error": False,
                    "allow_abbrev": False,
                    request.verb: parser_kwargs,
                },
                subclass_mode_model=True,
                subclass_mode_data=True,
                auto_configure_optimizers=False,
                args=request.args,
            )
        except BaseException:
            discard_if_empty(self.run_dir)  # it failed before there was anything to record
            raise

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Return the verb at hand alone: the parsers of the others would triple the start-up."""
        return {self.request.verb: SKIPPED[self.request.verb]}

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the seed and the experiment's name."""
        super().add_default_arguments_to_parser(parser)
        parser.add_argument(
            "--experiment", type=str | None, default=None, help="Folder of the run below logs/."
        )

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add trainer, the callbacks that ``default.yaml`` names, data and model, in this order."""
        parser.add_lightning_class_args(Trainer, "trainer")
        for key, value in yaml.safe_load(DEFAULTS.read_text()).items():
            if isinstance(value, dict) and "class_path" in value:
                parser.add_argument(
                    f"--{key}", type=Callback | None, default=None, help="A callback, or null."
                )
                parser.callback_keys.append(key)
        parser.add_lightning_class_args(self._datamodule_class, "data", subclass_mode=True)
        parser.add_lightning_class_args(self._model_class, "model", subclass_mode=True)
        if self.request.verb != "fit":
            parser.add_argument(
                "--run", type=str | None, default=None, help="Folder of a run, or last."
            )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:  # noqa: ANN401
        """Parse, and tell a mistake in one to three lines."""
        try:
            self.config = parser.parse_args(args)
        except argparse.ArgumentError as error:
            told = error.innermost() if isinstance(error, Told) else error
            verb_parser = self._subcommand_parsers[self.request.verb]
            at_fault = told.parser if isinstance(told, Told) else verb_parser
            if re.search("unrecognized arguments|Subcommand|Group", str(told)):
                at_fault = verb_parser
            known = [a.dest for a in at_fault._actions if a.dest not in ("help", "config")]
            inner = isinstance(at_fault, Parser) and at_fault is not verb_parser
            where = getattr(at_fault, "owner", "") if inner else f"lightning {self.request.verb}"
            raise UserError(explain(str(told), known, where)) from None

    def _parse_ckpt_path(self) -> None:
        """Do nothing: Lightning would let a checkpoint's settings beat the command line."""

    @property
    def settings(self) -> Namespace:
        """The configuration below the verb."""
        found: Namespace = self.config[self.request.verb]
        return found

    def instantiate_classes(self) -> None:
        """Build the data module, then what it answers for, task and network; then the trainer."""
        try:
            only_data = namespace({self.request.verb: namespace({"data": self.settings.data})})
            self.datamodule = self.parser.instantiate_classes(only_data)[self.request.verb].data
            del self.config_dump  # made while the numbers that follow were still open
            fill_from_data(self.settings.model, "model", self.datamodule)
            fill_from_data(self.settings.model.init_args.get("net"), "model.net", self.datamodule)
            config: Namespace = substitute(self.config.clone(), self._words())
            config[self.request.verb].data = None
            self.config_init = self.parser.instantiate_classes(config)
            self.model = self._get(self.config_init, "model")
            self._check_monitors()
            self.trainer = self.instantiate_trainer()
        except (ValueError, ImportError, MisconfigurationException) as error:
            raise UserError(innermost(str(error))) from error

    def _words(self) -> dict[str, str]:
        """Return what stands for ``{run_dir}`` and the like, making the folder of a new run."""
        request = self.request
        folder = request.root / request.experiment / "none"  # nothing is ever written there
        if request.run is not None:
            folder = request.run.path
        elif not self.settings.trainer.fast_dev_run and not _get_rank():
            folder = self.run_dir = new_run(request.root, request.experiment)
        return {"run_dir": str(folder), "run": folder.name, "experiment": request.experiment}

    def _check_monitors(self) -> None:
        """Refuse the name of a metric that the task never logs before any data is loaded."""
        logged = getattr(self.model, "logged", None)
        for key in self._parser(self.subcommand).callback_keys:
            monitor = getattr(self._get(self.config_init, key), "monitor", None)
            if logged and monitor and monitor not in logged:
                hint = did_you_mean(monitor, logged) or f" There are: {', '.join(logged)}."
                raise UserError(f"{key}.monitor is {monitor!r}, which the task does not log.{hint}")

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        """Leave out the callbacks that are null or that another setting has switched off."""
        if self.request.verb != "fit":
            config["logger"] = False
        trial = bool(config["fast_dev_run"])
        if trial:
            config["enable_checkpointing"] = False  # Lightning would still write a last.ckpt
        off: tuple[type[Callback], ...] = ()
        off += (LearningRateMonitor,) if trial or config["logger"] is False else ()
        off += (Checkpoint,) if config["enable_checkpointing"] is False else ()
        off += (ProgressBar,) if config["enable_progress_bar"] is False else ()
        kept = [c for c in callbacks if c is not None and not isinstance(c, off)]
        if self.request.verb == "fit" and not trial:
            dump = self._parser("fit").dump(self.settings, skip_none=False)
            for callback in kept:
                if hasattr(callback, "config"):  # one that wants to know how the run is configured
                    callback.config = yaml.safe_load(dump)
            self.record = RunRecord(self.request, dump, self.settings.seed_everything, self.run_dir)
            kept.append(self.record)
        return super()._instantiate_trainer(config, kept)

    def fit(self, model: LightningModule, datamodule: LightningDataModule) -> None:
        """Train, then test the best checkpoint and say where everything is."""
        self.trainer.fit(model, datamodule=datamodule)
        scores: dict[str, float] = dict(self.record.scores) if self.record else {}
        if self.trainer.limit_test_batches:
            best = getattr(self.trainer.checkpoint_callback, "best_model_path", "") or None
            for tested in self.trainer.test(
                model, datamodule=datamodule, ckpt_path=best, weights_only=True, verbose=False
            ):
                scores |= tested
        if self.record:
            self.record.end("finished", scores=scores)
        report.show_fit(scores, self.trainer, time.time() - self.began, self.run_dir)

    def validate(self, model: LightningModule, datamodule: LightningDataModule) -> None:
        """Evaluate a run's checkpoint on the validation split."""
        report.show_checkpoint(self.request)
        report.show_scores(
            self.trainer.validate(model, datamodule=datamodule, **self._checkpoint())
        )

    def test(self, model: LightningModule, datamodule: LightningDataModule) -> None:
        """Evaluate a run's checkpoint on the test split."""
        report.show_checkpoint(self.request)
        report.show_scores(self.trainer.test(model, datamodule=datamodule, **self._checkpoint()))

    def predict(self, model: LightningModule, datamodule: LightningDataModule) -> None:
        """Write a run's predictions for the data module's predict split into the run's folder."""
        report.show_checkpoint(self.request)
        self.trainer.predict(
            model,
            datamodule=datamodule,
            return_predictions=False,
            ckpt_path=self.request.ckpt_path,
            weights_only=True,
        )

    def _checkpoint(self) -> dict[str, Any]:
        return {"ckpt_path": self.request.ckpt_path, "weights_only": True, "verbose": False}
