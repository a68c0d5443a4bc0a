"""A backbone that is frozen at first: resumed to the last bit, on either side of the thaw."""

from collections.abc import Callable
from pathlib import Path

import pytest
from lives import SETTINGS, Outcome, assert_same, killed, killer, outcome, resume

FREEZE = (
    "--trainer.callbacks+=project.callbacks.FreezeBackbone",
    "--trainer.callbacks.until_epoch=1",
)
SLOWER = ("--model.backbone_lr_factor", "0.1", "--autosave.every_n_steps", "1")
BATCH, VALIDATION = "on_train_batch_end", "on_validation_batch_end"


# The thaw is after step 12.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "hook", "step", "batch"),
    [
        ("Kill", BATCH, 5, None),
        ("Kill", BATCH, 12, None),
        ("SaveAndKill", VALIDATION, 12, 1),
        ("Kill", "on_train_epoch_end", 12, None),
        ("Kill", BATCH, 13, None),
        ("Kill", BATCH, 17, None),
    ],
)
def test_a_frozen_backbone_and_its_thaw_survive_a_kill(
    tmp_path: Path, whole: Callable[..., Outcome], kind, hook, step, batch
) -> None:
    start = ["fit", "--trainer.default_root_dir", str(tmp_path), *SETTINGS, *SLOWER, *FREEZE]
    killed([*start, *killer(kind, hook, step, batch)])
    assert_same(outcome(resume(tmp_path, *FREEZE)), whole(*SLOWER, *FREEZE))
