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
