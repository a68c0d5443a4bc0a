import csv
import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from project.callbacks import PredictionWriter
from project.mistakes import UserError

CONFIGS = Path(__file__).parents[2] / "configs"
FILE = Path("predictions.csv")


def read(file=FILE):
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def indices(file=FILE):
    return [int(row["index"]) for row in read(file)]


def class_probs(file=FILE):
    return np.array(
        [[float(v) for k, v in row.items() if k.startswith("prob_")] for row in read(file)]
    )


def parts():
    return [path.name for path in Path().iterdir() if path.name != FILE.name]


@pytest.fixture
def module(make_module):
    class Probs(make_module):
        def predict_step(self, batch, batch_idx):
            images = batch if isinstance(batch, torch.Tensor) else batch[0]
            return self(images).float().softmax(dim=1)

    return Probs()


@pytest.fixture
def predict(make_trainer, data, module):
    """Predict a loader with a writer; what is left is ``predictions.csv`` in the current folder."""

    def run(loader, module=module, writer=None, **options):
        data.predict_dataloader = lambda: loader
        trainer = make_trainer(writer or PredictionWriter(str(FILE)), **{"logger": False} | options)
        trainer.predict(module, data, return_predictions=False)

    return run


def fake_trainer(rank, world, names, barrier=lambda: None):
    """A process of several, as far as the writer looks at it."""
    return SimpleNamespace(
        fast_dev_run=False,
        num_predict_batches=[1],
        predict_loop=SimpleNamespace(current_batch_indices=[]),
        strategy=SimpleNamespace(broadcast=lambda _: "token", barrier=barrier),
        global_rank=rank,
        world_size=world,
        is_global_zero=rank == 0,
        datamodule=SimpleNamespace(class_names=names),
    )


def predict_in_processes(batches, names=("a", "b", "c")):
    """Run one writer for each list of (batch, probs, indices the sampler drew or None)."""
    world, said = len(batches), []
    barrier, fails = threading.Barrier(world), []

    def process(rank):
        trainer = fake_trainer(rank, world, names, lambda: barrier.wait(20))
        writer, module = PredictionWriter(str(FILE)), SimpleNamespace(print=said.append)
        try:
            writer.on_predict_start(trainer, module)
            for batch, probs, drawn in batches[rank]:
                trainer.predict_loop.current_batch_indices = drawn
                writer.on_predict_batch_end(trainer, module, probs, batch, 0)
            writer.on_predict_end(trainer, module)
        except BaseException as error:
            writer.on_exception(trainer, module, error)
            barrier.abort()
            fails.append(error)

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if fails:
        raise next((e for e in fails if isinstance(e, UserError)), fails[0])
    return said


def batch_of(index, num_classes=3):
    """Batch and probabilities that depend on the sample only; index -1 is padding."""
    index = torch.tensor(index)
    labels = (index % num_classes).where(index >= 0, -100)
    probs = torch.sin(index[:, None] + 2.0 * torch.arange(num_classes)).softmax(dim=1)
    return (torch.zeros(len(index), 1, 8, 8), labels, index), probs


def test_one_row_for_every_image_in_the_order_of_the_split(predict, data, module):
    predict(data.loader(20))
    images, labels, _ = data.loader(20).dataset.tensors
    probs = module.predict_step(images, 0).detach()
    rows = read()
    assert list(rows[0]) == [
        *("index", "label", "prediction", "probability"),
        *("prob_zero", "prob_one", "prob_two"),
    ]
    assert indices() == list(range(20))
    assert [row["label"] for row in rows] == [data.class_names[i] for i in labels]
    assert [row["prediction"] for row in rows] == [data.class_names[i] for i in probs.argmax(1)]
    # Six significant digits are written.
    np.testing.assert_allclose(class_probs(), probs.numpy(), rtol=1e-5)
    np.testing.assert_allclose(
        [float(row["probability"]) for row in rows], probs.max(1).values, rtol=1e-5
    )


def test_one_line_says_where_the_file_is_and_how_many_rows_it_has(predict, data, capsys):
    predict(data.loader(20))
    assert capsys.readouterr().out == "Predictions  predictions.csv, 20 rows\n"


