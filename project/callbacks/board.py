"""What callbacks share to write to TensorBoard: the writer, class names, text that fits."""

from functools import cache
from typing import TYPE_CHECKING, Any, cast

import lightning as L
import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Color = tuple[int, int, int]
BLACK: Color = (20, 20, 20)
WHITE: Color = (255, 255, 255)


def tensorboard_writer(trainer: L.Trainer) -> "SummaryWriter | None":
    """The run's TensorBoard writer; None on other ranks and where no TensorBoard logger is set."""
    if not trainer.is_global_zero:
        return None
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            return cast("SummaryWriter", logger.experiment)
    return None


def class_names(trainer: L.Trainer, num_classes: int) -> list[str]:
    """Names from ``trainer.datamodule.class_names``, or the class numbers where none fit."""
    names: Any = getattr(getattr(trainer, "datamodule", None), "class_names", None)
    if names is None or len(names) != num_classes:
        return [str(index) for index in range(num_classes)]
    return [str(name) for name in names]


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """PIL's built-in font, so that no font file is needed; ``size`` in pixels."""
    return ImageFont.load_default(size)


def fit_text(text: str, width: float, size: int) -> str:
    """``text``, shortened in the middle to ``width`` px: long names often differ at the end."""
    face = font(size)
    if face.getlength(text) <= width:
        return text
    for kept in range(len(text) - 1, 0, -1):
        head, tail = (kept + 1) // 2, kept // 2
        short = text[:head] + "…" + text[len(text) - tail :]
        if face.getlength(short) <= width:
            return short
    return "…"


def upright_text(text: str, size: int, color: Color = BLACK) -> Image.Image:
    """A picture of ``text`` on white that reads upwards, for the head of a narrow column."""
    width, height = int(font(size).getlength(text)) + 2, size + 4
    flat = Image.new("RGB", (width, height), WHITE)
    ImageDraw.Draw(flat).text((1, height // 2), text, color, font(size), anchor="lm")
    return flat.rotate(90, expand=True)


def add_picture(writer: "SummaryWriter", tag: str, picture: Image.Image, step: int) -> None:
    """Log ``picture`` under ``tag``."""
    writer.add_image(tag, np.asarray(picture), step, dataformats="HWC")
