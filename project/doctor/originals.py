"""The task as it was given: what a copy cannot keep checks away from."""

import lightning as L
import torch
from torch import Tensor


class Originals:
    """Tensors and modes of the task itself.

    Copies keep checks away from them, but for functions that hold them: an optimizer made by
    ``lambda: Adam(net.parameters())`` moves the task's own weights.

    Args:
        task: The task.
    """

    def __init__(self, task: L.LightningModule) -> None:
        tensors = [*task.parameters(), *task.buffers()]
        self.kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self.grads = [(p, p.grad, p.requires_grad) for p in task.parameters()]
        self.modes = [(module, module.training) for module in task.modules()]
        self.ids = [id(parameter) for parameter in task.parameters()]

    def restore(self) -> None:
        """Put back what has changed."""
        for tensor, value in self.kept:
            if not _same(tensor, value):
                tensor.data = value.clone()
        for parameter, grad, requires_grad in self.grads:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad
        for module, training in self.modes:
            module.training = training


def _same(tensor: Tensor, value: Tensor) -> bool:
    return (
        tensor.shape == value.shape
        and tensor.dtype == value.dtype
        and torch.equal(tensor.detach(), value)
    )
