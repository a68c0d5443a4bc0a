"""What is known of a run's checkpoint and of the images it takes; what is not known is None."""

from typing import Any

import torch

import project
from project.runs import LoadedRun


def images_taken(loaded: LoadedRun) -> dict[str, Any]:
    """Classes and images, as the run's data module has them.

    Returns:
        ``class_names``, ``in_channels``, ``image_size`` in pixels (None: any), ``crop_fraction``,
        and ``mean`` and ``std`` per channel of images as fractions in [0, 1].
    """
    data = loaded.datamodule
    names = getattr(data, "class_names", None) or getattr(loaded.task, "class_names", None)
    constants = [getattr(data, name, None) for name in ("mean", "std")]
    mean, std = (None if c is None else [float(value) for value in c] for c in constants)
    return {
        "class_names": None if names is None else [str(name) for name in names],
        "in_channels": getattr(data, "in_channels", None),
        "image_size": getattr(data, "image_size", None),
        "crop_fraction": getattr(data, "crop_fraction", None),
        "mean": mean,
        "std": std,
    }


def origin(loaded: LoadedRun) -> dict[str, Any]:
    """Where the weights come from: run, checkpoint, commit, versions and recorded scores.

    Returns:
        Among them ``metrics``, only for the checkpoint that the run's record has the scores of.
    """
    record, file = loaded.run.record, loaded.ckpt_path
    saved = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    best = record.get("best_ckpt")
    is_best = best is not None and (loaded.run.path / best).resolve() == file.resolve()
    return {
        "run": loaded.run.path.name,
        "experiment": loaded.run.experiment,
        "checkpoint": file.name,
        "epoch": saved.get("epoch"),
        "step": saved.get("global_step"),
        **{name: record.get(name) for name in ("git_commit", "git_dirty", "versions")},
        "metrics": record.get("scores", {}) if is_best else {},
        "project": project.__version__,
    }
