"""What goes into an exported file: preprocessing, network and softmax as one module."""

from collections.abc import Callable
from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn

from project.mistakes import UserError

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class Whole(nn.Module):
    """From images to probs or logits, float32 on both sides whatever it computes in.

    Args:
        task: Maps normalised images ``(B, C, H, W)`` to logits ``(B, num_classes)``.
        preprocess: Maps uint8 ``(B, C, H, W)`` to normalised images; None if these are given.
        softmax: Whether probs come out, else logits.
        precision: ``float32``, ``float16`` or ``bfloat16``: what the task computes in.
    """

    def __init__(
        self,
        task: nn.Module,
        preprocess: Callable[[Tensor], Tensor] | None,
        softmax: bool,
        precision: str = "float32",
    ) -> None:
        super().__init__()
        self.half_type = HALVES.get(precision)
        self.task = task if self.half_type is None else deepcopy(task).to(self.half_type)
        self.preprocess, self.softmax = preprocess, softmax
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(B, C, H, W)`` to probs or logits ``(B, num_classes)``."""
        if self.preprocess is not None:
            images = self.preprocess(images)
        logits = self.task(images if self.half_type is None else images.to(self.half_type)).float()
        return cast(Tensor, logits.softmax(dim=1) if self.softmax else logits)


@torch.inference_mode()
def eager(whole: Whole, images: Tensor) -> Tensor:
    """Compute what the file has to repeat.

    Raises:
        UserError: If the task does not map images to logits.
    """
    outputs = whole.task(images if whole.preprocess is None else whole.preprocess(images))
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != len(images):
        what = f"a tensor of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else ""
        raise UserError(
            f"{type(whole.task).__name__}.forward returned {what or type(outputs).__name__} for "
            f"{len(images)} images.\nWhat is exported maps images (B, C, H, W) to logits "
            "(B, num_classes): write a forward that does."
        )
    outputs = outputs.float()
    return outputs.softmax(dim=1) if whole.softmax else outputs
