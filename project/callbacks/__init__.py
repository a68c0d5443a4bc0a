"""What watches a run: one callback or plugin per file."""

from project.callbacks.autosave import Autosave
from project.callbacks.averaging import AveragingGuard
from project.callbacks.confusion_matrix import ConfusionMatrixPicture
from project.callbacks.durable_checkpoints import DurableCheckpoints
from project.callbacks.early_stopping import EarlyStopping
from project.callbacks.exact_resume import ExactResume
from project.callbacks.finite_guard import FiniteGuard
from project.callbacks.freeze_backbone import FreezeBackbone
from project.callbacks.hparams import HParams
from project.callbacks.learning_rate import LearningRateMonitor
from project.callbacks.out_of_memory import OutOfMemoryAdvice
from project.callbacks.overfit_check import OverfitCheck
from project.callbacks.prediction_images import PredictionImages
from project.callbacks.prediction_writer import PredictionWriter
from project.callbacks.preemption import PreemptionGuard
from project.callbacks.progress import ProgressBar
from project.callbacks.run_logger import TensorBoard
from project.callbacks.throughput import Throughput
from project.callbacks.training_images import TrainingImages

__all__ = [
    "Autosave",
    "AveragingGuard",
    "ConfusionMatrixPicture",
    "DurableCheckpoints",
    "EarlyStopping",
    "ExactResume",
    "FiniteGuard",
    "FreezeBackbone",
    "HParams",
    "LearningRateMonitor",
    "OutOfMemoryAdvice",
    "OverfitCheck",
    "PredictionImages",
    "PredictionWriter",
    "PreemptionGuard",
    "ProgressBar",
    "TensorBoard",
    "Throughput",
    "TrainingImages",
]
