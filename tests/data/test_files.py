"""What data modules with files have in common: division, storage, constants, what a run keeps."""

import pickle
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
from picture_folders import picture, write

from project.cli import main
from project.data import ImageFolderDataModule
from project.data.hashing import scramble
from project.data.images import ImageDataset
from project.data.reading.file_dataset import FileDataset, centre
from project.data.reading.reader import middle
from project.data.split import split_by_content
from project.mistakes import UserError
from project.runs import find_run, load_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "data", {"a": 30, "b": 30}, size=(16, 12))


def make(folder: Path, **settings) -> ImageFolderDataModule:
    return ImageFolderDataModule(str(folder), **settings)


def held_out(count: int = 300, copies: int = 1, order: torch.Tensor | None = None, **settings):
    """Contents that are held out, of ``count`` different ones in three classes."""
    contents = scramble(torch.arange(count)).repeat_interleave(copies)
    labels = (torch.arange(count) % 3).repeat_interleave(copies)
    order = torch.arange(len(contents)) if order is None else order
    kept, held = split_by_content(
        labels[order], contents[order], **{"fraction": 0.1, "seed": 0} | settings
    )
    assert len(kept) + len(held) == len(contents)
    return set(contents[order][held].tolist()), set(contents[order][kept].tolist())


def test_the_same_share_of_every_class_is_held_out():
    held, kept = held_out(300)
    assert len(held) == 30
    assert not held & kept


def test_division_does_not_depend_on_the_order_but_on_the_seed():
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    assert held_out(order=order) == held_out()
    assert held_out(seed=1) != held_out()


def test_copies_are_on_one_side():
    held, kept = held_out(copies=3)
    assert len(held) == 30
    assert not held & kept


def test_copies_alone_do_not_leave_validation_empty():
    held, kept = held_out(count=6, copies=4)
    assert (len(held), len(kept)) == (3, 3)


def test_an_image_in_two_classes_stays_in_training():
    labels, contents = torch.tensor([0, 1, 0, 0, 1, 1]), torch.tensor([7, 7, 1, 2, 3, 4])
    for seed in range(20):
        kept, held = split_by_content(labels, contents, 0.3, seed)
        assert {0, 1} <= set(kept.tolist())
        assert sorted(labels[held].tolist()) == [0, 1]


def test_files_with_other_names_are_divided_alike(folder: Path):
    def held(where: Path) -> list[bytes]:
        data = make(where)
        data.setup()
        assert isinstance(data.val_set, ImageDataset)
        return sorted(image.numpy().tobytes() for image in data.val_set.images)

    other = folder.with_name("other")
    for file in sorted(folder.glob("*/*.png")):
        place = other / file.parent.name / f"{hash(file.stem) % 10_007}{file.stem}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    assert held(folder) == held(other)


def test_size_and_channels_are_found(tmp_path: Path):
    grey = make(write(tmp_path / "grey", {"a": 3, "b": 3}, size=(20, 10), grey=True))
    assert (grey.in_channels, grey.image_size) == (1, 10)
    colour = make(write(tmp_path / "colour", {"a": 3, "b": 3}, size=(500, 300)))
    assert (colour.in_channels, colour.image_size) == (3, 224)


def test_a_coloured_file_among_grey_ones_is_named_with_the_setting(tmp_path: Path):
    write(tmp_path, {"a": 40, "b": 40}, grey=True)
    picture(0).save(tmp_path / "a" / "001.png")  # not one of those looked at first
    with pytest.raises(UserError, match=r"001\.png has colours") as told:
        make(tmp_path).setup("fit")
    assert "--data.in_channels 3" in str(told.value)
    make(tmp_path, in_channels=1).setup("fit")


def test_images_in_memory_are_those_that_workers_decode(folder: Path):
    kept, decoded = make(folder, image_size=8), make(folder, image_size=8, in_memory=False)
    for data in (kept, decoded):
        data.setup()
    assert isinstance(kept.train_set, ImageDataset)
    assert isinstance(decoded.train_set, FileDataset)
    assert kept.num_workers == 0 < decoded.num_workers
    rows = [5, 0, -1, 7]
    for one, two in zip(
        kept.train_set.__getitems__(rows), decoded.train_set.__getitems__(rows), strict=True
    ):
        assert torch.equal(one[:2], two[:2])
    assert decoded.train_set.__getitems__(rows)[1].tolist()[2] == -100
    assert kept.mean == decoded.mean