def test_padding_has_no_row(predict):
    batch, _ = batch_of([0, 1, 2, -1])
    predict(DataLoader(TensorDataset(*batch), batch_size=4))
    assert indices() == [0, 1, 2]


def test_a_sample_without_a_label_has_a_row_with_none(predict):
    images, _, index = batch_of([0, 1, 2])[0]
    predict(DataLoader(TensorDataset(images, torch.tensor([1, -100, -1]), index), batch_size=2))
    assert [row["label"] for row in read()] == ["one", "", ""]


@pytest.mark.parametrize("wrap", [lambda image: image, lambda image: (image,)])
def test_images_alone_are_enough(predict, wrap):
    predict(DataLoader([wrap(image) for image in torch.rand(5, 1, 8, 8)], batch_size=2))
    assert indices() == [0, 1, 2, 3, 4]
    assert {row["label"] for row in read()} == {""}


def test_plain_batches_of_images_and_labels_are_counted(predict, data):
    images, labels, _ = data.loader(20).dataset.tensors
    predict(DataLoader(TensorDataset(images, labels), batch_size=8))
    assert indices() == list(range(20))
    assert [row["label"] for row in read()] == [data.class_names[i] for i in labels]


def test_something_else_in_third_place_swallows_no_row(predict, data):
    images, labels, _ = data.loader(20).dataset.tensors
    patient = torch.arange(20) // 4
    predict(DataLoader(TensorDataset(images, labels, patient), batch_size=8))
    assert indices() == list(range(20))


def test_a_stream_is_counted(predict, data):
    class Stream(IterableDataset):
        def __iter__(self):
            images, labels, _ = data.loader(20).dataset.tensors
            return iter(list(zip(images, labels, strict=True)))

    predict(DataLoader(Stream(), batch_size=8))
    assert indices() == list(range(20))


def test_a_second_prediction_counts_from_zero_and_replaces_the_file(predict, data):
    writer = PredictionWriter(str(FILE))
    for count in (20, 12):
        images, labels, _ = data.loader(count).dataset.tensors
        batches = list(zip(images.split(4), labels.split(4), strict=True))
        predict(DataLoader(batches, batch_size=None), writer=writer)
        assert indices() == list(range(count))


# Lightning advises against it.
@pytest.mark.filterwarnings("ignore:Your `predict_dataloader`'s sampler has shuffling enabled")
def test_a_loader_that_shuffles_is_put_in_order(predict, data):
    predict(DataLoader(data.loader(20).dataset, batch_size=8, shuffle=True))
    assert indices() == list(range(20))
    assert [row["label"] for row in read()[:4]] == ["zero", "one", "two", "zero"]


def test_a_stream_after_other_data_does_not_take_its_positions(make_trainer, module, data):
    images, labels, _ = data.loader(8).dataset.tensors
    trainer = make_trainer(PredictionWriter(str(FILE)), logger=False)
    for loader in (
        DataLoader(TensorDataset(images, labels), batch_size=4),
        DataLoader(list(zip(images.split(4), labels.split(4), strict=True)), batch_size=None),
    ):
        trainer.predict(module, loader, return_predictions=False)
        assert indices() == list(range(8))


def test_rows_stream_to_a_part_beside_the_file(predict, data):
    grown = []

    class Watched(PredictionWriter):
        def on_predict_batch_end(self, *args):
            super().on_predict_batch_end(*args)
            grown.append(sum(Path(name).stat().st_size for name in parts()))
            assert not FILE.exists()

    predict(data.loader(2000), writer=Watched(str(FILE)))
    # All but a buffer's worth is on the disk before the end.
    assert grown[-1] > FILE.stat().st_size - 20_000 > 40_000
    assert parts() == []


def test_two_processes_write_the_file_of_one():
    predict_in_processes([[(*batch_of([0, 1, 2]), None), (*batch_of([3, 4]), None)]])
    one = FILE.read_bytes()
    FILE.unlink()
    said = predict_in_processes(
        [
            [(*batch_of([0, 2]), None), (*batch_of([4]), None)],
            [(*batch_of([1, 3]), None), (*batch_of([-1]), None)],
        ]
    )
    assert FILE.read_bytes() == one
    assert indices() == [0, 1, 2, 3, 4]
    assert said == ["Predictions  predictions.csv, 5 rows"]
    assert parts() == []


