"""What can be served: a protocol, and a trained run that fulfils it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from project.mistakes import UserError

Images = npt.NDArray[np.uint8]
Probs = npt.NDArray[np.float32]


class Model(Protocol):
    """From the bytes of image files to probabilities."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What ``/info`` says of it: at least ``class_names``."""

    def read(self, data: bytes) -> Images:
        """Decode a file as for training, ``(C, H, W)``; ValueError says what is wrong with it."""

    def predict(self, images: Images) -> Probs:
        """Map images ``(B, C, H, W)`` to probabilities ``(B, num_classes)``."""


def _shown(run: Path) -> str:
    """Name a run to whoever asks: not where it is on this machine."""
    run = run.absolute()
    inside = run.is_relative_to(Path.cwd())
    return str(run.relative_to(Path.cwd()) if inside else Path(run.parent.name, run.name))


class TrainedModel:
    """A run's checkpoint.

    Args:
        run: The run's folder.
        ckpt_path: The checkpoint's file.
        device: ``cpu``, ``cuda``, ``cuda:1``…; ``auto`` is CUDA where there is one.

    Raises:
        UserError: If the device is not there, or the data are no images.
    """

    def __init__(self, run: Path, ckpt_path: Path, device: str) -> None:
        import torch

        from project.predicting import prediction_step
        from project.runs import load_run

        loaded = load_run(run, str(ckpt_path))
        found = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self.device = torch.device(found if device == "auto" else device)
            self.task = loaded.task.to(self.device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"--device {device} cannot be used: {reason}") from None
        names: Any = self.task.class_names
        self.data: Any = loaded.datamodule
        missing = [name for name in ("read", "preprocess") if not hasattr(self.data, name)]
        if missing:
            raise UserError(
                f"{type(self.data).__name__} has no {missing[0]}(): serve cannot turn files into "
                "what this network takes.\nproject.data.loading.ImageLoading has both."
            )
        self.step = prediction_step(self.task, self.data, tta=None)
        known = ("experiment", "git_commit", "versions", "best_score")
        self.metadata = {
            "class_names": [str(name) for name in names],
            "in_channels": getattr(self.data, "in_channels", None),
            "image_size": getattr(self.data, "image_size", None),
            "run": _shown(loaded.run.path),
            "checkpoint": ckpt_path.name,
            **{key: loaded.run.record[key] for key in known if key in loaded.run.record},
        }

    def read(self, data: bytes) -> Images:
        """Decode a file as for training, uint8 ``(C, H, W)``.

        Raises:
            ValueError: If it is no image that can be read.
        """
        image: Images = self.data.read(data).numpy()
        return image

    def predict(self, images: Images) -> Probs:
        """Map uint8 images ``(B, C, H, W)`` to probabilities ``(B, num_classes)``."""
        import torch

        from project.probs import check_probs

        index = torch.arange(len(images), device=self.device)
        with torch.inference_mode():
            shown = self.data.preprocess(torch.from_numpy(images).to(self.device))
            batch = shown, torch.full_like(index, -1), index  # as `lightning predict` has it
            probs: Probs = check_probs(self.step(batch, 0), batch).float().numpy()
        return probs
