"""The verbs fit, validate, test and predict, from settings to a result: our LightningCLI."""

import contextlib
import copy
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import _get_rank
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from project import cores, disk, endings, lean, predicting, pretrained, quiet, report, watchers
from project.from_data import fill_from_data, keep_found
from project.mistakes import UserError, innermost
from project.parser import QUICK_YAML, Parser, namespace, parse, substitute
from project.recipes import DEFAULTS, load_yaml, read_config
from project.record import RunRecord
from project.request import Request
from project.resume import already_done, load_weights
from project.runs import check_loadable, discard_unrecorded, find_class, new_run

# Arguments of the trainer's methods that are ours to give.
_GIVEN = {"model", "datamodule", "ckpt_path", "weights_only"}
SKIPPED = {
    "fit": _GIVEN | {"train_dataloaders", "val_dataloaders"},
    "validate": _GIVEN | {"dataloaders", "verbose"},
    "test": _GIVEN | {"dataloaders", "verbose"},
    "predict": _GIVEN | {"dataloaders", "return_predictions"},
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
        quiet.plain_warnings()
        for file in (request.ckpt_path, request.init_from):
            if file is not None:
                check_loadable(file)
        endings.on_sudden_end(self._end_suddenly)
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
        except BaseException as error:
            self._put_in_order(error)
            if known := self._mistake(error):
                raise UserError(known) from error
            raise

    def _mistake(self, error: BaseException) -> str | None:
        """Say what the user has to change if that is why Lightning or torch refused to go on."""
        if refused := disk.refusal(error, self.run_dir):
            return refused
        text = str(error)
        if "Error(s) in loading state_dict" in text and self.request.run is not None:
            differ = report.changes(self._of_the_run(), self._dumped())
            changed = [f"{key} {old} -> {new}" for key, old, new in differ if "model" in key]
            why = f" Changed: {', '.join(changed)}." if changed else ""
            return f"{self.request.ckpt_path} does not fit this network.{why}"
        last = traceback.extract_tb(error.__traceback__)[-1:]
        theirs = isinstance(error, ValueError) and "lightning" in Path(last[0].filename).parts
        return text if theirs or isinstance(error, MisconfigurationException) else None

    def _end_suddenly(self, reason: str) -> None:
        """Do so, and say how to go on; maybe in the middle of a print, so past Python's streams."""
        self._put_in_order(reason)
        if self.record and self.record.record:
            line = f"\nThe run was {reason}. Go on with: lightning fit --resume {self.run_dir}\n"
            os.write(sys.stderr.fileno(), line.encode())

    def _put_in_order(self, reason: BaseException | str) -> None:
        """Leave no folder of a run that never began, and no record of one that seems to go on."""
        if self.record:
            self.record.failed(reason)
            if isinstance(reason, SystemExit) and self.record.record:
                reason.code = reason.code or endings.FAILED  # whoever calls it, the run is not done
        if self.request.run is None:
            trainer = vars(self).get("trainer")  # none yet if that refused its settings
            began = trainer is not None and trainer.global_step > 0
            discard_unrecorded(self.run_dir, recorded=isinstance(reason, UserError) and not began)

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
        for key, value in read_config(DEFAULTS).items():
            if isinstance(value, dict) and "class_path" in value:
                of_io = issubclass(find_class(value["class_path"]), CheckpointIO)
                kind: Any = CheckpointIO if of_io else Callback
                parser.add_argument(f"--{key}", type=kind | None, help="A class, or null.")
                parser.callback_keys.append(key)
        parser.add_lightning_class_args(self._datamodule_class, "data", subclass_mode=True)
        parser.add_lightning_class_args(self._model_class, "model", subclass_mode=True)
        names = ("resume", "init_from") if self.request.verb == "fit" else ("run",)
        for name in names:
            parser.add_argument(f"--{name}", type=str | None, help="Folder of a run, or last.")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:  # noqa: ANN401
        """Parse, and tell a mistake in one to three lines."""
        verb_parser = self._subcommand_parsers[self.request.verb]
        self.config = parse(parser, args or self.request.args, verb_parser, self.request.asked)

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
            data = namespace({"data": self.settings.data})
            self.config_dump = self._dump(data)  # while the numbers that follow are still open
            only_data = namespace({self.request.verb: data})
            self.datamodule = self.parser.instantiate_classes(only_data)[self.request.verb].data
            del self.config_dump
            keep_found(self.settings.data, self.datamodule)
            typed = self.request.typed
            fill_from_data(self.settings.model, "model", self.datamodule, typed)
            net = (self.settings.model.get("init_args") or {}).get("net")
            fill_from_data(net, "model.net", self.datamodule, typed)
            keys = self._parser(self.subcommand).callback_keys
            watchers.fill_modes(self.settings, keys, typed)
            if self.request.verb == "fit":
                watchers.check_something_is_trained(self.settings.trainer)
            config: Namespace = substitute(self.config.clone(), self._words())
            config[self.request.verb].data = None
            # A checkpoint brings all weights: neither a network connection nor a file is needed.
            has_weights = self.request.ckpt_path is not None
            with pretrained.left_out() if has_weights else contextlib.nullcontext():
                self.config_init = self.parser.instantiate_classes(config)
            self.model = self._get(self.config_init, "model")
            if self.request.verb == "fit":
                blocks = {key: self._get(self.config_init, key) for key in keys}
                watchers.check_monitors(blocks, getattr(self.model, "logged", None))
            self.trainer = self.instantiate_trainer()
            cores.divide(self.trainer.num_devices)
            endings.keep_lightning_out(self.trainer)
        except (ValueError, ImportError, MisconfigurationException) as error:
            raise UserError(innermost(str(error))) from error

    def _words(self) -> dict[str, str]:
        """Return what stands for ``{run_dir}`` and the like, making the folder of a new run."""
        request = self.request
        folder = request.root / request.experiment / "none"  # nothing is ever written there
        if request.run is not None:
            folder = request.run.path
            self.run_dir = folder if request.verb == "fit" and not _get_rank() else None
        elif not self.settings.trainer.fast_dev_run and not _get_rank():
            folder = self.run_dir = new_run(request.root, request.experiment)
        return {"run_dir": str(folder), "run": folder.name, "experiment": request.experiment}

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        """Leave out the callbacks that are null or that another setting has switched off."""
        kept = watchers.kept(config, callbacks, self.request.verb)
        if self.request.verb == "fit" and not config["fast_dev_run"]:
            dump = self._dumped()
            for callback in kept:
                if hasattr(callback, "run_config"):  # it wants to know how the run is configured
                    callback.run_config = dump
            seed, best = self.settings.seed_everything, self._best_keeper()
            self.record = RunRecord(self.request, dump, seed, self.run_dir, best)
            kept.append(self.record)
        try:
            trainer = super()._instantiate_trainer(config, kept)
        except TypeError as error:  # of Lightning, for example about `devices`
            raise UserError(f"The trainer refuses its settings: {error}") from error
        return lean.trim(trainer, self.model)

    def _best_keeper(self) -> ModelCheckpoint | None:
        """Return the callback that chooses the best checkpoint, whatever others there are."""
        block = self._get(self.config_init, "checkpoint", default=None)
        return block if isinstance(block, ModelCheckpoint) else None

    def fit(self, model: LightningModule, datamodule: LightningDataModule) -> None:
        """Train, then test the best checkpoint and say where everything is."""
        if self.request.run is not None:
            differ = report.changes(self._of_the_run(), self._dumped())
            if done := already_done(
                self.request.run, self._dumped()["trainer"], [d[0] for d in differ]
            ):
                return report.say(done)
            report.show_checkpoint(self.request, differ)
        if self.request.init_from is not None:
            left = load_weights(model, self.request.init_from)
            report.show_init(self.request.init_from, left)
        self.trainer.fit(
            model, datamodule=datamodule, ckpt_path=self.request.ckpt_path, weights_only=True
        )
        scores: dict[str, float] = dict(self.record.scores) if self.record else {}
        keeper = self._best_keeper()
        ends = report.ends(self.trainer, keeper)  # the test loads the best checkpoint's state
        has_test = getattr(datamodule, "has_test", True)
        if self.trainer.limit_test_batches and not has_test:
            report.say("Test   none: the data have no test split")
        elif self.trainer.limit_test_batches:
            best = getattr(keeper, "best_model_path", "") or None
            for tested in self.trainer.test(
                model, datamodule=datamodule, ckpt_path=best, weights_only=True, verbose=False
            ):
                scores |= tested
        if self.record:
            self.record.end("finished", scores=scores)
        report.show_fit(scores, self.trainer, model, time.time() - self.began, self.run_dir, ends)

    def validate(self, model: LightningModule, datamodule: LightningDataModule) -> None:
        """Evaluate a run's checkpoint on the validation split."""
        self._show_checkpoint()
        scores = self.trainer.validate(model, datamodule=datamodule, **self._checkpoint())
        report.show_scores(scores, model)

    def test(self, model: LightningModule, datamodule: LightningDataModule) -> None:
        """Evaluate a run's checkpoint on the test split."""
        self._show_checkpoint()
        scores = self.trainer.test(model, datamodule=datamodule, **self._checkpoint())
        report.show_scores(scores, model)

    def predict(self, model: LightningModule, datamodule: LightningDataModule) -> None:
        """Write a run's predictions for the given images or the data module's predict split."""
        self._show_checkpoint()
        asked = predicting.prepare(self.request, model, datamodule)
        file = self.request.ckpt_path
        self.trainer.predict(model, None, asked, False, ckpt_path=file, weights_only=True)

    def _show_checkpoint(self) -> None:
        report.show_checkpoint(self.request, report.changes(self._of_the_run(), self._dumped()))

    def _dump_config(self) -> None:
        """Note all settings, once, for the checkpoints of what is built from them."""
        if not hasattr(self, "config_dump"):
            self.config_dump = self._dump(self.settings)

    def _dump(self, settings: Namespace) -> dict[str, Any]:
        parser = self._parser(self.subcommand)
        text = parser.dump(settings, format=QUICK_YAML, skip_none=False, skip_validation=True)
        dump: dict[str, Any] = load_yaml(text)
        return dump

    def _dumped(self) -> dict[str, Any]:
        """Return the configuration as YAML would hold it, without what only this command needs."""
        self._dump_config()
        dump = copy.deepcopy(self.config_dump)
        return {key: dump[key] for key in dump if key not in ("run", "resume", "init_from")}

    def _of_the_run(self) -> dict[str, Any]:
        assert self.request.run is not None
        config: dict[str, Any] = load_yaml(self.request.run.config.read_text())
        return config

    def _checkpoint(self) -> dict[str, Any]:
        return {"ckpt_path": self.request.ckpt_path, "weights_only": True, "verbose": False}
