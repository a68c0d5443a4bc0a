"""A table of image files and their labels."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any

from project.data.files import ImageFilesDataModule
from project.data.reading.index import PathTable
from project.data.reading.sources import Source, nearest
from project.data.reading.survey import evenly
from project.data.reading.table import Columns, Table
from project.data.reading.table_reader import read_table
from project.mistakes import UserError

# Files that are looked for at first.
_LOOK = 20


class ImageCSVDataModule(ImageFilesDataModule):
    """Images named in a table: a line for each, with its path, its label and maybe its split.

    The separator (comma, semicolon or tab) is found, and so is whether there is a header; without
    one, the first column is the path, the second the label, a third the split. Splits are called
    train, val (valid, validation, dev) and test. Without any in val, a share of the training images
    is held out; without a column for them, another share for the test.

    Args:
        csv_file: The table, UTF-8.
        image_dir: What paths are relative to; by default the folder of the table.
        path_column: Header of the column of paths.
        label_column: Header of the column of labels: names, or integers from 0 on.
        split_column: Header of the column of splits; there need not be one.
        kwargs: See :class:`ImageFilesDataModule`.

    Raises:
        ValueError: If an argument is outside its range.
        UserError: If the table is not as described above.
    """

    def __init__(
        self,
        csv_file: str,
        image_dir: str | None = None,
        path_column: str = "path",
        label_column: str = "label",
        split_column: str = "split",
        **kwargs: Any,
    ) -> None:
        self.csv_file = csv_file
        self.image_dir = Path(csv_file).parent if image_dir is None else Path(image_dir)
        self._columns = Columns(path_column, label_column, split_column)
        super().__init__(**kwargs)

    def given(self) -> set[str]:
        """Return which of ``train``, ``val`` and ``test`` there are, or ``all`` to be divided."""
        return set(self._table.splits)

    def find_class_names(self) -> list[str]:
        """Return the labels of training, sorted; numbers by their value.

        Raises:
            UserError: If there are none, or they are no classes.
        """
        self._check_given("all" if "all" in self.given() else "train")
        return self._table.class_names("all" if "all" in self.given() else "train")

    def list_files(self, name: str) -> Source:
        """Return the files of a split, or all of them.

        Raises:
            UserError: If there are none.
        """
        self._check_given(name)
        self._check_place()
        table = self._table
        rows = table.rows(name)
        labels = table.labels(rows, self.class_names)
        bad = [
            (f"{self.csv_file}, line {int(table.lines[row])} ({table.paths[row]})", reason)
            for row in rows[labels < 0].tolist()
            for reason in [f"the label {table.texts[table.codes[row]]!r} is none of the classes"]
        ]
        rows, labels = rows[labels >= 0], labels[labels >= 0]
        paths = table.paths  # not once more, if all of them are meant
        if len(rows) < len(paths):
            paths = PathTable.of(table.paths[row] for row in rows.tolist())
        where = self.csv_file if name == "all" else f"{self.csv_file} ({name})"
        return Source(
            where, self.image_dir, paths, labels, table.bad + bad, lines=table.lines[rows]
        )

    def _check_given(self, name: str) -> None:
        table = self._table
        if not table.splits:
            why = f"\n{': '.join(table.bad[0])}." if table.bad else ""
            raise UserError(f"{self.csv_file} has no line that can be used.{why}")
        if name not in table.splits:
            raise UserError(
                f"{self.csv_file} has no lines for {name}; its column {self._columns.split} has "
                f"{', '.join(sorted(table.splits))}.\nSet --data.csv_file."
            )

    def _check_place(self) -> None:
        """Ask for the folder if it seems to be another one: one message for all files."""
        paths = self._table.paths
        some = [paths[row] for row in evenly(len(paths), _LOOK).tolist()]
        if len(some) > 1 and not any(os.path.lexists(self.image_dir / path) for path in some):
            raise UserError(
                f"The files of {self.csv_file} are not there, e.g. {self.image_dir / some[0]}."
                f"{nearest(self.image_dir)}\nPaths are relative to the table, or to "
                "--data.image_dir."
            )

    @cached_property
    def _table(self) -> Table:
        return read_table(Path(self.csv_file), self.image_dir, self._columns)
