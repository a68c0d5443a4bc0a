"""What a default run does not say: advertisements, and warnings that the user cannot act on."""

import logging
import os
import re
import warnings

# Beginnings of messages, each with the reason why nobody has to read it.
LINES = (
    "GPU available",  # the record has the hardware
    "TPU available",
    "HPU available",
    "💡 Tip",  # an advertisement
    "Seed set to",  # the configuration has it
    "Using 16bit Automatic",  # likewise
    "Using bfloat16 Automatic",
    "Trainer already configured with model summary",
    "`Trainer.fit` stopped",  # the progress says so
    "Loading `train_dataloader`",  # to count its batches
    "Initializing distributed",
    "distributed_backend",
    "All distributed processes",
    "------",
    "Running in `fast_dev_run` mode",  # the end says that nothing was kept
    "Restored all states",  # said in our words, with the step
    "Restoring states",
    "Loaded model weights",
)
WARNINGS = (
    r"Checkpoint directory .* exists and is not empty",  # resuming, that is the point
    r".*using the WeightAveraging callback, but loading.*",  # the average is what is evaluated
    r".*callbacks used to create the checkpoint need to be provided.*",  # not for evaluation
    r".*smaller than the logging interval.*",  # the task also logs at the end of every epoch
    r".*functional\.all_gather is deprecated.*",  # Lightning's own call
    r".*LeafSpec.*",  # torch's own pytree, called by Lightning
    r".*isinstance\(treespec, LeafSpec\).*",
)


class _Unneeded(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not re.sub(r"^\[rank: \d+\] ", "", record.getMessage()).lstrip().startswith(LINES)


def prepare() -> None:
    """Silence them; call this before Lightning is imported."""
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero"):
        logging.getLogger(name).addFilter(_Unneeded())
    for name in ("lightning.fabric.utilities.seed", "lightning.fabric.utilities.distributed"):
        logging.getLogger(name).addFilter(_Unneeded())
    for message in WARNINGS:
        warnings.filterwarnings("ignore", message=message)


def plain_warnings() -> None:
    """Say warnings without the library's line they come from; call this after its import."""
    warnings.formatwarning = lambda message, *_: f"Warning: {message}\n"
