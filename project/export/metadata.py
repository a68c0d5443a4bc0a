"""What an exported file says about itself."""

from typing import Any

from torch import Tensor

from project.export.facts import images_taken, origin
from project.export.samples import Samples
from project.export.wanted import Wanted
from project.runs import LoadedRun

FORMAT = 1  # of the metadata; another number for what an older reader would get wrong


def describe(
    loaded: LoadedRun, wanted: Wanted, samples: Samples, outputs: Tensor, accuracy: float | None
) -> dict[str, Any]:
    """Return the metadata of a run's file.

    Args:
        loaded: The run.
        wanted: How it is exported.
        samples: Images of it, as the file takes them.
        outputs: Of the run for all of them, ``(N, num_classes)``.
        accuracy: Of these.
    """
    facts = images_taken(loaded) | origin(loaded)
    image = samples.first(1)[0]  # (C, H, W)
    reader: Any = getattr(loaded.datamodule, "reader", None)
    measured = {} if accuracy is None else {f"{samples.split}/acc": accuracy}
    return facts | {
        "format": FORMAT,
        "class_names": facts["class_names"] or [str(at) for at in range(outputs.shape[1])],
        "in_channels": image.shape[0],
        "image_size": image.shape[1] if fixed_size(loaded) else None,
        "crop_fraction": facts["crop_fraction"] or 1.0,
        "preprocess": samples.preprocess is not None,
        "softmax": wanted.softmax,
        "reader": reader() if callable(reader) else None,
        "metrics": measured | facts["metrics"],
        "precision": wanted.kind,
        "opset": wanted.opset if wanted.format == "onnx" else None,
    }


def fixed_size(loaded: LoadedRun) -> bool:
    """Whether all images have one size, height and width alike."""
    return getattr(loaded.datamodule, "image_size", 0) is not None
