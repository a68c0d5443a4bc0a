"""Every planted mistake is named by a check; its healthy twin is left in peace."""

import pytest
from zoo.parts import Case, all_cases

from project.doctor import Subject, check_task
from project.doctor.runner import run_checks

CASES = all_cases()
PARAMS = [pytest.param(c, id=c.name, marks=[] if c.fast else pytest.mark.slow) for c in CASES]
# The spare time of a shared machine must not decide.
SECONDS = 300.0


@pytest.mark.parametrize("case", PARAMS)
def test_a_planted_mistake_is_named(case: Case) -> None:
    specimen = case.build(True)
    report = check_task(
        specimen.task,
        specimen.datamodule,
        specimen.settings,
        groups=case.groups,
        only=case.only,
        seconds=SECONDS,
    )
    found = [f for name in case.expect for f in report.named(name) if f.status in ("FAIL", "WARN")]
    assert found, report.findings
    assert any(case.says in f"{f.evidence} {f.advice}" for f in found), found
    assert not any("could not run" in f.evidence for f in report.findings), report.findings


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_its_healthy_twin_is_left_in_peace(case: Case) -> None:
    specimen = case.build(False)
    report = check_task(
        specimen.task,
        specimen.datamodule,
        specimen.settings,
        # All groups together run on the gallery, see test_healthy.
        groups=case.groups,
        seconds=SECONDS,
    )
    assert not report.failed, report.failed
    assert len(report.of("WARN")) <= 1, report.of("WARN")


def test_the_loss_of_trained_weights_need_not_fall() -> None:
    (climber,) = (case for case in CASES if case.name == "optimizer_that_climbs")
    specimen = climber.build(True)
    subject = Subject(specimen.task, specimen.datamodule, seconds=SECONDS)
    subject.trained = True
    (found,) = run_checks(subject, ["training"], only=["loss-falls"]).findings
    assert (found.status, "trained" in found.evidence) == ("SKIP", True)
    subject.close()
