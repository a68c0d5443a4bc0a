"""What training means: a ``LightningModule`` is loss, metrics, optimizer and schedule."""

from project.tasks.classification import ClassificationTask

__all__ = ["ClassificationTask"]
