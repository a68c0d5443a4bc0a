"""Healthy tasks of many kinds are left in peace."""

import gallery_odd  # noqa: F401
import gallery_tasks  # noqa: F401
import pytest
import torch
from gallery import GALLERY

from project.doctor import check_task

FAST = {"own_module"}
PARAMS = [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in GALLERY]


@pytest.mark.parametrize("name", PARAMS)
def test_nothing_fails_on_a_healthy_task(name: str) -> None:
    torch.manual_seed(0)
    specimen = GALLERY[name]()
    report = check_task(specimen.task, specimen.datamodule, specimen.settings, seconds=300)
    assert not report.failed, report.failed
    assert len(report.of("WARN")) <= 1, report.of("WARN")
    assert not any("could not run" in found.evidence for found in report.findings)