def test_workers_and_main_process_make_the_same_batches(folder: Path):
    def batches(workers: int) -> list[torch.Tensor]:
        data = make(folder, in_memory=False, num_workers=workers, batch_size=16, image_size=8)
        data.random_resized_crop = (0.3, 1.0)
        data.setup("fit")
        return [images for images, *_ in data.train_dataloader()]

    for one, two in zip(batches(0), batches(2), strict=True):
        assert torch.equal(one, two)


def test_random_crops_are_taken_from_the_file_and_change_with_the_epoch(folder: Path):
    data = make(folder, image_size=8, random_resized_crop=(0.2, 0.5))
    data.setup("fit")
    assert isinstance(data.train_set, FileDataset)
    first, again = (data.train_set.__getitems__([(e, 3)])[0] for e in (0, 1))
    assert first.shape == (1, 3, 8, 8)
    assert not torch.equal(first, again)
    assert torch.equal(first, data.train_set.__getitems__([(0, 3)])[0])
    assert isinstance(data.val_set, ImageDataset)


def test_constants_are_those_of_the_training_images(folder: Path):
    data = make(folder)
    data.setup("fit")
    assert isinstance(data.train_set, ImageDataset)
    pixels = data.train_set.images.double() / 255
    # To the four digits that are kept.
    assert data.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-4)
    assert data.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-4)
    images, *_ = data.on_after_batch_transfer(next(iter(data.train_dataloader())), 0)
    assert abs(float(images.mean())) < 0.05


def test_given_constants_are_used(folder: Path):
    data = make(folder, mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
    assert data.preprocess(
        torch.full((1, 3, 12, 12), 255, dtype=torch.uint8)
    ).unique().tolist() == [2]


def test_images_keep_their_sizes_and_get_a_mask(tmp_path: Path):
    for name, size in (("a", (9, 5)), ("b", (4, 7))):
        write(tmp_path, {name: 10}, first=size[0] * 100, size=size)
    data = make(tmp_path, image_size=None, num_workers=0, batch_size=8)
    data.setup("fit")
    batch = next(iter(data.val_dataloader()))
    images, labels, index, mask = data.on_after_batch_transfer(batch, 0)
    assert images.shape == (2, 3, 7, 9)
    assert mask.sum((1, 2)).tolist() == [45, 28]
    assert (images.movedim(1, -1)[~mask] == 0).all()
    assert labels.tolist() == [0, 1]
    assert index.tolist() == [0, 1]


def test_what_is_served_is_cut_like_a_file():
    image = picture(0, (40, 30)).resize((400, 300), Image.Resampling.BICUBIC)
    tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    served = centre(tensor, 64, 0.9)[0].int()
    # `middle` rounds after each of the two axes and works with fixed-point weights.
    assert (served - middle(tensor[0], 64, 0.9).int()).abs().max() <= 2


def test_a_file_damaged_later_is_named_also_by_a_worker(folder: Path):
    data = make(folder, in_memory=False, num_workers=2)
    data.setup("fit")
    assert isinstance(data.val_set, FileDataset)
    data.val_set.file(2).write_bytes(b"")
    with pytest.raises(UserError) as told:
        list(data.val_dataloader())
    message = str(told.value).splitlines()
    assert message[0] == f"{data.val_set.file(2)}: the file is empty (0 bytes)."
    assert len(message) == 2


@pytest.mark.slow
def test_a_cut_file_stops_before_training_and_can_be_skipped(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "a" / "003.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"1 of 60 files cannot be used:\n.*003\.png: the file is"):
        make(folder).setup("fit")
    data = make(folder, on_error="skip")
    data.setup()
    assert sum(len(s) for s in (data.train_set, data.val_set, data.test_set)) == 59  # type: ignore[arg-type]
    assert "1 of 60 files cannot be used" in capsys.readouterr().out


def test_skip_leaves_out_at_most_a_twentieth_and_names_ten(folder: Path):
    for file in sorted(folder.glob("a/*"))[:12]:
        file.write_bytes(b"<html>")
    with pytest.raises(UserError, match=r"12 of 60 files cannot be used, more than the 5%") as told:
        make(folder, on_error="skip").setup("fit")
    assert str(told.value).count("web page") == 10
    assert "and 2 more" in str(told.value)


def test_a_test_file_is_checked_before_training(tmp_path: Path):
    write(tmp_path, {"train/a": 4, "train/b": 4, "test/a": 2})
    (tmp_path / "test" / "a" / "000.png").write_bytes(b"")
    with pytest.raises(UserError, match="1 of 10 files"):
        make(tmp_path).setup("fit")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"crop_fraction": 0.0}, "crop_fraction"),
        ({"val_fraction": 1.0}, "val_fraction"),
        ({"test_fraction": 1.5}, "test_fraction"),
        ({"image_size": 0}, "image_size"),
        ({"mean": [0.5]}, "mean and std go together"),
        ({"mean": [0.5], "std": [0.0]}, "std must be above 0"),
        ({"mean": [0.5], "std": [0.2], "in_channels": 3}, "one number for each"),
        ({"in_memory": True, "image_size": None}, "in_memory"),
    ],
)
def test_wrong_setting_is_refused_by_name(folder: Path, setting: dict, said: str):
    with pytest.raises(ValueError, match=said):
        make(folder, **setting)


