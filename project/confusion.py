"""A confusion matrix as a picture, and the figures of every class as a table."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from torch import Tensor

from project.drawing import BLACK, WHITE, fit_text, font, upright_text

Counts = npt.NDArray[np.int64]

_BLUE = np.array([8, 69, 148], dtype=np.float64)
_RED = np.array([165, 15, 21], dtype=np.float64)
_LABEL_WIDTH = 200  # px for a class name
_COUNTED = 20  # at most so many classes have their counts written into the cells
_SIDE = 1200  # px, side of the matrix with many classes
# TensorBoard leaves out pixels to show the picture on a card of some 330 px: letters grow with it.
_TEXT = 1 / 22  # of the side
_SIZES = 13, 28  # px, smallest and largest


def per_class_table(figures: Sequence[Tensor], names: list[str]) -> str:
    """Precision, recall, F1 and support of every class as a markdown table.

    Args:
        figures: These four, each ``(num_classes,)``; NaN where one is not defined.
        names: Name of each class.
    """
    lines = ["| class | precision | recall | f1 | support |", "|---|---:|---:|---:|---:|"]
    cells = [cell(name) for name in names]
    columns = [column.tolist() for column in figures]
    for name, *values, support in zip(cells, *columns, strict=True):
        lines.append(f"| {name} | {' | '.join(map(_figure, values))} | {support} |")
    absent = [name for name, support in zip(cells, columns[-1], strict=True) if support == 0]
    if absent:
        lines += ["", f"n/a: no samples of {', '.join(absent)}."]
    return "\n".join(lines)


def cell(text: str) -> str:
    """A name that Markdown takes for neither the end of a cell or its row nor HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _figure(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.4f}"


def draw_confusion_matrix(counts: Counts, names: list[str]) -> Image.Image:
    """The matrix as a picture, coloured by share of the row: right ones blue, wrong ones red.

    Args:
        counts: ``(num_classes, num_classes)``, rows true, columns predicted.
        names: Name of each class.
    """
    classes = len(counts)
    cell = 48 if classes <= _COUNTED else max(1, _SIDE // classes)
    side = classes * cell
    words = min(max(_SIZES[0], round(side * _TEXT)), _SIZES[1])
    text = min(words, cell - 1)
    # Above some hundred classes no name fits beside its row; the colours still show blocks.
    labels = [fit_text(name, _LABEL_WIDTH, text) if text >= 8 else "" for name in names]
    margin = words + 21 + max(int(font(max(1, text)).getlength(label)) for label in labels)
    caption = _caption(counts)
    width = max(margin + side, 12 + int(font(words).getlength(caption))) + 12
    picture = Image.new("RGB", (width, margin + side + words + 19), WHITE)
    cells = Image.fromarray(_colors(counts)).resize((side, side), Image.Resampling.NEAREST)
    picture.paste(cells, (margin, margin))
    draw = ImageDraw.Draw(picture)
    if cell >= 8:
        _draw_lines(draw, margin, cell, classes)
    _draw_names(picture, draw, labels, margin, cell, (text, words))
    if classes <= _COUNTED:
        _draw_counts(draw, counts, margin, cell, text)
    draw.text((12, margin + side + 8), caption, BLACK, font(words))
    return picture


def _shares(counts: Counts) -> npt.NDArray[np.float64]:
    """Every cell's share of its row; zero in a row without samples."""
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def _colors(counts: Counts) -> npt.NDArray[np.uint8]:
    """Bytes ``(num_classes, num_classes, 3)``."""
    # The square root makes a mistake of one in a hundred visible.
    strength = np.sqrt(_shares(counts))[..., None]
    full = np.where(np.eye(len(counts), dtype=bool)[..., None], _BLUE, _RED)
    return np.asarray(255 + (full - 255) * strength).round().astype(np.uint8)


def _draw_lines(draw: ImageDraw.ImageDraw, margin: int, cell: int, classes: int) -> None:
    end = margin + classes * cell
    for index in range(classes + 1):
        at = margin + index * cell
        draw.line((margin, at, end, at), (225, 225, 225))
        draw.line((at, margin, at, end), (225, 225, 225))


def _draw_names(
    picture: Image.Image,
    draw: ImageDraw.ImageDraw,
    labels: list[str],
    margin: int,
    cell: int,
    sizes: tuple[int, int],
) -> None:
    """Class names left of the rows and, upright, above the columns; what these are beside them."""
    text, words = sizes
    for index, label in enumerate(labels):
        middle = margin + index * cell + cell // 2
        if label:
            draw.text((margin - 6, middle), label, BLACK, font(text), anchor="rm")
            upright = upright_text(label, text)
            picture.paste(upright, (middle - upright.width // 2, margin - 6 - upright.height))
    middle = margin + len(labels) * cell // 2
    draw.text((middle, 4), "predicted", BLACK, font(words), anchor="ma")
    upright = upright_text("true", words)
    picture.paste(upright, (4, middle - upright.height // 2))


def _draw_counts(
    draw: ImageDraw.ImageDraw, counts: Counts, margin: int, cell: int, text: int
) -> None:
    """The number of samples in every cell that has some, as large as the cell lets it be."""
    dark = _colors(counts).mean(axis=2) < 140
    for row, column in np.argwhere(counts):
        where = (margin + column * cell + cell // 2, margin + row * cell + cell // 2)
        number = str(counts[row, column])
        size = min(text, int((cell - 4) * text / font(text).getlength(number)))
        color = WHITE if dark[row, column] else BLACK
        draw.text(where, number, color, font(size), anchor="mm")


def _caption(counts: Counts) -> str:
    total, right = int(counts.sum()), int(np.trace(counts))
    share = f" ({100 * right / total:.2f} %)" if total else ""
    return f"{right} of {total} right{share}; blue right, red wrong"
