"""What a classification task accepts, and what of it a checkpoint may hold."""

from typing import Any


def is_plain(value: object) -> bool:
    """Whether ``torch.load(weights_only=True)`` reads it; numpy's numbers, for one, it refuses."""
    if isinstance(value, dict):
        return all(is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    return type(value) in (bool, int, float, str, type(None))


def plain_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Keep the hyperparameters that load safely."""
    return {name: value for name, value in arguments.items() if is_plain(value)}


def check_arguments(
    num_classes: int,
    class_names: list[str] | None,
    class_weights: list[float] | str | None,
    label_smoothing: float,
    scale_lr: int | None,
    backbone_lr_factor: float,
) -> None:
    """Refuse numbers out of range and lists of the wrong length.

    Raises:
        ValueError: With the argument's name and what was given.
    """
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}")
    if isinstance(class_weights, str):
        if class_weights != "balanced":
            raise ValueError(f"class_weights must be numbers or balanced, got {class_weights!r}")
        class_weights = None  # asked from the data later
    for name, values in (("class_names", class_names), ("class_weights", class_weights)):
        if values is not None and len(values) != num_classes:
            raise ValueError(f"{name} has {len(values)} entries for {num_classes} classes")
    if class_weights is not None and (min(class_weights) < 0 or sum(class_weights) <= 0):
        raise ValueError(f"class_weights must not be negative or all 0, got {class_weights}")
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
    if scale_lr is not None and scale_lr < 1:
        raise ValueError(f"scale_lr must be a batch size of at least 1, got {scale_lr}")
    if backbone_lr_factor <= 0:
        raise ValueError(f"backbone_lr_factor must be above 0, got {backbone_lr_factor}")


def check_monitor(name: str, logged: tuple[str, ...]) -> None:
    """Refuse a figure that is not logged.

    Raises:
        ValueError: With what is.
    """
    if name not in logged:
        raise ValueError(f"scheduler_monitor must be one of {', '.join(logged)}, got {name}")
