"""Images of different sizes in one batch: padded to the largest, with a mask of what is image."""

from collections.abc import Sequence

import torch
from torch import Tensor


def pad(images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Put images of different sizes into one tensor, each in the top left corner.

    The padding is 0. It must not count as black: :func:`blank` makes it 0 once more after
    normalisation, which is the mean of the training set and what a convolution pads with.

    Args:
        images: At least one, ``(C, h, w)``, all of one dtype.

    Returns:
        Images ``(B, C, H, W)`` with the largest height and the largest width, and the mask, bool
        ``(B, H, W)``, True where there is image.
    """
    height, width = (max(image.shape[axis] for image in images) for axis in (1, 2))
    batch = images[0].new_zeros(len(images), len(images[0]), height, width)
    mask = torch.zeros(len(images), height, width, dtype=torch.bool)
    for image, room, inside in zip(images, batch, mask, strict=True):
        corner = slice(image.shape[1]), slice(image.shape[2])
        room[:, *corner] = image
        inside[corner] = True
    return batch, mask


def blank(images: Tensor, mask: Tensor) -> Tensor:
    """Set the padding of normalised images ``(B, C, H, W)`` to 0, in place.

    Args:
        images: float.
        mask: bool ``(B, H, W)``, True where there is image.
    """
    return images.masked_fill_(~mask[:, None], 0)
