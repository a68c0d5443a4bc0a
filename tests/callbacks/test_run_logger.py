import time

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
