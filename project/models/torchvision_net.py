"""Any classification network of torchvision, from scratch or with pretrained weights."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
import torchvision  # type: ignore[import-untyped]
from torch import Tensor, nn
from torchvision.models import (  # type: ignore[import-untyped]
    WeightsEnum,
    get_model,
    get_model_weights,
    list_models,
)

from project import pretrained
from project.backbone import find_head
from project.mistakes import UserError, did_you_mean
from project.runs import check_loadable

TIMEOUT = 15.0  # seconds without a byte after which a server counts as gone
# With a second output that is trained too and then thrown away; here they have one.
WITH_AUX = ("googlenet", "inception_v3")
State = dict[str, Tensor]


class TorchvisionNet(nn.Module):
    """A classification network of torchvision, with ``num_classes`` logits.

    With pretrained weights the last layer is new, unless it has the right size already. A run's
    checkpoint holds all weights, so that nothing is downloaded to use it.

    Args:
        name: As torchvision has it, e.g. ``resnet18``, ``efficientnet_b0``, ``vit_b_16``.
        num_classes: Number of logits.
        in_channels: Colour channels of an image: 3, or 1 for grey, which is shown as three equal
            channels. That is the first convolution with its weights summed over the colours.
        weights: Null trains from scratch. ``DEFAULT`` or a name such as ``IMAGENET1K_V1`` are
            torchvision's, downloaded once; they expect images normalised with ImageNet's mean and
            standard deviation. A path ending in .pth is a state dict of the same network.

    Raises:
        ValueError: If there is no such network or no such weights, or a number is out of range.
        UserError: If weights cannot be downloaded or do not fit.
    """

    def __init__(
        self, name: str, num_classes: int, in_channels: int = 3, weights: str | None = None
    ) -> None:
        super().__init__()
        known = list_models(module=torchvision.models)
        if name not in known:
            hint = did_you_mean(name, known) or f" There are {', '.join(known[:5])} and others."
            raise ValueError(f"torchvision has no network {name!r} for classification.{hint}")
        if num_classes < 1 or in_channels not in (1, 3):
            raise ValueError(
                "num_classes must be at least 1 and in_channels 1 or 3, "
                f"got {num_classes} and {in_channels}"
            )
        source = None if weights is None else _source(name, weights)
        if isinstance(source, str):
            raise ValueError(source)
        self._arguments = {"name": name, "num_classes": num_classes, **_options(name, source)}
        self.net = get_model(**self._arguments)
        if source is not None and pretrained.wanted():
            state = _read(source) if isinstance(source, Path) else _fetch(name, source)
            _fill(self.net, state, find_head(self.net, num_classes), f"{weights} of {name}")

    @property
    def built_by(self) -> tuple[nn.Module, str, dict[str, Any]]:
        """The network inside, and the function and arguments that build it without this project."""
        return self.net, "torchvision.models.get_model", self._arguments

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(B, 3, H, W)`` or ``(B, 1, H, W)`` to logits ``(B, num_classes)``."""
        logits: Tensor = self.net(images.expand(-1, 3, -1, -1))
        return logits


def _source(name: str, weights: str) -> Path | WeightsEnum | str:
    """Find what ``weights`` means: a file, torchvision's weights, or why it is neither."""
    if weights.endswith((".pth", ".pt")):
        return Path(weights)
    found = get_model_weights(name)
    member = found.__members__.get(weights.removeprefix(f"{found.__name__}."))
    if member is not None:
        return member
    names = list(found.__members__)
    hint = did_you_mean(weights, names) or f" It has: {', '.join(names) or 'none'}, or a .pth file."
    return f"{name} has no weights {weights!r}.{hint}"


def _options(name: str, source: Path | WeightsEnum | None) -> dict[str, Any]:
    """Return what a builder of torchvision sets when it loads weights itself, which it does not."""
    if name in WITH_AUX:
        # Trained on images in [-1, 1]; the network converts those with ImageNet's mean.
        is_new = source is None
        return {"aux_logits": False, "init_weights": is_new, "transform_input": not is_new}
    if name.startswith("vit_") and isinstance(source, WeightsEnum):
        return {"image_size": source.meta["min_size"][0]}
    return {}


def _fetch(name: str, weights: WeightsEnum) -> State:
    """Read the weights from torch hub's folder, downloading them into it where they lack."""
    file = Path(torch.hub.get_dir(), "checkpoints", Path(urlparse(weights.url).path).name)
    if not file.exists():
        try:
            with _timeout():
                torch.hub.load_state_dict_from_url(
                    weights.url, map_location="cpu", check_hash=True, weights_only=True
                )
        # RuntimeError: the checksum is not the one that the file's name promises.
        except (OSError, RuntimeError) as error:
            reason = str(getattr(error, "reason", error)).strip() or type(error).__name__
            raise UserError(
                f"The pretrained weights {weights.name} of {name} cannot be downloaded: {reason}.\n"
                f"Get {weights.url} and save it as\n{file}, or set --model.net.weights null."
            ) from error
    return _read(file)


@contextmanager
def _timeout() -> Iterator[None]:
    """Give up on a server that says nothing; torch hub would wait for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _read(file: Path) -> State:
    """Read a state dict; no code in the file is run."""
    if not file.is_file():
        raise UserError(f"--model.net.weights: there is no file {file}; null does without.")
    check_loadable(file)
    content: Any = torch.load(file, map_location="cpu", weights_only=True)
    is_state = isinstance(content, dict) and all(isinstance(v, Tensor) for v in content.values())
    if not is_state:
        raise UserError(
            f"--model.net.weights: {file} holds no state dict of a network.\n"
            "To begin with the weights of a run or its checkpoint: --init_from RUN_OR_CKPT"
        )
    state: State = content
    return state


def _fill(net: nn.Module, state: State, head: str, what: str) -> None:
    """Copy weights into a network; a last layer of another size stays new."""
    own = net.state_dict()
    for key in list(state):  # in place: the state's metadata tell its version
        # As DenseNet's layers were once called.
        new = re.sub(r"(denselayer\d+\.(?:norm|conv))\.(\d)", r"\1\2", key)
        value = state.pop(key)
        is_head = key.startswith(f"{head}.")
        is_new = is_head and key in own and value.shape != own[key].shape
        if not is_new and not re.match(r"aux\d\.|AuxLogits\.", key):
            state[new] = value
    try:
        found = net.load_state_dict(state, strict=False)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise UserError(f"The weights {what} do not fit: {reason}") from error
    missing = [key for key in found.missing_keys if not key.startswith(f"{head}.")]
    for kind, keys in (("lack", missing), ("have besides", found.unexpected_keys)):
        if keys:
            raise UserError(
                f"The weights {what} are those of another network: they {kind} {len(keys)} "
                f"tensors, e.g. {keys[0]}."
            )
