"""Folders of images: which folders are splits, which are classes, and what is said if neither."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from picture_folders import picture, write

from project.data import ImageFolderDataModule
from project.mistakes import UserError


def sizes(data: ImageFolderDataModule) -> list[int]:
    data.setup()
    sets = data.train_set, data.val_set, data.test_set
    return [0 if split is None else len(split) for split in sets]


def test_folders_of_splits_are_the_splits(tmp_path: Path) -> None:
    write(tmp_path, {"train/a": 3, "train/b": 4, "val/a": 2, "val/b": 1, "test/a": 1, "test/b": 1})
    data = ImageFolderDataModule(str(tmp_path))
    assert data.class_names == ["a", "b"]
    assert sizes(data) == [7, 3, 2]
    assert data.class_counts == [3, 4]


def test_folders_of_classes_alone_are_divided_by_class(tmp_path: Path) -> None:
    data = ImageFolderDataModule(str(write(tmp_path, {"a": 40, "b": 20})))
    assert sizes(data) == [48, 6, 6]
    assert data.class_counts == [32, 16]
    assert data.has_test


def test_validation_is_held_out_where_only_the_test_is_given(tmp_path: Path) -> None:
    data = ImageFolderDataModule(str(write(tmp_path, {"train/a": 10, "train/b": 10, "test/a": 3})))
    assert sizes(data) == [18, 2, 3]


def test_without_a_test_folder_there_is_no_test(tmp_path: Path) -> None:
    data = ImageFolderDataModule(str(write(tmp_path, {"train/a": 10, "train/b": 10})))
    assert not data.has_test
    assert sizes(data) == [18, 2, 0]
    with pytest.raises(UserError, match="no test split"):
        data.setup("test")


@pytest.mark.parametrize(
    "names", [("Training", "valid", "testing"), ("TRAIN", "validation", "Test")]
)
def test_splits_are_known_by_other_names(tmp_path: Path, names: tuple[str, str, str]) -> None:
    train, val, test = names
    write(tmp_path, {f"{s}/{c}": 2 for s in (train, val, test) for c in "ab"})
    data = ImageFolderDataModule(str(tmp_path))
    assert data.class_names == ["a", "b"]
    assert sizes(data) == [4, 4, 4]


def test_two_folders_for_one_split_are_asked_about(tmp_path: Path) -> None:
    write(tmp_path, {f"{s}/{c}": 1 for s in ("train", "val", "valid") for c in "ab"})
    with pytest.raises(UserError, match=r"val/ and valid/: which of them is val"):
        ImageFolderDataModule(str(tmp_path))


def test_a_strange_split_is_asked_about_and_no_class(tmp_path: Path) -> None:
    write(tmp_path, {f"{s}/{c}": 1 for s in ("train", "holdout") for c in "ab"})
    with pytest.raises(UserError, match="holdout/ beside"):
        ImageFolderDataModule(str(tmp_path))


def test_train_may_be_a_class_beside_the_bus(tmp_path: Path) -> None:
    data = ImageFolderDataModule(str(write(tmp_path, {"train": 10, "bus": 10})))
    assert data.class_names == ["bus", "train"]


def test_labels_go_by_the_classes_of_training_where_validation_lacks_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {"train/a": 2, "train/b": 2, "train/c": 2, "val/b": 1, "val/c": 1})
    data = ImageFolderDataModule(str(tmp_path))
    data.setup("fit")
    assert data.val_set is not None
    assert data.val_set.__getitems__([0, 1])[1].tolist() == [1, 2]
    assert f"Warning: {tmp_path / 'val'} has no image of class a" in capsys.readouterr().out


def test_a_class_that_training_lacks_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"train/a": 2, "train/b": 2, "val/a": 1, "val/leaf": 1})
    with pytest.raises(UserError, match=r"val has class leaf, but the classes are a, b"):
        ImageFolderDataModule(str(tmp_path)).setup("fit")


def test_a_class_without_images_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a": 4, "b": 4, "empty": 0})
    with pytest.raises(UserError, match="has no image of class empty"):
        ImageFolderDataModule(str(tmp_path)).setup("fit")


def test_one_image_in_every_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"2 images in .* leave none for val: no class"):
        ImageFolderDataModule(str(write(tmp_path, {"a": 1, "b": 1}))).setup("fit")


def test_a_folder_lacking_a_class_can_be_tested_on_as_a_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {"class_names": ["a", "b", "c"], "in_channels": 3, "image_size": 8}
    data = ImageFolderDataModule(str(write(tmp_path, {"a": 3, "c": 2})), **known, test_fraction=1)
    data.setup("test")
    assert data.test_set is not None
    assert data.test_set.targets.tolist() == [0, 0, 0, 2, 2]
    assert "no image of class b" in capsys.readouterr().out


def test_a_single_image_of_one_class_is_trained_on(tmp_path: Path) -> None:
    data = ImageFolderDataModule(str(write(tmp_path, {"a": 1, "b": 20})))
    data.setup("fit")
    assert data.class_counts == [1, 16]


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({}, "no class folders"),
        ({"only": 3}, "only the class only"),
        ({"train/only": 3, "test/only": 1}, "only the class only"),
        ({"test/a": 1, "test/b": 1}, "no train/ to learn from"),
    ],
)
def test_a_folder_without_classes_to_learn_is_refused(
    tmp_path: Path, counts: dict[str, int], said: str
) -> None:
    with pytest.raises(UserError, match=said) as told:
        ImageFolderDataModule(str(write(tmp_path, counts)))
    assert len(str(told.value).splitlines()) <= 3


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere cannot be read: no such file"):
        ImageFolderDataModule(str(tmp_path / "nowhere"))


def test_copies_between_given_splits_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {"train/a": 4, "train/b": 4, "test/a": 2, "test/b": 2}, first=0)
    picture(1).save(tmp_path / "test" / "b" / "copy.png")
    ImageFolderDataModule(str(tmp_path)).setup("fit")
    told = capsys.readouterr().out
    assert "Warning: images of " in told
    assert "also trained on: 1" in told
    assert f"{Path('test', 'b', 'copy.png')} = " in told
    assert str(Path("train", "a", "001.png")) in told


def test_runs_written_beside_the_classes_are_no_class(tmp_path: Path) -> None:
    write(tmp_path, {"a": 4, "b": 4})
    for _ in range(2):
        ImageFolderDataModule(".").setup("fit")
    assert (tmp_path / "logs").is_dir()


def test_given_class_names_are_the_order_of_the_labels(tmp_path: Path) -> None:
    write(tmp_path, {"a": 4, "b": 8})
    data = ImageFolderDataModule(str(tmp_path), class_names=["b", "a"], test_fraction=0)
    data.setup("fit")
    assert data.class_counts == [7, 3]


def test_labels_and_pixels_are_those_of_the_files(tmp_path: Path) -> None:
    write(tmp_path, {"train/a": 3, "train/b": 3, "test/a": 2, "test/b": 2})
    data = ImageFolderDataModule(str(tmp_path))
    data.setup("test")
    assert data.test_set is not None
    images, labels, _ = data.test_set.__getitems__([3, 0])
    assert labels.tolist() == [1, 0]
    assert np.array_equal(images[0].permute(1, 2, 0), np.array(picture(9)))


def test_a_near_name_is_proposed_for_a_folder_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path / "photos", {"a": 2, "b": 2})
    with pytest.raises(UserError, match=r"no such file or directory\. Did you mean photos\?"):
        ImageFolderDataModule(str(tmp_path / "fotos" / "small"))


def test_validation_on_a_folder_with_test_only_is_refused(tmp_path: Path) -> None:
    known = {"class_names": ["a", "b"], "in_channels": 3, "image_size": 8}
    data = ImageFolderDataModule(str(write(tmp_path / "test", {"a": 3, "b": 2}).parent), **known)
    with pytest.raises(UserError, match=r"has only test/\.\nSet --data\.data_dir to a folder with"):
        data.setup("validate")


def test_images_outside_of_the_class_folders_are_not_none(tmp_path: Path) -> None:
    known = {"class_names": ["a", "b"], "in_channels": 3, "image_size": 8}
    data = ImageFolderDataModule(str(write(tmp_path, {"photos": 3}) / "photos"), **known)
    with pytest.raises(UserError, match=r"photos has no image in the folder of a class\."):
        data.setup("test")