def test_plain_batches_of_two_processes_have_the_positions_that_were_drawn():
    first, second = batch_of([0, 2]), batch_of([1, 3])
    predict_in_processes([[(first[0][:2], first[1], [0, 2])], [(second[0][:2], second[1], [1, 3])]])
    assert [(row["index"], row["label"]) for row in read()] == [
        *(("0", "a"), ("1", "b"), ("2", "c"), ("3", "a"))
    ]


def test_a_sample_that_two_processes_draw_has_one_row():
    # As torch's own DistributedSampler does to give all processes equally many.
    predict_in_processes([[(*batch_of([0, 2]), None)], [(*batch_of([0, 1]), None)]])
    assert indices() == [0, 1, 2]


def test_a_process_without_samples_leaves_the_header_alone():
    predict_in_processes([[], [(*batch_of([0]), None)]])
    assert class_probs().shape == (1, 3)


def test_a_stream_in_two_processes_is_refused():
    batch, probs = batch_of([0, 1])
    with pytest.raises(UserError, match=r"--trainer\.devices 1"):
        predict_in_processes([[(batch[:2], probs, [])], [(batch[:2], probs, [])]])
    assert not FILE.exists()


def test_what_a_killed_prediction_left_is_not_mixed_in(predict, data):
    for token in ("token", "dead"):
        for rank in (0, 1):
            text = "index,label,prediction,probability\n77,a,a,1\n"
            Path(f"predictions.csv.{token}-{rank}.part").write_text(text)
    Path("predictions.csv.bak").write_text("mine")
    predict(data.loader(10))
    assert indices() == list(range(10))
    assert parts() == ["predictions.csv.bak"]


def test_a_failure_keeps_the_earlier_file_and_leaves_no_part(predict, data, module):
    FILE.write_text("earlier")

    class Broken(type(module)):
        def predict_step(self, batch, batch_idx):
            if batch_idx == 1:
                raise RuntimeError("broken")
            return super().predict_step(batch, batch_idx)

    with pytest.raises(RuntimeError, match="broken"):
        predict(data.loader(20), Broken())
    assert FILE.read_text() == "earlier"
    assert parts() == []


def test_a_part_that_is_gone_is_an_error_and_no_short_file(predict, data):
    class Robbed(PredictionWriter):
        def on_predict_end(self, *args):
            for name in parts():
                Path(name).unlink()
            super().on_predict_end(*args)

    with pytest.raises(UserError, match="only one prediction at a time"):
        predict(data.loader(10), writer=Robbed(str(FILE)))
    assert not FILE.exists()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda probs: probs.argmax(1), r"Tensor \(8,\) of torch\.int64"),
        (lambda probs: probs[:, 0], r"Tensor \(8,\) of torch\.float32"),
        (lambda probs: {"probs": probs}, "it returned dict"),
        (lambda probs: probs[:3], "3 rows for 8 images"),
        (lambda probs: probs * 9 - 3, "logits"),
        (lambda probs: probs * 3 - 2 / 3, "logits"),  # with a sum of 1
        (lambda probs: probs * torch.nan, "nan"),
    ],
)
def test_what_is_no_probabilities_is_refused_and_nothing_written(predict, data, module, make, said):
    class Other(type(module)):
        def predict_step(self, batch, batch_idx):
            return make(super().predict_step(batch, batch_idx))

    with pytest.raises(UserError, match=rf"must return probabilities[\s\S]*{said}") as raised:
        predict(data.loader(20), Other())
    assert len(str(raised.value).splitlines()) <= 3
    assert not FILE.exists()
    assert parts() == []


def test_bfloat16_becomes_ordinary_numbers(predict, data, module):
    class Half(type(module)):
        def predict_step(self, batch, batch_idx):
            return super().predict_step(batch, batch_idx).bfloat16()

    predict(data.loader(20), Half())
    probs = class_probs()
    assert probs.shape == (20, 3)
    # bfloat16 has eight bits: each of three values is off by at most 1/512 of itself.
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1 / 256)


