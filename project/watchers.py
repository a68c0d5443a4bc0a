"""Which callbacks and plugins a trainer gets, and whether what they watch exists."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.callbacks import (
    BasePredictionWriter,
    Callback,
    Checkpoint,
    LearningRateMonitor,
    ModelCheckpoint,
    ProgressBar,
)

from project.mistakes import UserError, did_you_mean

# Ends of the names of metrics that get better as they fall, or as they rise.
DIRECTIONS = {"loss": "min", "error": "min", "acc": "max", "accuracy": "max", "f1": "max"}


def kept(config: dict[str, Any], blocks: Iterable[object], verb: str) -> list[Callback]:
    """Return the callbacks that are neither null nor switched off by another setting.

    Args:
        config: The trainer's arguments; logger, checkpointing and plugins are changed in place.
        blocks: What the top-level blocks of the configuration have become.
        verb: fit, validate, test or predict.

    Raises:
        UserError: If nothing would keep the predictions.
    """
    blocks = list(blocks)
    if config["fast_dev_run"] or verb != "fit":  # a trial too would leave a last.ckpt
        config["logger"] = config["enable_checkpointing"] = False
    off: tuple[type[Callback], ...] = ()
    off += (LearningRateMonitor,) if config["logger"] is False else ()
    off += (Checkpoint,) if config["enable_checkpointing"] is False else ()
    off += (ProgressBar,) if config["enable_progress_bar"] is False else ()
    plugins = [block for block in blocks if isinstance(block, CheckpointIO)]
    if plugins:
        given = config["plugins"] or []
        config["plugins"] = [*(given if isinstance(given, list) else [given]), *plugins]
    callbacks = [b for b in blocks if isinstance(b, Callback) and not isinstance(b, off)]
    own = config["callbacks"] if isinstance(config["callbacks"], list) else [config["callbacks"]]
    writers = [c for c in (*callbacks, *own) if isinstance(c, BasePredictionWriter)]
    if verb == "predict" and not writers:
        raise UserError("Nothing would write the predictions: there is no `predictions` callback.")
    return callbacks


def fill_modes(settings: Any, keys: Iterable[str], typed: Collection[str]) -> None:  # noqa: ANN401
    """Let ``mode`` follow a ``monitor`` whose direction its name tells.

    Args:
        settings: The configuration; changed in place.
        keys: Its top-level blocks.
        typed: The settings that the user has given.

    Raises:
        UserError: If the user gave the other mode.
    """
    for key in keys:
        init_args = (settings.get(key) or {}).get("init_args") or {}
        leaf = str(init_args.get("monitor")).rsplit("/", 1)[-1]
        mode = DIRECTIONS.get(leaf.rsplit("_", 1)[-1])
        if mode is None or init_args.get("mode") in (None, mode):
            continue
        if f"{key}.mode" in typed:
            raise UserError(
                f"{key}.mode {init_args['mode']} would take the worst {init_args['monitor']} for "
                f"the best.\nSet --{key}.mode {mode}, or leave it out."
            )
        init_args["mode"] = mode


def check_monitors(blocks: Mapping[str, object], logged: Collection[str] | None) -> None:
    """Refuse the name of a metric that the task never logs before any data is loaded.

    Args:
        blocks: Top-level blocks and what they have become.
        logged: What the task logs; None if it does not say.

    Raises:
        UserError: If a monitor is not logged, or not at the moment of saving.
    """
    for key, block in blocks.items():
        monitor = getattr(block, "monitor", None)
        if logged and monitor and monitor not in logged:
            hint = did_you_mean(monitor, logged) or f" There are: {', '.join(logged)}."
            raise UserError(f"{key}.monitor is {monitor!r}, which the task does not log.{hint}")
        if not isinstance(block, ModelCheckpoint):
            continue
        between = block._every_n_train_steps or block._train_time_interval
        if between and str(monitor).startswith("val/"):
            raise UserError(
                f"{key} would save between validations, under the {monitor} of an older one.\n"
                "To save more often: --autosave.every_n_steps N; to choose the best more "
                "often: --trainer.val_check_interval N"
            )


def check_something_is_trained(trainer: Mapping[str, Any]) -> None:
    """Refuse settings with which no step would be taken.

    Raises:
        UserError: If an end is at zero or is no time, or the run were to be sent to processes.
    """
    limit = trainer.get("max_time")
    if isinstance(limit, str) and not re.fullmatch(r"\d+(:\d\d){3}", limit.strip()):
        raise UserError(
            f"--trainer.max_time cannot be {limit!r}: expected DD:HH:MM:SS, e.g. 00:01:00:00 for "
            "one hour."
        )
    if (trainer.get("gradient_clip_val") or 0) < 0:
        raise UserError(
            f"--trainer.gradient_clip_val cannot be {trainer['gradient_clip_val']}: it is the "
            "largest norm of the gradient.\nGive a number above 0, or null to clip nothing."
        )
    strategy = str(trainer.get("strategy"))
    if "_spawn" in strategy:
        raise UserError(
            f"--trainer.strategy {strategy} would send the run to other processes, but what it "
            f"holds cannot be sent.\nUse --trainer.strategy {strategy.replace('_spawn', '')}, "
            "whose processes start anew."
        )
    for name in ("max_epochs", "max_steps", "limit_train_batches"):
        if trainer.get(name) == 0:
            raise UserError(f"Nothing would be trained: --trainer.{name} is 0.")
