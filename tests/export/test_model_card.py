"""MODEL_CARD.md: its figures are those of the verbs, and nothing in it is made up."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from project.cli import main
from project.export.card_limits import card_limits
from project.export.evaluation import Evaluation, bootstrap, evaluate, wilson
from project.export.model_card import write_model_card
from project.export.seen import Seen
from project.mistakes import UserError
from project.models import ConvNet
from project.runs import LoadedRun, Run, load_run


def rows(text: str) -> dict[str, list[str]]:
    """The lines of all tables by their first cell."""
    lines = [re.split(r"[|│]", line)[1:-1] for line in text.splitlines() if line[:1] in "|│"]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines if cells}


def recorded(untrained: LoadedRun, **facts) -> None:
    (untrained.run.path / "run.json").write_text(json.dumps(facts))


@pytest.mark.slow
def test_the_figures_are_those_of_lightning_test(
    digits_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(digits_run.path, tmp_path / "copy")
    capsys.readouterr()
    assert main(["test", "--run", str(run)]) == 0
    said = rows(capsys.readouterr().out)
    text = write_model_card(load_run(run)).read_text()
    card = rows(text)
    for metric in ("loss", "acc", "f1"):
        assert card[metric][0] == said[f"test/{metric}"][0]
    for digit in map(str, range(10)):
        assert card[digit] == said[digit]
    with Image.open(run / "confusion_matrix.png") as picture:
        assert picture.width > 400
    assert "(confusion_matrix.png)" in text


def test_an_evaluation_says_nothing_of_its_trainer(
    untrained: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("lightning.pytorch.trainer.setup.rank_zero_info", said.append)
    evaluate(untrained)
    assert [line for line in said if "limit_" in line] == []


@pytest.mark.slow
def test_the_facts_are_those_of_the_record(digits_run: Run, tmp_path: Path) -> None:
    run = shutil.copytree(digits_run.path, tmp_path / "copy")
    card = rows(write_model_card(load_run(run)).read_text())
    record = digits_run.record
    assert card["command"] == [f"`{record['command']}`"]
    assert card["seed"] == ["42"]
    assert card["images"] == ["train 1,294, val 143, test 360"]
    assert f"torch {record['versions']['torch']}," in card["versions"][0]
    assert record["hardware"]["machine"] in card["hardware"][0]
    assert card["trained"][0].startswith("2 epochs, 80 steps, batches of 32 in 1 process")
    assert Path(record["best_ckpt"]).name in card["checkpoint"][0]
    assert card["checkpoint"][0].endswith("the best by val/acc")


@pytest.mark.slow
def test_what_the_run_does_not_say_is_unknown(untrained: LoadedRun) -> None:
    card = rows(write_model_card(untrained).read_text())
    for fact in ("command", "seed", "commit", "versions", "hardware", "time"):
        assert card[fact] == ["unknown"]
    assert card["checkpoint"] == ["`last.ckpt`, epoch 0 (from 0), step 3"]


@pytest.mark.slow
def test_a_setting_with_a_pipe_is_one_cell(make_run: Callable[..., LoadedRun]) -> None:
    net = ConvNet(in_channels=1, num_classes=10, hidden_dim=4)
    text = write_model_card(make_run(net, "project.models.ConvNet", name="a|b")).read_text()
    assert r"(name='a\|b')`" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"git_commit": "abc", "git_dirty": True}, "with uncommitted changes"),
        ({"git_commit": "abc", "git_dirty": False}, "nothing uncommitted"),
        ({"git_commit": "abc"}, "changes unknown"),
        (
            {"started": "2026-01-01T10:00:00+00:00", "ended": "2026-01-01T12:30:01+00:00"},
            "2:30:01 (h:mm:ss)",
        ),
        ({"hardware": {"gpus": ["H200", "H200"]}}, "H200, H200"),
    ],
)
def test_commit_time_and_hardware_are_told(
    untrained: LoadedRun, facts: dict[str, object], said: str
) -> None:
    recorded(untrained, **facts)
    assert said in write_model_card(untrained).read_text()


@pytest.mark.slow
def test_notes_are_kept_and_all_else_is_made_anew(untrained: LoadedRun) -> None:
    file = write_model_card(untrained)
    text = file.read_text()
    file.write_text(
        text.replace("Not yet written", "Only for digits \\1").replace("## Limits", "## No limits")
    )
    assert write_model_card(untrained) == file
    assert "Only for digits \\1" in file.read_text()
    assert "## No limits" not in file.read_text()
    assert "## Limits" in file.read_text()


def test_a_card_that_somebody_has_written_is_not_overwritten(untrained: LoadedRun) -> None:
    file = untrained.run.path / "MODEL_CARD.md"
    file.write_text("Mine.")
    with pytest.raises(UserError, match="no section of notes"):
        write_model_card(untrained)
    assert file.read_text() == "Mine."


@pytest.mark.slow
def test_without_a_test_split_the_card_is_about_validation(untrained: LoadedRun) -> None:
    untrained.datamodule.has_test = False
    text = write_model_card(untrained).read_text()
    assert "on 143 images of the val split" in text
    assert "There is no test split." in text


@pytest.mark.slow
def test_the_task_stays_as_it_is(untrained: LoadedRun) -> None:
    config = untrained.run.config
    config.write_text(config.read_text().replace("trainer: {}", "trainer: {precision: bf16-true}"))
    evaluate(untrained)
    assert {p.dtype for p in untrained.task.parameters()} == {torch.float32}


@pytest.mark.slow
def test_a_jobs_variables_do_not_make_the_evaluation_wait_for_other_processes(
    untrained: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a shell of `sbatch --ntasks=2`; Lightning would want a process for each task.
    for name, value in {"JOB_ID": "1", "JOB_NAME": "train", "NTASKS": "2", "PROCID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert evaluate(untrained).split == "test"


@pytest.mark.parametrize(("right", "total"), [(357, 360), (36, 36), (0, 10), (5, 10), (1, 1)])
def test_the_interval_of_accuracy_is_wilsons(right: int, total: int) -> None:
    low, high = wilson(right, total)
    assert 0 <= low <= right / total <= high <= 1
    for end in {low, high} - {0.0, 1.0}:
        # Its definition: a true share there is 1.96 of its own standard errors away.
        distance = abs(end - right / total) / (end * (1 - end) / total) ** 0.5
        assert distance == pytest.approx(1.959964)


def test_the_bootstrap_of_accuracy_is_like_wilsons() -> None:
    counts = np.array([[450, 50], [100, 400]])
    found = bootstrap(counts, lambda drawn: float(np.trace(drawn) / drawn.sum()))
    # 1000 resamples: the ends are uncertain by a twentieth of the interval's width.
    assert found == pytest.approx(wilson(850, 1000), abs=0.004)
    assert found == bootstrap(counts, lambda drawn: float(np.trace(drawn) / drawn.sum()))


def test_f1_has_no_interval_where_every_resample_is_the_same() -> None:
    right = Evaluation("test", {"acc": 1.0, "f1": 1.0}, np.diag([5, 5]), None, "cpu")
    assert right.intervals.keys() == {"acc"}


def test_a_score_that_is_no_share_of_the_images_has_no_interval() -> None:
    counts = np.array([[90, 10], [5, 5]])
    found = Evaluation("test", {"acc": 0.7, "f1": 0.8}, counts, None, "cpu")  # acc: mean of recalls
    assert found.intervals == {}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({(5, 9): 1, (1, 8): 1}, ""),
        ({(5, 9): 4, (1, 8): 1}, "5 for 9 (4 of 36)"),
        ({(5, 9): 4, (1, 8): 9}, "1 for 8 (9 of 36), 5 for 9 (4 of 36)"),
        ({(5, 9): 4, (1, 8): 3, (2, 3): 3, (3, 2): 3}, "5 for 9 (4 of 36)"),
        ({(5, 9): 4, (1, 8): 4, (2, 3): 4, (3, 2): 4}, ""),
    ],
)
def test_pairs_of_classes_are_named_where_they_stand_out(
    wrong: dict[tuple[int, int], int], said: str
) -> None:
    counts = np.zeros((10, 10), np.int64)
    for (true, taken), many in wrong.items():
        counts[true, taken] = many
    counts += np.diag(36 - counts.sum(1))
    seen = Seen("Data", "", {}, None, {"train": 360, "val": 0, "test": 360}, None)
    lines = card_limits(Evaluation("test", {}, counts, None, "cpu"), seen, list("0123456789"), "")
    found = [line for line in lines if line.startswith("Most often it takes")]
    assert found == ([f"Most often it takes {said}."] if said else [])
