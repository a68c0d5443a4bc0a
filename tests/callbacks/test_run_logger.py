import re
import time

from tensorboard.plugins.custom_scalar import layout_pb2, metadata

from project.callbacks import TensorBoard


def test_nothing_but_the_event_file_is_left_in_the_folder(
    make_trainer, make_module, data, tmp_path
):
    make_trainer(logger=TensorBoard(str(tmp_path))).fit(make_module(), data)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("events.out.tfevents")


def test_no_placeholder_metric(make_trainer, make_module, data, tmp_path, read_events):
    class Logged(make_module):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters()

    make_trainer(logger=TensorBoard(str(tmp_path))).fit(Logged(), data)
    assert "hp_metric" not in read_events().Tags()["scalars"]


def test_the_file_of_a_later_life_sorts_after_those_before_it(tmp_path):
    now = int(time.time())
    before = tmp_path / f"events.out.tfevents.{now}.zzz.99999999.0"
    before.touch()
    TensorBoard(str(tmp_path)).log_metrics({"a": 1.0}, 0)
    names = sorted(file.name for file in tmp_path.glob("events.out.tfevents.*"))
    assert names[0] == before.name
    assert len(names) == 2


def test_files_of_one_process_sort_in_the_order_they_were_written(tmp_path):
    # Within a second, the name ends in a count of the process's files, and 10 sorts before 9.
    loggers = [TensorBoard(str(tmp_path / str(number))) for number in range(12)]
    for logger in loggers:
        logger.log_metrics({"fit": 1.0}, 0)
        logger.finalize("success")
        logger.log_metrics({"test": 1.0}, 1)
        logger.save()
        first, second = sorted((tmp_path / logger.save_dir).iterdir())
        assert b"fit" in first.read_bytes()
        assert b"test" in second.read_bytes()


def test_a_page_shows_losses_together_validation_scores_and_learning_rates(tmp_path, read_events):
    logger = TensorBoard(str(tmp_path))
    logger.log_metrics({"train/loss": 1.0}, 0)
    logger.save()
    (event,) = read_events().Tensors(metadata.CONFIG_SUMMARY_TAG)
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    charts = [chart.multiline.tag for category in layout.category for chart in category.chart]
    tags = ("epoch", "lr-SGD", "lr-SGD/a", "test/acc", "train/acc", "train/loss", "val/acc")
    tags += ("val/acc_best", "val/loss", "val/loss_of_parts")
    found = [[tag for tag in tags if any(re.match(t, tag) for t in chart)] for chart in charts]
    assert found == [
        ["train/loss", "val/loss"],
        ["val/acc", "val/loss_of_parts"],
        ["lr-SGD", "lr-SGD/a"],
    ]
