"""Does the network fit the data? Asked once, before training, with a batch of zeros."""

import inspect
import re

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from project.blame import bug_of
from project.explain import Scene
from project.mistakes import UserError
from project.tasks.mask import takes_mask

# Against 32 images per device, ResNet-50 on ImageNet loses about 1 point of accuracy at 8, 4 at 4
# and 11 at 2 (Group Normalization, https://arxiv.org/abs/1803.08494, table 2).
SMALL_BATCH = 8
# Stands for the sizes of images that keep them, in pixels.
_ANY_SIZE = 64


def first_conv_channels(net: nn.Module) -> int | None:
    """Channels that the first convolution expects; None for a network without one."""
    convs = (module for module in net.modules() if isinstance(module, nn.Conv2d))
    return next((conv.in_channels for conv in convs), None)


def image_shape(data: object) -> tuple[int, int, int] | None:
    """``(C, H, W)`` that a data module promises; None if it does not say."""
    channels, size = getattr(data, "in_channels", None), getattr(data, "image_size", 0)
    size = _ANY_SIZE if size is None else size  # null: images keep their sizes
    if isinstance(channels, int) and isinstance(size, int) and size > 0:
        return channels, size, size
    return None


def check_data(model: nn.Module, net: nn.Module, num_classes: int, data: object) -> bool:
    """Check a network against what a data module promises; return whether it promises anything.

    Args:
        model: As for ``check_net``; repeats a grey channel for a network that expects RGB.
        net: As for ``check_net``.
        num_classes: Number of classes of the model.
        data: The data module, or None.

    Raises:
        UserError: If they do not fit.
    """
    if getattr(data, "image_size", 0) is None and not takes_mask(net):
        raise UserError(
            "image_size is null, so images are padded to the largest of their batch, and the "
            f"forward of {type(net).__name__} takes no mask: it would see the padding.\n"
            "Set --data.image_size to a number of pixels, or "
            "--model.net project.models.MaskedConvNet."
        )
    shape = image_shape(data)
    if shape is None:
        return False
    if shape[0] == 1 and first_conv_channels(net) == 3:
        name = type(net).__name__
        rank_zero_only(print)(f"{name} expects RGB: the grey channel is repeated three times.")
    check_net(model, net, shape, num_classes, getattr(data, "num_classes", num_classes))
    return True


def check_net(
    model: nn.Module,
    net: nn.Module,
    shape: tuple[int, int, int],
    num_classes: int,
    classes: int,
) -> None:
    """Run ``model`` on two empty images and compare its output with what the data need.

    Modes and random numbers are left as they were.

    Args:
        model: Called with the images; passes them to ``net``.
        net: Named in the message.
        shape: ``(C, H, W)``.
        num_classes: Number of classes of the model.
        classes: Number of classes of the data.

    Raises:
        UserError: If the network cannot take the images or does not give ``(2, classes)``.
    """
    logits = _try(model, net, shape)
    given = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if given != (2, classes):
        raise _wrong_output(type(net).__name__, given, classes)
    if num_classes != classes:
        raise UserError(
            f"The task has num_classes {num_classes}, the data have {classes} classes: "
            f"leave out --model.num_classes or set it to {classes}."
        )


def _try(model: nn.Module, net: nn.Module, shape: tuple[int, int, int]) -> object:
    """Return what comes out for two images."""
    parameter = next(net.parameters(), torch.zeros(0))
    images = torch.zeros(2, *shape, device=parameter.device, dtype=_dtype(parameter))
    try:
        return _evaluate(model, net, images)
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
        raise UserError(_unfit(net, shape, error)) from error
    except (AttributeError, NameError) as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_locals.get("self") is not net:
            trace = trace.tb_next
        if bug := bug_of(error, trace):
            raise UserError(bug) from error
        raise


def _unfit(net: nn.Module, shape: tuple[int, int, int], error: Exception) -> str:
    name, reason = type(net).__name__, str(error).strip().splitlines()[0][:160]
    known = inspect.signature(type(net).__init__).parameters
    settings = [f"--model.net.{key}" for key in ("in_channels", "image_size") if key in known]
    ways = [f"set {' or '.join(settings)} to the data's"] if settings else []
    if found := re.match(r"mat1 and mat2 shapes .* \(\d+x(\d+) and (\d+)x\d+\)", reason):
        given, wanted = found.groups()
        layer = Scene(error, type(error).__name__, reason).layer()
        if layer.endswith("(Linear)"):
            reason = f"{layer} gets {given} values and is made for {wanted}."
            ways = [f"change {wanted} to {given}", *ways]
    ways += ["set --data.image_size to the network's", "choose another --model.net"]
    said = ", or ".join(ways)
    return (
        f"{name} cannot take images of shape {shape} (channels, height, width): {reason}\n"
        f"{said[0].upper()}{said[1:]}."
    )


def _wrong_output(name: str, given: tuple[int, ...] | str, classes: int) -> UserError:
    if isinstance(given, tuple) and len(given) == 2:
        return UserError(
            f"{name} gives {given[-1]} outputs, the data have {classes} classes: "
            f"set --model.net.num_classes {classes}"
        )
    return UserError(
        f"{name} gives {given} for 2 images, not logits of shape (2, {classes}).\n"
        "Choose a network that maps images (B, C, H, W) to logits (B, num_classes)."
    )


def _dtype(parameter: Tensor) -> torch.dtype:
    return parameter.dtype if parameter.is_floating_point() else torch.float32


def _evaluate(model: nn.Module, net: nn.Module, images: Tensor) -> object:
    modes = {module: module.training for module in net.modules()}
    net.eval()
    devices = [images.device] if images.is_cuda else []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            return model(images)
    finally:
        for module, training in modes.items():
            module.training = training


def small_batch_norm(
    net: nn.Module, batch_size: int, processes: int, accumulate: int
) -> str | None:
    """Why BatchNorm will hurt at this batch size, or None.

    Accumulation by itself is harmless: what counts is how many images one forward pass sees.
    """
    norms = [module for module in net.modules() if isinstance(module, _BatchNorm)]
    together = norms and all(isinstance(norm, nn.SyncBatchNorm) for norm in norms)
    seen = batch_size * processes if together else batch_size
    if not norms or seen >= SMALL_BATCH:
        return None
    also = f", whatever accumulate_grad_batches {accumulate} adds up" if accumulate > 1 else ""
    ways = "a larger --data.batch_size or a network with GroupNorm"
    if processes > 1 and not together:
        ways = "--trainer.sync_batchnorm true, " + ways
    return (
        f"{type(net).__name__} has BatchNorm, and its statistics come from {seen} images at a time"
        f"{also}: too few (below {SMALL_BATCH}), accuracy suffers. Use {ways}."
    )