@pytest.mark.parametrize(("writer", "columns"), [({}, 20), ({"max_class_columns": 0}, 0)])
def test_up_to_twenty_classes_have_a_column_each(predict, module, writer, columns):
    module.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 20))
    loader = DataLoader(TensorDataset(torch.rand(4, 1, 8, 8)), batch_size=4)
    predict(loader, writer=PredictionWriter(str(FILE), **writer))
    assert class_probs().shape == (4, columns)
    module.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 21))
    predict(loader, writer=PredictionWriter(str(FILE), **writer))
    assert class_probs().shape == (4, 0)
    assert list(read()[0]) == ["index", "label", "prediction", "probability"]


def test_a_row_names_as_many_classes_as_asked_for(predict, data):
    predict(data.loader(6), writer=PredictionWriter(str(FILE), top_k=2))
    row = read()[5]
    probs = {name: float(row[f"prob_{name}"]) for name in data.class_names}
    first, second = sorted(probs, key=probs.get, reverse=True)[:2]
    assert (row["prediction"], float(row["probability"])) == (first, probs[first])
    assert (row["prediction_2"], float(row["probability_2"])) == (second, probs[second])


def test_more_classes_than_there_are_cannot_be_named(predict, data):
    with pytest.raises(UserError, match="top_k is 4, but there are 3 classes"):
        predict(data.loader(6), writer=PredictionWriter(str(FILE), top_k=4))
    assert list(Path().iterdir()) == []


def test_a_data_module_may_know_the_files(predict, data):
    data.predict_path = lambda index: f"photos/ä{index}.png"
    predict(data.loader(6))
    assert list(read()[0])[:4] == ["index", "path", "label", "prediction"]
    assert [row["path"] for row in read()] == [f"photos/ä{index}.png" for index in range(6)]


def test_a_name_with_a_carriage_return_is_one_cell(predict, data):
    data.predict_path = lambda index: f"a\rb{index}.png"
    data.errors = {}
    predict(data.loader(3))
    assert [row["path"] for row in read()] == [f"a\rb{index}.png" for index in range(3)]
    assert FILE.read_bytes().count(b"\r") == 3


