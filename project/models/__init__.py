"""Networks: plain ``nn.Module``, images ``(B, C, H, W)`` in, logits ``(B, num_classes)`` out."""

from project.models.convnet import ConvNet
from project.models.mlp import MLP

__all__ = ["MLP", "ConvNet"]
