"""A convolutional network for images of different sizes that were padded to one batch."""

from torch import Tensor, nn
from torch.nn import functional as F


class MaskedConvNet(nn.Module):
    """Three 3x3 convolutions that double in width, then global max pooling; padding has no effect.

    What it says about an image does not depend on how large the other images of the batch are.
    Padding is 0 before every convolution, as beyond the border of an image that fills the batch,
    and no normalisation adds up over positions.

    Args:
        in_channels: Colour channels of an image: 1 for grey, 3 for RGB.
        num_classes: Number of logits.
        hidden_dim: Channels of the first convolution; the last one has four times as many.
        dropout: Fraction of pooled features set to zero in training, in [0, 1).

    Raises:
        ValueError: If a size is below 1 or ``dropout`` is outside [0, 1).
    """

    def __init__(
        self, in_channels: int, num_classes: int, hidden_dim: int = 32, dropout: float = 0.1
    ) -> None:
        super().__init__()
        if min(in_channels, num_classes, hidden_dim) < 1:
            raise ValueError(
                "in_channels, num_classes and hidden_dim must be at least 1, got "
                f"{in_channels}, {num_classes}, {hidden_dim}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        # A Sequential, though forward goes through it by hand: checkpoint_activations looks there.
        self.blocks = nn.Sequential(
            _block(in_channels, hidden_dim),
            _block(hidden_dim, 2 * hidden_dim),
            _block(2 * hidden_dim, 4 * hidden_dim),
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4 * hidden_dim, num_classes)
        # Maxima are large; with small weights the first loss is still that of guessing, ln K.
        nn.init.normal_(self.head.weight, std=0.01)

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map images ``(B, in_channels, H, W)`` to logits ``(B, num_classes)``.

        Args:
            images: Normalised images.
            mask: bool ``(B, H, W)``, True where there is image; None if there is no padding.
        """
        # (B, 1, H, W); made smaller in the same way as what it covers.
        inside = None if mask is None else mask[:, None].to(images.dtype)
        features = _cover(images, inside)
        for number, block in enumerate(self.blocks):
            if number > 0:
                # ceil_mode: an odd map keeps its border. A 0 beside it changes no maximum of what
                # comes out of ReLU, nor does the padding change the global one.
                features = F.max_pool2d(features, 2, ceil_mode=True)
                inside = None if inside is None else F.max_pool2d(inside, 2, ceil_mode=True)
            features = _cover(block(features), inside)
        logits: Tensor = self.head(self.dropout(features.amax(dim=(2, 3))))
        return logits


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation over the channels of every position of ``(B, C, H, W)``.

    BatchNorm and GroupNorm take mean and deviation over positions, and padding would be among them.
    As in ConvNeXt, https://arxiv.org/abs/2201.03545.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise every position by itself."""
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _cover(features: Tensor, inside: Tensor | None) -> Tensor:
    """Set ``(B, C, H, W)`` to 0 where ``inside`` ``(B, 1, H, W)`` is 0."""
    return features if inside is None else features * inside.to(features.dtype)


def _block(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        # No bias: the normalisation that follows has its own.
        nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
        ChannelNorm(out_channels),
        nn.ReLU(),
    )
