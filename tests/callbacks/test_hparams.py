from types import SimpleNamespace

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

from project.callbacks import HParams
from project.callbacks.hparams import flatten_config

CONFIG = {
    "seed_everything": 7,
    "trainer": {
        "max_epochs": 2,
        "deterministic": True,
        "default_root_dir": "/tmp/x",
        "profiler": "simple",
        "max_time": None,
        "logger": {"class_path": "a.B", "init_args": {"save_dir": "x"}},
        "callbacks": [{"class_path": "a.C"}],
    },
    "checkpoint": {"class_path": "a.Checkpoint", "init_args": {"save_top_k": 1}},
    "data": {
        "class_path": "project.data.DigitsDataModule",
        "init_args": {"batch_size": 64, "data_dir": "data", "csv_file": "x.csv"},
    },
    "model": {
        "class_path": "project.tasks.ClassificationTask",
        "init_args": {
            "net": {"class_path": "project.models.MLP", "init_args": {"hidden_dims": [64, 32]}},
            "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.001}},
            "scheduler": None,
        },
    },
}
FLAT = {
    "seed_everything": 7,
    "trainer.max_epochs": 2,
    "trainer.deterministic": True,
    "data": "DigitsDataModule",
    "data.batch_size": 64,
    "model": "ClassificationTask",
    "model.net": "MLP",
    "model.net.hidden_dims": "[64, 32]",
    "model.optimizer": "AdamW",
    "model.optimizer.lr": 0.001,
}


@pytest.fixture
def tab(tmp_path):
    """What TensorBoard answers to the HPARAMS tab: metric columns, rows of settings and metrics."""

    def read():
        multiplexer = plugin_event_multiplexer.EventMultiplexer()
        multiplexer.AddRun(str(tmp_path), "run").Reload()
        provider = data_provider.MultiplexerDataProvider(multiplexer, str(tmp_path))
        backend = backend_context.Context(SimpleNamespace(data_provider=provider))
        context = RequestContext()
        metadata = backend.hparams_metadata(context, "")
        experiment = backend.experiment_from_metadata(
            context, "", True, metadata, backend.hparams_from_data_provider(context, "", 0)
        )
        columns = [info.name.tag for info in experiment.metric_infos]
        headings = [info.display_name for info in experiment.metric_infos]
        opened = [info.name for info in experiment.hparam_infos][:5]
        request = api_pb2.ListSessionGroupsRequest(
            slice_size=10,
            allowed_statuses=[0, 1, 2, 3],
            col_params=[api_pb2.ColParams(metric={"tag": tag}) for tag in columns],
        )
        groups = list_session_groups.Handler(context, backend, "", request).run().session_groups
        metrics = [{value.name.tag: value.value for value in row.metric_values} for row in groups]
        settings = [set(row.hparams) for row in groups]
        return SimpleNamespace(
            columns=columns,
            headings=headings,
            settings=settings,
            metrics=metrics,
            opened=opened,
            rows=[row.name for row in groups],
        )

    return read


def test_the_tab_shows_the_settings_with_the_runs_own_metrics(
    make_trainer, make_module, data, tab, read_events
):
    hparams = HParams()
    hparams.run_config = CONFIG
    trainer, module = make_trainer(hparams), make_module()
    trainer.fit(module, data)
    trainer.test(module, data, verbose=False)
    shown = tab()
    (settings,), (metrics,) = shown.settings, shown.metrics
    assert shown.columns == ["val/loss", "val/acc", "test/loss", "test/acc"]
    assert settings == set(FLAT)
    assert set(metrics) == set(shown.columns)
    assert metrics["val/loss"] == pytest.approx(read_events().Scalars("val/loss")[-1].value)


def test_the_tab_opens_with_the_settings_people_compare(make_trainer, make_module, data, tab):
    hparams = HParams()
    hparams.run_config = CONFIG
    make_trainer(hparams).fit(make_module(), data)
    first = ["data", "data.batch_size", "model.net", "model.optimizer", "model.optimizer.lr"]
    assert tab().opened == first


def test_a_row_is_called_after_its_run_so_that_equal_configurations_keep_two(
    make_trainer, make_module, data, tab
):
    make_trainer(HParams()).fit(make_module(), data)
    assert tab().rows == ["run"]


@pytest.fixture
def worse(make_module):
    """A module whose validation says that it is best after the second epoch."""

    class Worse(make_module):
        def validation_step(self, batch, batch_idx):
            self.log("val/loss", (3.0, 1.0, 2.0)[self.current_epoch])

    return Worse


@pytest.fixture
def best(tmp_path):
    return ModelCheckpoint(
        str(tmp_path / "checkpoints"), monitor="val/loss", save_on_train_epoch_end=False
    )


def test_the_best_checkpoints_score_has_a_column_before_the_last_ones(
    make_trainer, worse, data, best, tab
):
    options = {"enable_checkpointing": True, "num_sanity_val_steps": 0, "max_epochs": 3}
    make_trainer(HParams(), best, **options).fit(worse(), data)
    shown = tab()
    assert shown.columns == ["val/loss_best", "val/loss", "val/acc", "test/loss", "test/acc"]
    assert shown.headings == ["", "val/loss (last)", "val/acc (last)", "test/loss", "test/acc"]
    assert shown.metrics == [{"val/loss_best": 1.0, "val/loss": 2.0}]


def test_the_best_score_is_a_curve(make_trainer, worse, data, best, read_events):
    options = {"enable_checkpointing": True, "num_sanity_val_steps": 0, "max_epochs": 3}
    make_trainer(HParams(), best, **options).fit(worse(), data)
    points = [(point.step, point.value) for point in read_events().Scalars("val/loss_best")]
    assert points == [(3, 3.0), (7, 1.0), (11, 1.0)]  # at the steps of the validations


def test_without_a_checkpoint_no_scalar_is_written(make_trainer, make_module, data, read_events):
    make_trainer(HParams()).fit(make_module(), data)
    assert set(read_events().Tags()["scalars"]) == {"train/loss", "val/loss", "val/acc", "epoch"}


def test_saved_hyperparameters_stand_in_for_a_missing_configuration(
    make_trainer, make_module, data, tab
):
    make_trainer(HParams()).fit(make_module(), data)
    (settings,) = tab().settings
    assert settings == {"trainer.max_epochs", "data.batch_size", "model.lr", "model.dropout"}


def test_without_metrics_tensorboard_makes_a_column_of_every_scalar(
    make_trainer, make_module, data, tab
):
    make_trainer(HParams(metrics=())).fit(make_module(), data)
    assert tab().columns == ["epoch", "train/loss", "val/acc", "val/loss"]


def test_classes_stand_under_their_key_and_places_and_callbacks_are_left_out():
    assert flatten_config(CONFIG) == FLAT
