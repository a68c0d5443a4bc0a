from project.callbacks import ConfusionMatrixPicture


def row(table, name):
    line = next(line for line in table.splitlines() if line.startswith(f"| {name}"))
    return [cell.strip() for cell in line.split("| ")[2:]]


def text(events, tag):
    (event, *_) = events.Tensors(f"{tag}/text_summary")
    return event.tensor_proto.string_val[0].decode()


def test_a_picture_and_a_table_of_every_validation_and_test(
    make_trainer, make_module, data, read_events
):
    trainer, module = make_trainer(ConfusionMatrixPicture(), num_sanity_val_steps=2), make_module()
    trainer.fit(module, data)
    trainer.test(module, data, verbose=False)
    events = read_events()
    assert [event.step for event in events.Images("val/confusion_matrix")] == [4, 8]
    assert len(events.Images("test/confusion_matrix")) == 1
    assert "| zero |" in text(events, "val/per_class")
    # The tenth test sample is a zero, so zeros are four of ten.
    assert row(text(events, "test/per_class"), "zero")[-1] == "4 |"


def test_nothing_happens_without_a_matrix(make_trainer, make_module, data, read_events):
    class Bare(make_module):
        def on_validation_end(self):
            del self.confusion_matrix

    module = Bare()
    # Callbacks come before the module, so that only a validation of its own can leave none.
    module.validation_step = lambda batch, batch_idx: None
    module.on_validation_epoch_start = lambda: None
    module.on_validation_end = lambda: None
    make_trainer(ConfusionMatrixPicture()).fit(module, data)
    assert read_events().Tags()["images"] == []


def test_a_module_without_figures_of_classes_has_a_picture_alone(
    make_trainer, make_module, data, read_events
):
    class Bare(make_module):
        per_class = None

    make_trainer(ConfusionMatrixPicture()).fit(Bare(), data)
    tags = read_events().Tags()
    assert "val/confusion_matrix" in tags["images"]
    assert not any("per_class" in tag for tag in tags["tensors"])
