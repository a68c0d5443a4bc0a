"""What a default run does not say: advertisements, and warnings that the user cannot act on."""

import logging
import os
import warnings

# Beginnings of messages, each with the reason why nobody has to read it.
LINES = (
    "GPU available",  # the record has the hardware
    "TPU available",
    "HPU available",
    "💡 Tip",  # an advertisement
    "Seed set to",  # the configuration has it
    "Trainer already configured with model summary",
    "`Trainer.fit` stopped",  # the progress says so
    "Loading `train_dataloader`",  # to count its batches
    "Restored all states",  # said in our words, with the step
    "Restoring states",
    "Loaded model weights",
)
WARNINGS = (
    r".*LeafSpec.*",  # torch's own pytree, called by Lightning
    r".*does not have many workers.*",  # in-memory data needs none: facts are in `ImageDataModule`
    r".*isinstance\(treespec, LeafSpec\).*",
)


class _Unneeded(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().lstrip().startswith(LINES)


def prepare() -> None:
    """Silence them; call this before Lightning is imported."""
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero"):
        logging.getLogger(name).addFilter(_Unneeded())
    logging.getLogger("lightning.fabric.utilities.seed").addFilter(_Unneeded())
    for message in WARNINGS:
        warnings.filterwarnings("ignore", message=message)
