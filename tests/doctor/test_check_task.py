"""The doctor leaves no trace, keeps to its time, and says a mistake of the user's once."""

import copy
import os
import random
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor
from zoo.model_parts import Cnn
from zoo.parts import Pictures, Task

from project.doctor import Finding, Subject, check, check_task, registry, sheet
from project.doctor.runner import run_checks


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """No checks but those that a test registers."""
    monkeypatch.setattr(registry, "REGISTRY", {})
    monkeypatch.setattr("project.doctor.runner.all_checks", lambda: [*registry.REGISTRY.values()])
    return registry.REGISTRY


def trained(task: L.LightningModule, data: L.LightningDataModule, folder: Path) -> list[Tensor]:
    """Weights after a short training."""
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(task, datamodule=data)
    return [tensor.clone() for tensor in task.state_dict().values()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_a_training_is_the_same_to_the_bit_after_the_doctor(tmp_path: Path) -> None:
    results = []
    for examined in (False, True):
        L.seed_everything(5, verbose=False)
        task, data = Task(Cnn()), Pictures()
        if examined:
            check_task(task, data, seconds=300)
        results.append(trained(task, data, tmp_path))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


@pytest.mark.slow
def test_task_data_and_process_are_as_before(tmp_path: Path) -> None:
    task, data = Task(Cnn()).train(), Pictures()
    task.net.dropout.eval()
    state, images = copy.deepcopy(task.state_dict()), data.train[0].clone()
    modes = [module.training for module in task.modules()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in task.modules()]
    process = (random.getstate(), torch.get_rng_state(), str(np.random.get_state()), {**os.environ})
    check_task(task, data, seconds=300)
    assert all(torch.equal(state[name], value) for name, value in task.state_dict().items())
    assert torch.equal(images, data.train[0])
    assert modes == [module.training for module in task.modules()]
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in task.modules()]
    assert all(parameter.grad is None for parameter in task.parameters())
    now = (random.getstate(), torch.get_rng_state(), str(np.random.get_state()), {**os.environ})
    assert process[0] == now[0]
    assert torch.equal(process[1], now[1])
    assert process[2:] == now[2:]
    assert not any(tmp_path.iterdir())


def test_what_a_check_changes_is_put_back(checks: dict[str, Any]) -> None:
    @check("model")
    def vandal(subject: Subject) -> list[Finding]:
        """Changes all it can reach."""
        random.random(), np.random.rand(), torch.rand(1)
        os.environ["VANDAL"] = "1"
        torch.set_default_dtype(torch.float64)
        for parameter in subject.fresh_task().parameters():
            parameter.data.zero_()
        print("noise")
        return []

    task = Task()
    before = task.net[1].weight.clone()
    numbers = random.getstate(), torch.get_rng_state()
    report = check_task(task, Pictures())
    assert [found.status for found in report.named("vandal")] == ["PASS"]
    assert torch.equal(task.net[1].weight, before)
    assert random.getstate() == numbers[0]
    assert torch.equal(torch.get_rng_state(), numbers[1])
    assert "VANDAL" not in os.environ
    assert torch.get_default_dtype() == torch.float32


def test_weights_that_a_closure_brings_into_the_copies_are_put_back(
    checks: dict[str, Any],
) -> None:
    task = Task()
    inner = task.net[1].weight

    @check("model")
    def trains_the_original(subject: Subject) -> list[Finding]:
        """Reaches a parameter of the original, as an optimizer made by a lambda does."""
        with torch.no_grad():
            inner.zero_()
        return []

    before = inner.clone()
    check_task(task, Pictures())
    assert torch.equal(inner, before)


def test_without_time_the_checks_are_skipped() -> None:
    report = check_task(Task(), Pictures(), seconds=0.0)
    assert {found.status for found in report.findings} == {"SKIP"}


def test_without_time_the_machine_is_looked_at() -> None:
    report = check_task(Task(), Pictures(), groups=("machine",), seconds=0.0)
    assert not [found for found in report.findings if found.evidence == "no time left"]


def test_a_mistake_in_the_task_is_told_once() -> None:
    class Broken(Task):
        def forward(self, images: Tensor) -> Tensor:
            raise RuntimeError("no such layer")

    report = check_task(Broken(), Pictures(), groups=("model",))
    told = [found for found in report.findings if "no such layer" in found.evidence]
    assert len(told) == 1
    assert told[0].status == "FAIL"
    assert "test_check_task.py, line" in told[0].evidence


def test_a_mistake_of_a_check_is_no_failure_of_the_task(checks: dict[str, Any]) -> None:
    @check("model")
    def clumsy(subject: Subject) -> list[Finding]:
        """Divides by zero."""
        return [Finding("PASS", str(1 / 0))]

    report = check_task(Task(), Pictures())
    assert not report.failed
    assert "could not run" in report.findings[0].evidence


def test_a_failure_raises_in_a_test(checks: dict[str, Any]) -> None:
    @check("model")
    def sad(subject: Subject) -> Finding:
        """Fails."""
        return registry.fail("it is blue", "Paint it green.")

    with pytest.raises(AssertionError, match=r"sad: it is blue → Paint it green\."):
        check_task(Task(), Pictures()).raise_for_failures()


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(ValueError, match="groups must be of"):
        check_task(Task(), Pictures(), groups=("models",))


def test_checks_run_without_a_data_module(checks: dict[str, Any]) -> None:
    @check("model")
    def looks(subject: Subject) -> Finding:
        """Reads a batch."""
        return registry.passed(str(tuple(subject.pairs("train")[0][0].shape)))

    report = check_task(Task(), Pictures().train_dataloader())
    assert report.findings[0].evidence == "(32, 1, 8, 8)"


def test_the_time_of_the_whole_is_kept() -> None:
    subject = Subject(Task(), Pictures(), seconds=300.0)
    try:
        report = run_checks(subject, ("model",), only=("output-shape",))
    finally:
        subject.close()
    assert [found.check for found in report.findings] == ["output-shape"]
    assert not subject.folder.exists()


def test_a_mixed_label_is_named_by_its_classes() -> None:
    assert (
        sheet._named(torch.tensor([0.15, 0.0, 0.85]), ["ash", "elm", "oak"]) == "85% oak, 15% ash"
    )
