"""The picture of a learning-rate range test, in TensorBoard."""

import math
import shutil
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from project.drawing import BLACK, WHITE, font
from project.tuning.rate import Range

SIZE, LEFT, TOP, BOTTOM = (640, 400), 80, 40, 40  # px
GREY, BLUE, RED = (200, 200, 200), (31, 119, 180), (214, 39, 40)
TEXT = 22  # px; TensorBoard leaves out every other pixel to show it on a card


def write(found: Range, folder: Path) -> Path | None:
    """Write it in place of an older one; return the folder, or None where the disk refuses it.

    Args:
        found: The test.
        folder: Of the event file.
    """
    from torch.utils.tensorboard import SummaryWriter

    shutil.rmtree(folder, ignore_errors=True)
    try:
        with SummaryWriter(str(folder)) as writer:
            writer.add_image("learning_rate/range", np.asarray(draw(found)), 0, dataformats="HWC")
    except OSError:  # the settings are what counts
        return None
    return folder


def draw(found: Range) -> Image.Image:
    """Draw every loss as a dot, the smoothed ones as a line, the suggestion as an upright."""
    picture = Image.new("RGB", SIZE, WHITE)
    pen = ImageDraw.Draw(picture)
    right, floor = SIZE[0] - 20, SIZE[1] - BOTTOM
    first, last = math.log10(found.rates[0]), math.log10(found.rates[-1])
    # One loss that shoots up would flatten all that matters.
    low, high = min(found.losses), max(found.smooth)
    high = high if high > low else low + 1.0

    def place(rate: float, loss: float) -> tuple[float, float]:
        across = (math.log10(rate) - first) / ((last - first) or 1.0)
        down = (high - min(loss, high)) / (high - low)
        return LEFT + across * (right - LEFT), TOP + down * (floor - TOP)

    for decade in range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1):
        x, _ = place(10.0**decade, low)
        pen.line((x, TOP, x, floor), GREY)
        pen.text((x, floor + 4), f"1e{decade}", BLACK, font(TEXT), anchor="ma")
    for loss in (low, (low + high) / 2, high):
        _, y = place(found.rates[0], loss)
        pen.line((LEFT, y, right, y), GREY)
        pen.text((LEFT - 4, y), f"{loss:.3g}", BLACK, font(TEXT), anchor="rm")
    for rate, loss in zip(found.rates, found.losses, strict=True):
        x, y = place(rate, loss)
        pen.ellipse((x - 1.5, y - 1.5, x + 1.5, y + 1.5), GREY)
    pen.line([place(*point) for point in zip(found.rates, found.smooth, strict=True)], BLUE, 2)
    title = "training loss by learning rate"
    if found.rate is not None:
        x, _ = place(found.rate, low)
        pen.line((x, TOP, x, floor), RED, 2)
        title += f"; suggested: {found.rate:g}"
    pen.text((8, 6), title, BLACK, font(TEXT))
    return picture
