"""A trained run in a program: its network, its data module, its predictions."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lightning import LightningDataModule, LightningModule

    from project.predictions import Predictions
    from project.runs import Run


@dataclass(frozen=True)
class LoadedRun:
    """A trained run, ready to be used.

    Args:
        run: Its folder.
        task: The LightningModule with the checkpoint's weights, in evaluation mode.
        datamodule: The data module the run was trained on, not set up yet.
        ckpt_path: The file that the weights come from.
    """

    run: "Run"
    task: "LightningModule"
    datamodule: "LightningDataModule"
    ckpt_path: Path

    def predict(
        self,
        images: object,
        top_k: int = 1,
        batch_size: int | None = None,
        tta: Literal["flip"] | None = None,
    ) -> "Predictions":
        """Predict images as ``lightning predict`` does, on the device of ``task``.

        Args:
            images: What the command takes: a file, folder, pattern or table; or an image in memory:
                the bytes of a file, a picture of Pillow's, uint8 ``(H, W)`` or ``(H, W, C)``, a
                uint8 tensor ``(C, H, W)``; or several of any kind.
            top_k: How many classes a row names.
            batch_size: Images at a time; by default as many as in an evaluation.
            tta: ``flip`` averages the probabilities of an image and its mirror image.

        Raises:
            UserError: If a name stands for no image, or a setting is outside its range.
        """
        from project.predictions import predict

        return predict(self, images, top_k, batch_size, tta)
