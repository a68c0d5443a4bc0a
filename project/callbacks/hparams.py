"""TensorBoard's HPARAMS tab: which configuration gave which result."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from project.callbacks.board import tensorboard_writer

Plain = bool | int | float | str

# Where a run reads and writes says nothing about what it learns.
_PLACE = re.compile(r"(^|_)(dir|path|file|root)s?$")
_LEFT_OUT = ("logger", "callbacks", "plugins", "profiler")
# TensorBoard opens with five columns of settings; the others are a click away.
_FIRST = ("data", "data.batch_size", "model.net", "model.optimizer", "model.optimizer.lr")
_SECTIONS = ("trainer", "data", "model")


class HParams(Callback):
    """Fill TensorBoard's HPARAMS tab with this run's configuration and its metrics.

    The tab takes the values from the run's own scalars, so that it shows the newest ones. For the
    best checkpoint's score there is one more, after the metric that chooses it: ``val/acc_best``,
    written at the end of each epoch.

    Args:
        metrics: Scalars shown as columns, after the best score. With them TensorBoard takes all
            columns from one of the runs it shows; where they are empty in every run it shows all
            scalars and all settings.
    """

    def __init__(
        self, metrics: Sequence[str] = ("val/loss", "val/acc", "test/loss", "test/acc")
    ) -> None:
        self.metrics = tuple(metrics)
        #: The run's configuration as nested mappings, set by whoever starts the run; the saved
        #: hyperparameters of module and data module stand in where it is left empty.
        self.run_config: dict[str, Any] = {}

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the hyperparameters and the names of the metrics."""
        writer = tensorboard_writer(trainer)
        if writer is None:
            return
        # Here and not above: TensorBoard is only needed where its logger is.
        from tensorboard.plugins.hparams import summary_v2  # type: ignore[import-untyped]

        hparams = flatten_config(self.run_config or _saved_hparams(trainer, pl_module))
        # An empty trial id gives every run its own row, also two runs of one configuration.
        summaries = [summary_v2.hparams_pb(hparams, trial_id="")]
        if self.metrics:
            keeper = _keeper(trainer)
            best = {f"{keeper.monitor}_best": ""} if keeper else {}
            summaries.append(_columns(hparams, best | {tag: _shown(tag) for tag in self.metrics}))
        for summary in summaries:
            writer._get_file_writer().add_summary(summary)  # type: ignore[no-untyped-call]

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the score of the best checkpoint so far."""
        keeper = _keeper(trainer)
        if keeper and keeper.best_model_score is not None:
            best = {f"{keeper.monitor}_best": float(keeper.best_model_score)}
            for logger in trainer.loggers:
                logger.log_metrics(best, step=trainer.global_step - 1)


def _keeper(trainer: L.Trainer) -> ModelCheckpoint | None:
    """Return what keeps the best checkpoint by a metric: the last, after those of one's own."""
    for callback in reversed(trainer.checkpoint_callbacks):
        if isinstance(callback, ModelCheckpoint) and callback.monitor:
            return callback
    return None


def _shown(tag: str) -> str:
    """Heading of a column; a test is of the best checkpoint."""
    return f"{tag} (last)" if tag.startswith("val/") else tag


def _columns(hparams: Mapping[str, Plain], metrics: Mapping[str, str]) -> Any:  # noqa: ANN401
    """TensorBoard's summary that names the columns of the tab: metrics and their headings."""
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    # TensorBoard sorts by name, those said to differ from run to run first.
    settings = [api_pb2.HParamInfo(name=name, differs=name in _FIRST) for name in hparams]
    results = [
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=heading)
        for tag, heading in metrics.items()
    ]
    experiment = api_pb2.Experiment(hparam_infos=settings, metric_infos=results)
    content = plugin_data_pb2.HParamsPluginData(experiment=experiment)
    value = Summary.Value(
        tag=metadata.EXPERIMENT_TAG,
        metadata=metadata.create_summary_metadata(content),
        tensor=metadata.NULL_TENSOR,
    )
    return Summary(value=[value])


def _saved_hparams(trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
    datamodule = getattr(trainer, "datamodule", None)
    return {
        "trainer": {"max_epochs": trainer.max_epochs},
        "data": dict(getattr(datamodule, "hparams", {})),
        "model": dict(pl_module.hparams),
    }


def flatten_config(config: Mapping[str, Any]) -> dict[str, Plain]:
    """The configuration with one short key for every value, ``model.optimizer.lr`` for example.

    A class stands under its own key, without its module, and its arguments below that key. Paths,
    loggers, callbacks and settings that are None are left out.

    Args:
        config: Nested mappings, as in ``config.yaml``.
    """
    kept = {
        key: value
        for key, value in config.items()
        if key in _SECTIONS or not isinstance(value, Mapping)
    }
    return dict(sorted(_flatten(kept, "")))


def _flatten(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Plain]]:
    for key, value in config.items():
        name = f"{prefix}{key}"
        if value is None or key.startswith("_") or key in _LEFT_OUT or _PLACE.search(key):
            continue
        if not isinstance(value, Mapping):
            yield from _plain(name, value)
        elif "class_path" in value:
            yield name, str(value["class_path"]).rpartition(".")[2]
            for arguments in ("init_args", "dict_kwargs"):
                yield from _flatten(value.get(arguments) or {}, f"{name}.")
        else:
            yield from _flatten(value, f"{name}.")


def _plain(name: str, value: object) -> Iterator[tuple[str, Plain]]:
    if isinstance(value, Plain):
        yield name, value
    elif isinstance(value, list | tuple) and all(isinstance(item, Plain) for item in value):
        yield name, str(list(value))
