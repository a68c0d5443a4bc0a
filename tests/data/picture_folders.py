"""Small folders of pictures for the tests of the data modules that read files."""

from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, size: tuple[int, int] = (8, 8), grey: bool = False) -> Image.Image:
    """A picture of noise; two with the same seed are equal."""
    shape = size[::-1] if grey else (*size[::-1], 3)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def write(folder: Path, counts: dict[str, int], first: int = 0, **kwargs) -> Path:
    """Write ``counts`` pictures into each of the folders below ``folder``, no two equal."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture(first, **kwargs).save(folder / name / f"{number:03d}.png")
            first += 1
    return folder
