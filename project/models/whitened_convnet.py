"""A network for CIFAR-10 that learns in a few epochs: its first layer whitens the images."""

from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

PATCH = 2  # pixels


class Whitening(nn.Module):
    """Project every patch of an image onto the principal axes of patches, with unit variance.

    A convolution ``(B, C, H, W)`` to ``(B, 8 * C, H - 1, W - 1)``: every axis, and its negative,
    which the ReLU of what follows would lose. Its weights come from the first batch in training, of
    several processes from that of the first, and stay. Axes of less variance than ``eps`` are
    noise, and are not blown up.

    Args:
        in_channels: Colour channels of an image.
        eps: Added to the variance of every axis, of images with mean 0 and deviation 1.
    """

    weight: Tensor

    def __init__(self, in_channels: int, eps: float = 5e-4) -> None:
        super().__init__()
        self.eps, self.is_set = eps, False
        axes = torch.eye(in_channels * PATCH**2).view(-1, in_channels, PATCH, PATCH)
        # A buffer: no optimizer moves it, and checkpoints have it.
        self.register_buffer("weight", torch.cat([axes, -axes]))

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Take the axes from images ``(B, C, H, W)``."""
        patches = F.unfold(images.float(), PATCH).transpose(1, 2).flatten(0, 1)  # (B * P, 4 * C)
        patches = patches - patches.mean(dim=0)
        variances, axes = torch.linalg.eigh(patches.T @ patches / len(patches))
        scaled = (axes / (variances.clamp(min=0) + self.eps).sqrt()).T.view_as(self.weight[::2])
        self.weight.copy_(torch.cat([scaled, -scaled]))
        if distributed.is_available() and distributed.is_initialized():
            distributed.broadcast(self.weight, src=0)  # no two networks in the first step
        self.is_set = True

    def forward(self, images: Tensor) -> Tensor:
        """Whiten images; in training the first ones say how."""
        if self.training and not self.is_set:
            with torch.autocast(images.device.type, enabled=False):
                self.fit(images)
        return F.conv2d(images, self.weight)

    def get_extra_state(self) -> Tensor:
        """Whether the weights are set, for a checkpoint."""
        return torch.tensor(self.is_set)

    def set_extra_state(self, state: Tensor) -> None:
        """Leave the weights of a checkpoint as they are."""
        self.is_set = bool(state)


class WhitenedConvNet(nn.Module):
    """Whitening, then three stages of two 3x3 convolutions with a pooling between them.

    After airbench94, https://github.com/KellerJordan/cifar10-airbench (2.0 M parameters as here).

    Args:
        in_channels: Colour channels of an image.
        num_classes: Number of logits.
        hidden_dims: Channels of every stage.
        mirror: In evaluation, average the logits of an image and of its mirror image.

    Raises:
        ValueError: If a size is below 1.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        hidden_dims: Sequence[int] = (64, 256, 256),
        mirror: bool = True,
    ) -> None:
        super().__init__()
        if min(in_channels, num_classes, *hidden_dims) < 1:
            raise ValueError(
                "in_channels, num_classes and hidden_dims must be at least 1, got "
                f"{in_channels}, {num_classes}, {list(hidden_dims)}"
            )
        self.mirror = mirror
        self.whitening = Whitening(in_channels)
        dim, stages = 2 * in_channels * PATCH**2, []
        for hidden_dim in hidden_dims:
            stages.append(_stage(dim, hidden_dim))
            dim = hidden_dim
        self.features = nn.Sequential(nn.GELU(), *stages, nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self.head = nn.Linear(dim, num_classes, bias=False)
        # Maxima are large; with small weights the first loss is still that of guessing, ln K.
        nn.init.normal_(self.head.weight, std=0.01)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(B, in_channels, H, W)`` to logits ``(B, num_classes)``."""
        logits: Tensor = self.head(self.features(self.whitening(images)))
        if self.mirror and not self.training:
            mirrored: Tensor = self.head(self.features(self.whitening(images.flip(-1))))
            return (logits + mirrored) / 2
        return logits


def _stage(in_channels: int, out_channels: int) -> nn.Sequential:
    def convolution(channels: int) -> nn.Conv2d:
        # No bias: the BatchNorm that follows has its own.
        return nn.Conv2d(channels, out_channels, kernel_size=3, padding=1, bias=False)

    return nn.Sequential(
        convolution(in_channels),
        nn.MaxPool2d(2, ceil_mode=True),  # a 1x1 map survives
        nn.BatchNorm2d(out_channels),
        nn.GELU(),
        convolution(out_channels),
        nn.BatchNorm2d(out_channels),
        nn.GELU(),
    )
