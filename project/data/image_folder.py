"""A folder of images, with a folder for every class."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from project.data.files import ImageFilesDataModule
from project.data.reading.index import class_folders, list_folder
from project.data.reading.sources import SPLITS, Source, nearest, note, some
from project.mistakes import UserError, did_you_mean


class ImageFolderDataModule(ImageFilesDataModule):
    """Images in ``data_dir/train|val|test/<class>/…``, or only in ``data_dir/<class>/…``.

    Without ``val``, a share of the training images is held out; without any split, another share
    for the test.

    Args:
        data_dir: The folder.
        kwargs: See :class:`ImageFilesDataModule`.

    Raises:
        ValueError: If an argument is outside its range.
        UserError: If the folder is not as described above.
    """

    def __init__(self, data_dir: str, **kwargs: Any) -> None:
        self.data_dir = data_dir
        super().__init__(**kwargs)

    def given(self) -> set[str]:
        """Return which of ``train``, ``val`` and ``test`` there are, or ``all`` to be divided."""
        return set(self._folders)

    def find_class_names(self) -> list[str]:
        """Return the names of the class folders of training, sorted.

        Raises:
            UserError: If there are none.
        """
        folders = self._folders
        if "train" not in folders and "all" not in folders:
            raise UserError(
                f"{self.data_dir} has {_named(folders)}, but no train/ to learn from.\n"
                "To evaluate a run on it: lightning test --run last "
                f"--data.data_dir {self.data_dir}"
            )
        folder = folders.get("train") or folders["all"]
        names = self._inside(folder)
        if len(names) < 2:
            raise UserError(
                f"{folder} has {'only the class ' + names[0] if names else 'no class folders'}; "
                "two classes are the least.\nIt has to hold a folder for every class, with the "
                "images of the class in it."
            )
        return names

    def list_files(self, name: str) -> Source:
        """List the files of a split, or all of them.

        Raises:
            UserError: If there are other classes than ``class_names``.
        """
        folders = self._folders
        if name not in folders:
            raise UserError(
                f"{self.data_dir} has only {_named(folders)}.\n"
                "Set --data.data_dir to a folder with train/, or with val/ to validate."
            )
        folder = folders[name]
        others = [found for found in self._inside(folder) if found not in self.class_names]
        if others:
            raise UserError(
                f"{folder} has {some(others)}, but the classes are {', '.join(self.class_names)}."
                f"{did_you_mean(others[0], self.class_names)}\n"
                "Rename or remove the folder, or correct --data.class_names, where a run has those "
                "that its network was trained on."
            )
        listing = list_folder(folder, self.class_names)
        labels = torch.from_numpy(listing.labels)
        bad = [(str(folder / path), reason) for path, reason in listing.bad]
        return Source(str(folder), folder, listing.paths, labels, bad, listing.left_out)

    @cached_property
    def _folders(self) -> dict[str, Path]:
        """Return the folder of every split there is, or of ``all``.

        A folder is a split by its name if there are folders in it: trains can be a class, too.
        """
        root = Path(self.data_dir)
        inside = self._inside(root)
        found: dict[str, list[str]] = {split: [] for split in SPLITS}
        for split, words in SPLITS.items():
            found[split] = [n for n in inside if n.lower() in words and self._inside(root / n)]
            if len(found[split]) > 1:
                raise UserError(
                    f"{root} has {' and '.join(f'{n}/' for n in found[split])}: which of them is "
                    f"{split}?\nRename or remove the other one."
                )
        splits = {split: root / names[0] for split, names in found.items() if names}
        if splits:
            self._check_rest(root, [n for n in inside if root / n not in splits.values()])
        return splits or {"all": root}

    def _check_rest(self, root: Path, rest: list[str]) -> None:
        """Ask about what may be a split or a class beside the splits; say what else there is."""
        alike = [name for name in rest if self._inside(root / name)]
        if alike:
            raise UserError(
                f"{root} has train/, val/ or test/, and {', '.join(f'{n}/' for n in alike)} beside "
                "them.\nRename what is a split to train, val or test; move what is none elsewhere."
            )
        if rest:
            note(f"Not read: {', '.join(str(root / name) for name in rest)}")

    def _inside(self, folder: Path) -> list[str]:
        """Return the names of the folders in a folder; runs written there (logs/) are no class.

        Raises:
            UserError: If it cannot be listed.
        """
        own = Path(self.cache_dir or "logs").resolve()
        try:
            names = class_folders(folder)
        except OSError as error:
            raise UserError(
                f"{folder} cannot be read: {(error.strerror or str(error)).lower()}."
                f"{nearest(folder)}\n"
                "Set --data.data_dir to a folder with a folder for every class."
            ) from None
        return [name for name in names if not own.is_relative_to((folder / name).resolve())]


def _named(folders: Mapping[str, Path]) -> str:
    return " and ".join(f"{folder.name}/" for folder in folders.values())
