"""Predictions of images that a command line or a program names."""

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from project.cli import main
from project.data import DigitsDataModule
from project.loaded_run import LoadedRun
from project.mistakes import UserError
from project.runs import Run, find_run, load_run

COUNT = 101  # odd, so that one of two processes has an image less


@pytest.fixture
def images(workdir: Path) -> Path:
    """Test images of the digits as files ``new/000.png`` and so on, with one that is damaged."""
    data = DigitsDataModule()
    data.setup("test")
    (workdir / "new").mkdir()
    for number in range(COUNT):
        Image.fromarray(data.test_set.images[number, 0].numpy()).save(f"new/{number:03}.png")
    Path("new/050.png").write_bytes(Path("new/050.png").read_bytes()[:50])
    return workdir / "new"


def rows(file: str | Path) -> list[dict[str, str]]:
    with open(file, newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def probs(file: str | Path) -> np.ndarray:
    return np.array(
        [[float(v or "nan") for k, v in r.items() if k.startswith("prob_")] for r in rows(file)]
    )


@pytest.fixture
def digits(digits_run: Run) -> LoadedRun:
    return load_run(digits_run.path)


def predict(run: Run, *args: object) -> int:
    return main(["predict", "--run", str(run.path), *map(str, args)])


# In a program


def test_a_program_gets_rows_and_probs(digits: LoadedRun, images: Path) -> None:
    found = digits.predict(images, top_k=2)
    assert found.probs.shape == (COUNT, 10) == (len(found), len(found.classes))
    wrong = found.probs.isnan().any(dim=1)
    assert wrong.nonzero().tolist() == [[50]]
    np.testing.assert_allclose(found.probs[~wrong].sum(1), 1, atol=1e-5)
    every = list(found)
    assert [row.path for row in every] == [str(images / f"{n:03}.png") for n in range(COUNT)]
    assert "cut off" in every[50].error
    assert (every[50].prediction, every[50].top) == ("", [])
    best = found.probs[3].argmax()
    assert every[3].prediction == found.classes[best]
    assert every[3].probability == found.probs[3, best]
    assert len(every[3].top) == 2
    assert every[3].top[0] == (every[3].prediction, every[3].probability)
    assert every[3].top[1][1] == found.probs[3].sort().values[-2]


def test_where_nothing_can_be_read_there_are_only_errors(digits: LoadedRun) -> None:
    found = digits.predict([b"hello", np.zeros((8, 8))])
    assert found.probs.shape == (2, 10)
    assert all(row.error and not row.prediction for row in found)


def test_images_in_memory_and_in_files_are_predicted_alike(digits: LoadedRun, images: Path) -> None:
    file = images / "007.png"
    picture = Image.open(file)
    pixels = np.asarray(picture)
    tensor = torch.tensor(pixels)[None]
    wanted = digits.predict(file).probs
    mixed = [str(file), file, file.read_bytes(), picture, pixels, tensor]
    for alone in mixed:
        assert torch.equal(digits.predict(alone).probs, wanted)
    for several in (mixed, torch.stack([tensor] * 6), np.stack([pixels[..., None]] * 6)):
        torch.testing.assert_close(digits.predict(several).probs, wanted.repeat(6, 1))
    assert [row.path for row in digits.predict(mixed)] == [str(file)] * 2 + [""] * 4


def test_predictions_are_those_of_the_network(digits: LoadedRun, images: Path) -> None:
    digits.datamodule.setup("test")
    shown = digits.datamodule.preprocess(digits.datamodule.test_set.images[:50])
    with torch.no_grad():
        wanted = digits.task(shown).softmax(1)
    torch.testing.assert_close(digits.predict(images, batch_size=7).probs[:50], wanted)


def test_a_mirrored_image_is_as_probable_with_flip(photos_run: LoadedRun, photos: Path) -> None:
    image = np.asarray(Image.open(photos / "leaf" / "00.png"))
    alone = photos_run.predict([image, image[:, ::-1]]).probs
    assert not torch.allclose(*alone)
    both = photos_run.predict([image, image[:, ::-1]], tta="flip").probs
    torch.testing.assert_close(both, alone.mean(0).expand(2, -1))


def test_of_no_images_there_are_no_rows(digits: LoadedRun) -> None:
    found = digits.predict([])
    assert (list(found), found.probs.shape) == ([], (0, 10))


def test_an_open_file_is_one_thing_and_no_image(digits: LoadedRun) -> None:
    for source in (io.BytesIO(b"a\nb\n"), bytearray(b"ab")):
        (row,) = digits.predict(source)
        assert row.error == f"it is no image, but a {type(source).__name__}"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"top_k": 0}, "top_k must be from 1 to 10, the number of classes, got 0"),
        ({"top_k": 11}, "top_k must be from 1 to 10, the number of classes, got 11"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"tta": "flop"}, "tta takes flip, got 'flop'"),
    ],
)
def test_wrong_settings_of_a_program_are_refused(
    digits: LoadedRun, settings: dict[str, int | str], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        digits.predict(np.zeros((8, 8), np.uint8), **settings)


def test_digits_are_not_mirrored(digits: LoadedRun, images: Path) -> None:
    with pytest.raises(UserError, match="mirrored"):
        digits.predict(images, tta="flip")


def test_images_that_keep_their_sizes_are_predicted_one_by_one(photos: Path) -> None:
    from project.data import ImageFolderDataModule
    from project.models import MaskedConvNet
    from project.tasks import ClassificationTask

    data = ImageFolderDataModule(str(photos), image_size=None, mean=[0.5] * 3, std=[0.5] * 3)
    task = ClassificationTask(MaskedConvNet(3, 2), 2).eval()
    sizes = [np.zeros((h, w, 3), np.uint8) for h, w in ((20, 30), (40, 16))]
    found = LoadedRun(None, task, data, Path()).predict(sizes)
    with torch.no_grad():
        wanted = [task(torch.full((1, 3, *s.shape[:2]), -1.0)).softmax(1) for s in sizes]
    torch.testing.assert_close(found.probs, torch.cat(wanted))


class PlainData(L.LightningDataModule):
    def read(self, source):
        picture = Image.open(io.BytesIO(Path(source).read_bytes())).convert("L")
        return torch.tensor(np.asarray(picture), dtype=torch.uint8)[None]

    def preprocess(self, images):
        return images / 255


class OwnTask(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

    def predict_step(self, batch):
        return self.net(batch[0]).softmax(1)


def test_a_data_module_and_a_task_of_the_users_own_will_do(images: Path) -> None:
    task = OwnTask()
    found = LoadedRun(None, task, PlainData(), Path()).predict(images)
    assert found.probs.shape == (COUNT, 3)
    assert found.classes == ["0", "1", "2"]
    assert list(found)[50].error


def test_a_data_module_that_cannot_read_is_told_what_is_missing(images: Path) -> None:
    mute = L.LightningDataModule()
    with pytest.raises(UserError, match=r"LightningDataModule has no read\(source\)"):
        LoadedRun(None, OwnTask(), mute, Path()).predict(images)


def test_logits_are_no_predictions(images: Path) -> None:
    class Logits(OwnTask):
        def predict_step(self, batch):
            return self.net(batch[0]) * 9

    with pytest.raises(UserError, match="They need a softmax"):
        LoadedRun(None, Logits(), PlainData(), Path()).predict(images)


# On the command line


@pytest.mark.slow
def test_the_command_writes_what_a_program_gets(
    digits: LoadedRun, digits_run: Run, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(digits_run, "new", "--output", "out/x.csv", "--top_k", 2) == 0
    assert "x.csv, 101 rows, 1 of them with an error" in capsys.readouterr().out
    table, twin = rows("out/x.csv"), digits.predict("new", top_k=2)
    first = ["index", "path", "error", "prediction", "probability"]
    assert list(table[0])[:7] == [*first, "prediction_2", "probability_2"]
    assert [int(row["index"]) for row in table] == list(range(COUNT))
    for row, wanted in zip(table, twin, strict=True):
        assert (row["path"], row["prediction"]) == (wanted.path, wanted.prediction)
        assert row["error"] == wanted.error
    np.testing.assert_allclose(probs("out/x.csv"), twin.probs, atol=1e-6)
    assert table[3]["probability_2"] == f"{list(twin)[3].top[1][1]:.6g}"


@pytest.mark.slow
def test_where_no_image_can_be_read_an_earlier_file_stays(
    digits_run: Run, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.png", "b.png", "c.png"):
        Path(name).write_text("no image")
    Path("x.csv").write_text("earlier")
    assert predict(digits_run, "a.png", "--output", "x.csv") == 1
    told = capsys.readouterr().err
    assert told.startswith(
        "Error: The image cannot be read, so nothing is written to x.csv:\na.png:"
    )
    assert predict(digits_run, "a.png", "b.png", "c.png", "--output", "x.csv") == 1
    first, *reasons = capsys.readouterr().err.splitlines()
    assert "None of the 3 images can be read" in first
    assert [reason.split(":")[0] for reason in reasons] == ["a.png", "b.png"]
    assert Path("x.csv").read_text() == "earlier"
    assert not list(Path().glob("*.part"))
    Image.fromarray(np.zeros((8, 8), np.uint8)).save("c.png")
    assert predict(digits_run, "a.png", "b.png", "c.png", "--output", "x.csv") == 0
    said = capsys.readouterr().out
    assert "3 rows, 2 of them with an error instead of a prediction: see the column error" in said
    assert "predictions.path" not in said  # no setting of the run's, and the last line names it
    assert predict(digits_run, "c.png", "--output", "x.csv") == 0
    assert "x.csv, 1 row\n" in capsys.readouterr().out


@pytest.mark.slow
def test_names_of_all_kinds_and_a_checkpoint(digits_run: Run, images: Path) -> None:
    Path("list.csv").write_text("path\nnew/003.png\nnew/nothing.png\n")
    last = digits_run.checkpoint("last")
    names = ["new/00*.png", "new/100.png", "list.csv"]
    for which in (("--ckpt_path", "last"), ("--ckpt_path", last)):
        assert (
            main(
                ["predict", *names, *map(str, which), "--output=a.jsonl"]
                + (["--run", str(digits_run.path)] if which[1] == "last" else [])
            )
            == 0
        )
        found = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
        assert [row["index"] for row in found] == list(range(13))
        assert [row["path"][-7:] for row in found[9:12]] == ["009.png", "100.png", "003.png"]
        assert found[12]["error"] == "no such file"
        assert found[12]["prediction"] is None
        assert found[11]["probability"] == found[3]["probability"]
    twin = load_run(digits_run.path, "last").predict("new/003.png")
    assert found[3]["probability"] == pytest.approx(next(iter(twin)).probability, abs=1e-6)


@pytest.mark.slow
def test_a_parquet_file_has_typed_columns(digits_run: Run, images: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert predict(digits_run, "new", "--output", "x.parquet") == 0
    table = parquet.read_table("x.parquet").to_pylist()
    assert [row["index"] for row in table] == list(range(COUNT))
    assert isinstance(table[0]["probability"], float)
    assert table[50]["prediction"] is None
    assert "cut off" in table[50]["error"]


@pytest.mark.slow
def test_two_processes_write_the_file_of_one(digits_run: Run, images: Path) -> None:
    command = [sys.executable, "-m", "project", "predict", "new", "--run", str(digits_run.path)]
    two = ["--trainer.devices", "2", "--trainer.accelerator", "cpu", "--trainer.strategy", "ddp"]
    for args in (["--output", "1.csv"], ["--output", "2.csv", *two]):
        done = subprocess.run([*command, *args], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert len({row["path"] for row in rows("2.csv")}) == COUNT
    for one, other in zip(rows("1.csv"), rows("2.csv"), strict=True):
        assert {k: v for k, v in one.items() if not k.startswith("prob")} == {
            k: v for k, v in other.items() if not k.startswith("prob")
        }
    np.testing.assert_allclose(probs("1.csv"), probs("2.csv"), atol=1e-5)


@pytest.mark.slow
def test_half_precision_gives_ordinary_numbers(digits_run: Run, images: Path) -> None:
    half = ["--trainer.precision", "bf16-mixed", "--trainer.accelerator", "cpu"]
    assert predict(digits_run, "new", "--output", "x.csv", *half) == 0
    np.testing.assert_allclose(np.delete(probs("x.csv"), 50, 0).sum(1), 1, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nothing.png"], "There is no file or folder nothing.png"),
        (["new", "--tta", "turn"], "--tta takes flip, got 'turn'"),
        (["new", "--tta", "flip"], "mirrored"),
        (["new", "--top_k", "11"], "--top_k is 11, but there are 10 classes"),
        (["new", "--output", "x.xlsx"], "not to x.xlsx.\nE.g. --output x.csv"),
    ],
)
def test_mistakes_are_told(
    digits_run: Run, images: Path, args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(digits_run, "--output", "x.csv", *args) == 2
    assert said in capsys.readouterr().err
    assert not list(Path().glob("x.*"))


@pytest.mark.slow
def test_a_run_predicts_without_the_data_it_was_trained_on(photos: Path) -> None:
    recipe = ["--config", "configs/image_folder.yaml", "--data.data_dir", "photos"]
    assert main(["fit", *recipe, "--trainer.max_epochs", "1"]) == 0
    assert main(["predict", "--run", "last"]) == 0
    (table,) = (rows(file) for file in Path("logs").rglob("predictions.csv"))
    known = [row for row in table if Path(row["path"]).parent.name == row["label"]]
    assert table == known  # each with the path of its file
    shutil.copytree(photos, "new")
    shutil.rmtree(photos)
    flipped = ["--tta", "flip", "--output", "x.csv"]
    assert main(["predict", "--run", "last", "new", *flipped]) == 0
    twin = load_run(find_run("last").path).predict("new", tta="flip")
    np.testing.assert_allclose(probs("x.csv"), twin.probs, atol=1e-6)


@pytest.mark.slow
def test_a_large_photo_is_the_same_as_a_file_and_as_bytes(photos_run: LoadedRun) -> None:
    board = (np.indices((2000, 2000)).sum(0) % 2 * 255).astype(np.uint8)
    for name in ("board.png", "board.jpg"):
        Image.fromarray(np.stack([board] * 3, -1)).save(name)
        file, content = photos_run.predict(name).probs, photos_run.predict(Path(name).read_bytes())
        torch.testing.assert_close(content.probs, file, atol=1e-6, rtol=0)
        pixels = photos_run.datamodule.read(name).float()
        assert pixels.std() < 40  # grey, with the antialiasing that is missing elsewhere


@pytest.fixture
def photos_run(photos: Path) -> LoadedRun:
    """A network that is not trained, for photos of two classes."""
    from project.data import ImageFolderDataModule
    from project.models import ConvNet
    from project.tasks import ClassificationTask

    constants = {"mean": [0.4, 0.4, 0.3], "std": [0.2, 0.2, 0.2]}
    data = ImageFolderDataModule(str(photos), image_size=12, **constants)
    torch.manual_seed(0)
    return LoadedRun(None, ClassificationTask(ConvNet(3, 2), 2).eval(), data, Path())
