"""A picture of a training batch with its labels, in TensorBoard."""

import math
import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from project.doctor.isolation import isolated
from project.doctor.loop import Broken
from project.doctor.registry import Skip
from project.doctor.subject import Subject

TILE = 96  # px
# TensorBoard leaves out pixels to show a sheet on a card of some 330 px: letters grow with it.
TEXT = 1 / 26  # of the sheet's width
SMALLEST = 13  # px
MOST = 36  # images


def write_sheet(subject: Subject, folder: Path) -> Path | None:
    """Write the first training images as the network gets them, in place of an older picture.

    Args:
        subject: Has the data.
        folder: Of the event file.

    Returns:
        The folder, or None if batches hold no images or nothing can be written there.
    """
    from torch.utils.tensorboard import SummaryWriter

    try:
        with isolated(subject.seed):
            images, labels = subject.pairs("train")[0]
    except (Skip, Broken):
        return None
    if images.dim() != 4 or images.shape[1] not in (1, 3) or not len(images):
        return None
    picture = sheet(images[:MOST].float(), labels[:MOST], subject.class_names)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with SummaryWriter(str(folder)) as writer:
            writer.add_image("train/batch", np.asarray(picture), 0, dataformats="HWC")
    except OSError:  # the findings are what counts
        return None
    return folder


def sheet(images: Tensor, labels: Tensor, names: list[str] | None) -> Image.Image:
    """Draw images ``(B, C, H, W)``, each stretched to its own range, its label below it."""
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    scaled = ((images - low) / (high - low).clamp_min(1e-8)).nan_to_num(0.0) * 255
    pixels = scaled.to(torch.uint8).expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()
    columns = math.ceil(math.sqrt(len(pixels)))
    height = max(SMALLEST, round(columns * (TILE + 8) * TEXT))
    step = TILE + height + 10
    size = (columns * (TILE + 8), -(-len(pixels) // columns) * step)
    whole = Image.new("RGB", size, (255, 255, 255))
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default(height)
    for index, label in enumerate(labels):
        left, top = index % columns * (TILE + 8) + 4, index // columns * step + 4
        tile = Image.fromarray(np.ascontiguousarray(pixels[index]))
        whole.paste(tile.resize((TILE, TILE), Image.Resampling.NEAREST), (left, top))
        text = _named(label, names)
        while font.getlength(text) > TILE and len(text) > 2:
            text = text[:-2] + "…"
        draw.text((left + TILE // 2, top + TILE + 2), text, (20, 20, 20), font, anchor="ma")
    return whole


def _named(label: Tensor, names: list[str] | None) -> str:
    """Say a label as a class, as a mix of classes, or as numbers."""
    if label.dim() == 0:
        value = label.item()
        known = isinstance(value, int) and names is not None and 0 <= value < len(names)
        return names[int(value)] if names and known else f"{value:.4g}"
    if label.dim() == 1 and label.is_floating_point():
        best = label.topk(min(2, len(label)))
        parts = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        name = names if names and len(names) == len(label) else list(map(str, range(len(label))))
        return ", ".join(f"{value:.0%} {name[i]}" for value, i in parts if value > 0)
    return f"{tuple(label.shape)}"
