"""A multilayer perceptron on flattened images."""

from collections.abc import Sequence

from torch import Tensor, nn


class MLP(nn.Module):
    """Fully connected layers with ReLU and dropout: 784-512-256-10 on MNIST.

    Args:
        in_channels: Colour channels of an image: 1 for grey, 3 for RGB.
        image_size: Height and width of an image in pixels; the first layer is tied to it.
        num_classes: Number of logits.
        hidden_dims: Width of every hidden layer; empty makes it a linear classifier.
        dropout: Fraction of hidden activations set to zero in training, in [0, 1).

    Raises:
        ValueError: If a size is below 1 or ``dropout`` is outside [0, 1).
    """

    def __init__(
        self,
        in_channels: int,
        image_size: int,
        num_classes: int,
        hidden_dims: Sequence[int] = (512, 256),
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        if min(in_channels, image_size, num_classes, *hidden_dims) < 1:
            raise ValueError(
                "in_channels, image_size, num_classes and hidden_dims must be at least 1, got "
                f"{in_channels}, {image_size}, {num_classes}, {list(hidden_dims)}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        dim = in_channels * image_size * image_size
        layers: list[nn.Module] = [nn.Flatten()]
        for hidden_dim in hidden_dims:
            layers += [nn.Linear(dim, hidden_dim), nn.ReLU(inplace=True), nn.Dropout(dropout)]
            dim = hidden_dim
        self.layers = nn.Sequential(*layers, nn.Linear(dim, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Map ``(B, in_channels, image_size, image_size)`` to logits ``(B, num_classes)``."""
        logits: Tensor = self.layers(images)
        return logits
