"""The checks on what a command line asks for: built as for `fit`, then looked at, not trained."""

from collections.abc import Callable
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule, LightningModule

from project.doctor.registry import GROUPS
from project.doctor.report import Report
from project.doctor.runner import run_checks
from project.doctor.sheet import write_sheet
from project.doctor.subject import Subject
from project.request import Request
from project.trial import Trial


class Examination(Trial):
    """The verb `fit` up to the point where training would begin; then all checks.

    Args:
        request: A new run's, or that of a run whose weights are looked at.
        progress: Is told the name of each check before it runs.

    Raises:
        UserError: If a setting does not exist, has the wrong type or contradicts another.
    """

    report: Report

    def __init__(self, request: Request, progress: Callable[[str], None]) -> None:
        self.progress = progress
        super().__init__(request)

    def fit(self, model: LightningModule, datamodule: LightningDataModule) -> None:
        """Look at it instead of training it."""
        if self.request.ckpt_path is not None:
            _load(model, datamodule, self.request.ckpt_path)
        subject = Subject(model, datamodule, self._dumped())
        subject.trained = self.request.ckpt_path is not None
        try:
            self.report = run_checks(subject, GROUPS, progress=self.progress)
            self.progress("picture")
            self.picture = write_sheet(
                subject, self.request.root / self.request.experiment / "doctor"
            )
        finally:
            subject.close()


def _load(task: LightningModule, datamodule: LightningDataModule, file: Path) -> None:
    """Bring task and data to the state of a checkpoint."""
    content = torch.load(file, map_location="cpu", weights_only=True)
    task.load_state_dict(content["state_dict"])
    state = content.get(type(datamodule).__qualname__)
    if state:
        datamodule.load_state_dict(state)