@pytest.mark.slow
def test_a_run_goes_without_its_training_images(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = ["--config", "configs/image_folder.yaml", "--trainer.max_epochs", "1"]
    assert main(["fit", *config, "--data.data_dir", "photos"]) == 0
    (tmp_path / "other").mkdir()
    photos.rename(tmp_path / "other" / "test")
    data = load_run().datamodule
    assert isinstance(data, ImageFolderDataModule)
    assert data.class_names == ["leaf", "oak tree"]
    assert (data.in_channels, data.image_size) == (3, 12)
    assert data.preprocess(torch.zeros(1, 3, 30, 40, dtype=torch.uint8)).shape == (1, 3, 12, 12)
    assert main(["predict", "--run", "last", "--data.data_dir", "other"]) == 0
    assert len((find_run("last").path / "predictions.csv").read_text().splitlines()) == 41
    shutil.rmtree(tmp_path / "other" / "test" / "leaf")
    assert main(["test", "--run", "last", "--data.data_dir", "other"]) == 0
    assert "no image of class leaf" in capsys.readouterr().out
    (tmp_path / "other" / "test" / "oak tree").rename(tmp_path / "other" / "test" / "elm")
    assert main(["test", "--run", "last", "--data.data_dir", "other"]) == 2
    assert "class elm, but the classes are leaf, oak tree" in capsys.readouterr().err


def test_what_a_run_remembers_is_enough(tmp_path: Path):
    known = {"class_names": ["a", "b"], "in_channels": 3, "image_size": 8}
    data = make(tmp_path / "gone", **known)
    state = {"class_names": ["a", "b"], "mean": [0.5] * 3, "std": [0.25] * 3}
    data.load_state_dict(state)
    assert data.preprocess(torch.zeros(1, 3, 30, 40, dtype=torch.uint8)).unique().tolist() == [-2]
    assert data.state_dict() == state


def test_a_checkpoint_of_other_classes_is_refused(folder: Path):
    with pytest.raises(UserError, match="trained on the classes x, y"):
        make(folder).load_state_dict({"class_names": ["x", "y"], "mean": None, "std": None})


def test_images_that_keep_their_sizes_are_augmented_by_spawned_workers(
    folder: Path, trainer
) -> None:
    data = make(folder, image_size=None, in_memory=None, flip=True)
    data.trainer = trainer()
    data.trainer.open = threading.Lock()  # as a trainer in a run: it cannot be pickled
    data.setup("fit")
    batch = [(1, 0), (1, 3)]
    again = pickle.loads(pickle.dumps(data.train_set)).__getitems__(batch)
    for one, two in zip(data.train_set.__getitems__(batch), again, strict=True):
        assert torch.equal(one, two)
