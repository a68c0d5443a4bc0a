"""What a command line asks for, built as for `fit` and then measured or looked at: no run."""

import tempfile
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import LightningCLI

from project.request import Request
from project.verbs import Command


class Trial(Command):
    """The verb `fit` up to the point where training would begin; a subclass says what comes then.

    What is written to the run's folder goes to a temporary one.

    Args:
        request: A new run's, or that of a run whose weights are looked at.

    Raises:
        UserError: If a setting does not exist, has the wrong type or contradicts another.
    """

    def __init__(self, request: Request) -> None:
        with tempfile.TemporaryDirectory(prefix=f"{request.verb}-") as folder:
            self.nowhere = Path(folder) / "none"
            try:
                super().__init__(request)
            except SystemExit as end:
                if isinstance(end.__context__, KeyboardInterrupt):  # as Lightning ends it
                    raise end.__context__ from None
                raise

    def _words(self) -> dict[str, str]:
        """Return what stands for ``{run_dir}`` and the like, without making a folder."""
        return {"run_dir": str(self.nowhere), "run": "trial", "experiment": self.request.experiment}

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        """Build the trainer without keeping a record."""
        return LightningCLI._instantiate_trainer(self, config, callbacks)
