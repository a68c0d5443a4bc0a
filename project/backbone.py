"""The two parts of a network that are trained differently: the head and everything before it."""

from torch import nn
from torch.nn.modules.conv import _ConvNd

from project.mistakes import UserError, did_you_mean


def find_head(net: nn.Module, num_classes: int, name: str | None = None) -> str:
    """Name the part of a network that turns features into logits, e.g. ``net.fc``.

    Args:
        net: Whose parts have names, as in ``net.named_modules()``.
        num_classes: Number of logits.
        name: The user's answer; None finds the last linear layer or convolution with
            ``num_classes`` outputs.

    Raises:
        UserError: If there is no such part.
    """
    kind = type(net).__name__
    parts = {key: part for key, part in net.named_modules() if any(True for _ in part.parameters())}
    if name is not None:
        if not name or name not in parts:
            inside = [key for key in parts if name and key.endswith(f".{name}")]
            hint = f" Did you mean {inside[0]}?" if inside else did_you_mean(name, parts)
            hint = hint or f" The outer parts are: {_outer(net)}."
            raise UserError(f"--model.head: {kind} has no part {name!r} with parameters.{hint}")
        return name
    found: list[str] = [key for key, part in parts.items() if key and _outputs(part) == num_classes]
    if not found:
        raise UserError(
            f"No layer of {kind} has {num_classes} outputs, one a class, so its head is unknown.\n"
            f"Name it with --model.head. The outer parts are: {_outer(net)}."
        )
    return found[-1]


def _outputs(layer: nn.Module) -> int | None:
    if isinstance(layer, nn.Linear):
        return layer.out_features
    return layer.out_channels if isinstance(layer, _ConvNd) else None


def _outer(net: nn.Module) -> str:
    return ", ".join(name for name, _ in net.named_children()) or "none"


def backbone_parameters(net: nn.Module, head: str) -> list[nn.Parameter]:
    """List the parameters to be trained that are not the head's; shared ones are the head's.

    Raises:
        UserError: If there are none.
    """
    own = {id(parameter) for parameter in net.get_submodule(head).parameters()}
    found = [p for p in net.parameters() if p.requires_grad and id(p) not in own]
    if not found:
        raise UserError(
            f"{type(net).__name__} has nothing to train before its head, {head}.\n"
            "Leave out what sets the backbone apart (FreezeBackbone, --model.backbone_lr_factor)."
        )
    return found
