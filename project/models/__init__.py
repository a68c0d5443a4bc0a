"""Networks: plain ``nn.Module``, images ``(B, C, H, W)`` in, logits ``(B, num_classes)`` out."""

from project.models.convnet import ConvNet
from project.models.masked_convnet import MaskedConvNet
from project.models.mlp import MLP
from project.models.torchvision_net import TorchvisionNet
from project.models.whitened_convnet import WhitenedConvNet

__all__ = ["MLP", "ConvNet", "MaskedConvNet", "TorchvisionNet", "WhitenedConvNet"]
