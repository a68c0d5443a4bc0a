"""Images that were padded to one size: which networks are told what is image."""

import inspect

from torch import Tensor, nn


def takes_mask(net: nn.Module) -> bool:
    """Whether the ``forward`` of a network has an argument ``mask``."""
    return "mask" in inspect.signature(net.forward).parameters


def inputs(batch: Tensor | tuple[Tensor, ...] | list[Tensor], masked: bool) -> tuple[Tensor, ...]:
    """Return what a network gets of a batch.

    Args:
        batch: Images alone, or ``(images, labels, ...)``, with padding ``(images, labels, index,
            mask)``, the mask bool ``(B, H, W)``, True where there is image.
        masked: Whether the network takes a mask.
    """
    if isinstance(batch, Tensor):
        return (batch,)
    return (batch[0], batch[3]) if masked and len(batch) > 3 else (batch[0],)
