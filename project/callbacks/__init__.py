"""What watches a run: one callback or plugin per file."""

from project.callbacks.confusion_matrix import ConfusionMatrixPicture
from project.callbacks.hparams import HParams
from project.callbacks.overfit_check import OverfitCheck
from project.callbacks.prediction_images import PredictionImages
from project.callbacks.progress import ProgressBar
from project.callbacks.run_logger import TensorBoard

__all__ = [
    "ConfusionMatrixPicture",
    "HParams",
    "OverfitCheck",
    "PredictionImages",
    "ProgressBar",
    "TensorBoard",
]
