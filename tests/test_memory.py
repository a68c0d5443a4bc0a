"""A run takes no more memory after thirty epochs than after ten."""

from pathlib import Path
from resource import getpagesize

import lightning as L
import pytest

from project.cli import main

RESIDENT: list[float] = []  # MiB, at the end of every epoch


class Watch(L.Callback):
    """Notes how much memory is in use."""

    def on_train_epoch_start(self, trainer: L.Trainer, *_: object) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        RESIDENT.append(pages * getpagesize() / 2**20)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says so at any time")
def test_memory_is_constant_over_thirty_epochs() -> None:
    RESIDENT.clear()
    settings = {
        "trainer.callbacks+": f"{__name__}.Watch",
        "trainer.max_epochs": 30,
        "trainer.limit_train_batches": 10,
        "trainer.limit_test_batches": 0,
        "early_stopping": "null",
        "model.net.hidden_dim": 8,
    }
    assert main(["fit", *(f"--{key}={value}" for key, value in settings.items())]) == 0
    # A batch that were kept would be 8 KiB, a graph 1 MiB, the images of an epoch 0.3 MiB.
    assert len(RESIDENT) == 30
    assert max(RESIDENT[10:]) - RESIDENT[9] < 4
