"""Small networks, so that no test of the task needs one of the examples."""

from collections.abc import Sequence

from torch import Tensor, nn

from project import pretrained


class MLP(nn.Module):
    """Without BatchNorm and convolutions, for one size of images."""

    def __init__(
        self,
        in_channels: int,
        image_size: int,
        num_classes: int,
        hidden_dims: Sequence[int] = (16,),
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        dims = [in_channels * image_size**2, *hidden_dims]
        layers: list[nn.Module] = [nn.Flatten()]
        for dim, hidden_dim in zip(dims, hidden_dims, strict=False):
            layers += [nn.Linear(dim, hidden_dim), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(dims[-1], num_classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def block(in_channels: int, out_channels: int) -> nn.Sequential:
    convolution = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))


class ConvNet(nn.Module):
    """Three blocks of a convolution and BatchNorm, for any size of images."""

    def __init__(
        self, in_channels: int, num_classes: int, hidden_dim: int = 8, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(
            block(in_channels, hidden_dim),
            nn.MaxPool2d(2, ceil_mode=True),
            block(hidden_dim, 2 * hidden_dim),
            nn.MaxPool2d(2, ceil_mode=True),
            block(2 * hidden_dim, 4 * hidden_dim),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Dropout(dropout),
        )
        self.head = nn.Linear(4 * hidden_dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


class Pretrained(nn.Module):
    """Notes whether it has looked for its weights."""

    def __init__(self, name: str, weights: str | None = None) -> None:
        super().__init__()
        self.began_with = weights if pretrained.wanted() else None
        self.layer = nn.Linear(16, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.flatten(1))
