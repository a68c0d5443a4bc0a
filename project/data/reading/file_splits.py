"""Which file belongs to which split: listed, checked, divided where nobody has done it."""

from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from project.data.reading.sources import (
    OnError,
    Source,
    check,
    check_classes,
    check_colours,
    say_copies,
)
from project.data.reading.survey import evenly
from project.data.split import split_by_content
from project.listing import OUTSIDE
from project.mistakes import UserError

# Training images, evenly taken, that stand for all.
_SAMPLE = 10_000
# Splits that a stage needs; fit also checks the test files, before hours of training.
NEEDED = {"validate": ("val",), "test": ("test",), "predict": ("test",)}
_EVERY = ("train", "val", "test")


class Place(Protocol):
    """Where files are."""

    def given(self) -> set[str]:
        """Return which of ``train``, ``val`` and ``test`` there are, or ``all`` to be divided."""

    def list_files(self, name: str) -> Source:
        """List the files of one of these."""


@dataclass
class Demands:
    """What files have to meet, and what happens if they do not.

    Args:
        class_names: Names of the classes, in the order of their labels.
        in_channels: 1 or 3.
        image_size: As for the data module.
        grey_only: Whether colours are a contradiction.
        max_pixels: As for read_image.
        cache_dir: What is known of files is kept here, unless None.
        on_error: ``stop`` or ``skip``.
    """

    class_names: list[str]
    in_channels: int
    image_size: int | None
    grey_only: bool
    max_pixels: int
    cache_dir: str | None
    on_error: OnError


@dataclass
class FileSplits:
    """The files of every split.

    Args:
        place: Where the files are.
        val_fraction: Share of the training images to hold out where no validation split is given.
        test_fraction: Share of all images where no split is given.
        data_seed: Which ones depends on it.
        sources: What was listed, by what the place calls it.
        rows: Files of each split, as rows of its source.
        sample: Contents of training images that stand for all, and their places in the split.
        larger: Whether any training image is larger than ``image_size``.
    """

    place: Place
    val_fraction: float
    test_fraction: float
    data_seed: int
    sources: dict[str, Source] = field(default_factory=dict)
    rows: dict[str, Tensor] = field(default_factory=dict)
    sample: tuple[Tensor, Tensor] | None = None
    larger: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction <= 1:
            raise ValueError(f"test_fraction must be in [0, 1], got {self.test_fraction}")

    @property
    def has_test(self) -> bool:
        """Whether there are images to test on."""
        given = self.place.given()
        return "test" in given or ("all" in given and self.test_fraction > 0)

    def source(self, split: str) -> Source:
        """Return where the files of a split come from; listed once."""
        name = self._name(split)
        if name not in self.sources:
            self.sources[name] = self.place.list_files(name)
        return self.sources[name]

    def _name(self, split: str) -> str:
        """What the place calls the files that a split comes from."""
        given = self.place.given()
        return "all" if "all" in given else split if split in given else "train"

    def read(self, stage: str | None, demands: Demands) -> list[str]:
        """Check the files that a stage needs and divide them; return the splits it needs.

        Raises:
            UserError: If they do not meet the demands.
        """
        if stage in ("test", "predict") and not self.has_test:
            raise UserError(
                "The data have no test split.\n"
                "Add one, or evaluate on the validation split: lightning validate --run last"
            )
        wanted = NEEDED.get(stage or "", [s for s in _EVERY if s != "test" or self.has_test])
        new = [split for split in wanted if split not in self.rows]
        if new:
            sources = {self._name(split): self.source(split) for split in new}
            self._check(sources, demands, trains=stage not in NEEDED)
        for split in wanted:
            if len(self.rows[split]) == 0:
                self._refuse(split)
        return list(wanted)

    def _check(self, found: dict[str, Source], demands: Demands, trains: bool) -> None:
        sources = list(found.values())
        check(
            sources,
            demands.in_channels,
            demands.max_pixels,
            demands.cache_dir,
            demands.on_error,
        )
        for name, source in found.items():
            training = trains and name in ("train", "all")
            check_classes(source, demands.class_names, training)
            self.rows |= self._divide(name, source, demands)
        if demands.grey_only:
            check_colours(sources)
        if {"train", "all"} & found.keys():
            say_copies(sources[0], sources[1:])  # training comes first

    def _divide(self, name: str, source: Source, demands: Demands) -> dict[str, Tensor]:
        """Return the rows of the splits that a source is for."""
        labels, contents = source.of_rows()
        rows = torch.arange(len(labels))
        splits = {name: rows}
        if name == "all":
            rows, splits["test"] = self._hold_out(labels, contents, rows, self.test_fraction)
        if name == "all" or (name == "train" and "val" not in self.place.given()):
            splits["train"], splits["val"] = self._hold_out(
                labels, contents, rows, self.val_fraction
            )
        if len(training := splits.get("train", rows[:0])):
            picked = evenly(len(training), _SAMPLE)
            self.sample = contents[training[picked]], picked
            self.larger = source.largest > (demands.image_size or 0)
        return {split: source.rows[taken] for split, taken in splits.items() if split != "all"}

    def _hold_out(
        self, labels: Tensor, contents: Tensor, rows: Tensor, share: float
    ) -> tuple[Tensor, Tensor]:
        if share in (0, 1):
            return (rows, rows[:0]) if share == 0 else (rows[:0], rows)
        kept, held_out = split_by_content(labels[rows], contents[rows], share, self.data_seed)
        return rows[kept], rows[held_out]

    def _refuse(self, split: str) -> NoReturn:
        """Raise UserError: there is no image in a split that is needed."""
        source = self.source(split)
        held = "all" in self.place.given() or split not in self.place.given()
        outside = source.left_out.get(OUTSIDE)
        why = f"{source.name} has no image{' in the folder of a class' if outside else ''}."
        what = "Add images"
        if held and len(source.rows):
            why = (
                f"{len(source.rows):,} images in {source.name} leave none for {split}: no class "
                "has enough different ones to train, validate and test on."
            )
        if "all" in self.place.given() and (split == "test" or self.test_fraction > 0):
            share = "test on all of them: 1" if split == "test" else "test on none: 0"
            what += f", or set --data.test_fraction ({share})"
        raise UserError(f"{why}\n{what}.")
