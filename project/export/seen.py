"""What the data module of a run says about its data: how many images, divided how."""

import contextlib
import inspect
from dataclasses import dataclass
from typing import Any

import yaml

from project.runs import LoadedRun

_SETTINGS = ("data_dir", "csv_file", "image_dir", "val_fraction", "test_fraction", "data_seed")


@dataclass(frozen=True)
class Seen:
    """The data of a run, as far as they can be looked at here and now.

    Args:
        class_path: The data module.
        about: How its author describes it, without the arguments.
        settings: Where the images are and how they are divided.
        given: Splits that came divided; None if the data module does not say.
        counts: Images of ``train``, ``val`` and ``test``; None where unknown.
        class_counts: Training images of every class; None if unknown.
    """

    class_path: str
    about: str
    settings: dict[str, Any]
    given: list[str] | None
    counts: dict[str, int | None]
    class_counts: list[int] | None


def look(loaded: LoadedRun) -> Seen:
    """Set up the training data, too, and count."""
    data: Any = loaded.datamodule
    config = yaml.safe_load(loaded.run.config.read_text())["data"]
    with contextlib.suppress(Exception):  # data that are gone, or a module of the user's own
        data.setup("fit")
    names = ("train", "val", "test")
    counts = {name: _length(data, name) for name in names}
    init_args = config.get("init_args") or {}
    given = getattr(data, "given", None)
    return Seen(
        class_path=config["class_path"],
        about=inspect.cleandoc(type(data).__doc__ or "").split("\nArgs:")[0].strip(),
        settings={k: init_args[k] for k in _SETTINGS if init_args.get(k) is not None},
        given=sorted(given()) if callable(given) else None,
        counts=counts,
        class_counts=getattr(data, "class_counts", None) if counts["train"] else None,
    )


def _length(data: Any, split: str) -> int | None:  # noqa: ANN401
    """Return the number of images of a split, where somebody knows it."""
    try:
        found = getattr(data, f"{split}_set", None)
        return len(found if found is not None else getattr(data, f"{split}_dataloader")().dataset)
    except Exception:  # no such split, or a stream without a length
        return None