def test_an_image_that_cannot_be_read_has_a_row_with_its_error(predict, data):
    images, labels, index = data.loader(6).dataset.tensors
    data.errors = {2: "damaged, said\nPillow"}
    good = [0, 1, 3, 4, 5]
    predict(DataLoader([(images[good], labels[good], index[good])], batch_size=None))
    assert indices() == [0, 1, 2, 3, 4, 5]
    assert [row["error"] for row in read()] == ["", "", "damaged, said\nPillow", "", "", ""]
    assert read()[2]["prediction"] == read()[2]["prob_one"] == ""
    assert "label" not in read()[0]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_other_formats_have_the_same_rows(predict, data, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    data.predict_path = lambda index: "photos/\udce4.png" if index else "photos/ä.png"
    predict(data.loader(6))
    file = FILE.with_suffix(f".{kind}")
    predict(data.loader(6), writer=PredictionWriter(str(file)))
    if kind == "jsonl":
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(file).to_pylist()
    with FILE.open(encoding="utf-8", errors="replace", newline="") as lines:
        wanted = list(csv.DictReader(lines))
    assert len(rows) == 6
    assert isinstance(rows[0]["index"], int)
    assert isinstance(rows[0]["probability"], float)
    for row, cells in zip(rows, wanted, strict=True):
        figures = {k: float(v) if k.startswith("prob") else v for k, v in cells.items()}
        assert row == figures | {"index": int(cells["index"])}


def test_a_missing_package_is_told_before_anything_is_predicted(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[parquet\]'"):
        PredictionWriter("x.parquet")


def test_names_of_any_kind_come_back(predict, data):
    data.class_names = ["cat, grey", 'a "dog"\nof two lines', "Äpfel"]
    predict(data.loader(6))
    assert [row["label"] for row in read()] == data.class_names * 2
    assert list(read()[0])[4:] == [f"prob_{name}" for name in data.class_names]


def test_without_names_the_classes_are_numbers(predict, data):
    del data.class_names
    predict(data.loader(3))
    assert [row["label"] for row in read()] == ["0", "1", "2"]


def test_fit_validate_and_test_write_nothing(make_trainer, module, data):
    trainer = make_trainer(PredictionWriter(str(FILE)), logger=False, max_epochs=1)
    trainer.fit(module, data)
    trainer.validate(module, data, verbose=False)
    trainer.test(module, data, verbose=False)
    assert list(Path().iterdir()) == []


def test_a_trial_run_leaves_the_file_of_a_real_one(predict, data, capsys):
    FILE.write_text("earlier")
    predict(data.loader(20), fast_dev_run=True)
    assert FILE.read_text() == "earlier"
    assert capsys.readouterr().out == ""


def test_two_loaders_are_refused(predict, data, module):
    class Two(type(module)):
        def predict_step(self, batch, batch_idx, dataloader_idx=0):
            return super().predict_step(batch, batch_idx)

    with pytest.raises(UserError, match="one predict_dataloader, got 2"):
        predict([data.loader(4), data.loader(4)], Two())
    assert list(Path().iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_predicted(predict, data):
    Path("file").write_text("")
    with pytest.raises(UserError, match=r"Cannot write to file/x\.csv.*\n.*--output"):
        predict(data.loader(4), writer=PredictionWriter("file/x.csv"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_told_and_nothing_is_left(predict, data, monkeypatch):
    FILE.write_text("earlier")

    def open_full(file, mode="r"):
        file.touch()
        return open("/dev/full", mode, newline="")

    monkeypatch.setattr("project.callbacks.prediction_writer.open_text", open_full)
    with pytest.raises(UserError, match=r"Cannot write to predictions\.csv: No space left"):
        predict(data.loader(4), writer=PredictionWriter(str(FILE)))
    assert FILE.read_text() == "earlier"
    assert parts() == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"path": "."}, r"path must be a file such as predictions\.csv, got '\.'"),
        ({"path": ""}, "path must be a file"),
        ({"path": "x.csv", "max_class_columns": -1}, "must not be negative, got -1"),
        ({"path": "x.csv", "top_k": 0}, "top_k must be at least 1, got 0"),
    ],
)
def test_wrong_settings_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        PredictionWriter(**settings)


def lightning(*args):
    command = [sys.executable, "-m", "project", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


ODD = """
from project.data import DigitsDataModule

class OddDigits(DigitsDataModule):
    def load(self, train):
        images, labels = super().load(train)
        return (images, labels) if train else (images[:101], labels[:101])
"""


@pytest.mark.slow
def test_the_command_writes_the_same_file_with_one_and_with_two_processes():
    Path("odd.py").write_text(ODD)  # an odd number, so that one process has a sample of padding
    lightning("fit", "--data", "odd.OddDigits", "--trainer.max_epochs", 1)
    files = []
    for preset in ([], ["--config", CONFIGS / "presets" / "ddp_cpu.yaml"]):
        said = lightning("predict", "--run", "last", *preset)
        (file,) = Path("logs").rglob("predictions.csv*")
        assert said.count("Predictions ") == 1
        assert f"{file}, 101 rows" in said
        files.append((indices(file), [row["label"] for row in read(file)], class_probs(file)))
        file.unlink()
    (index, labels, probs), (index_of_two, labels_of_two, probs_of_two) = files
    assert index == index_of_two == list(range(101))
    assert labels == labels_of_two
    # Batches of other sizes may add up in another order.
    np.testing.assert_allclose(probs_of_two, probs, atol=1e-5)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-3)


@pytest.mark.slow
def test_the_command_writes_ordinary_numbers_in_bfloat16():
    lightning("fit", "--trainer.max_epochs", 1)
    lightning("predict", "--run", "last", "--trainer.precision", "bf16-mixed")
    (file,) = Path("logs").rglob("predictions.csv")
    np.testing.assert_allclose(class_probs(file).sum(axis=1), 1, atol=1e-3)
