"""The table of the classes on screens of the usual widths."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from project.report import program, show_checkpoint, show_fit, show_scores, show_start
from project.request import Request
from project.tasks.tally import per_class, worst_first


def shown(num_classes: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what is printed of a task; class 1 has no samples, later classes are found less."""
    counts = torch.full((num_classes, num_classes), 1) + torch.arange(num_classes).flip(0).diag()
    counts[1] = 0
    figures = per_class(counts)
    task = SimpleNamespace(
        class_names=[f"kind {label}" for label in range(num_classes)],
        confusion_matrix=counts,
        per_class=lambda: figures,
        worst_classes=lambda count: worst_first(figures)[:count],
    )
    show_scores([], task)  # type: ignore[arg-type]
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", ["80", "120"])
@pytest.mark.parametrize("num_classes", [3, 20, 21, 200])
def test_many_classes_show_those_with_the_lowest_recall(
    num_classes: int,
    width: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    lines = shown(num_classes, capsys)
    assert max(map(len, lines)) <= 80
    rows = [line.split("│")[1].strip() for line in lines if "│ kind" in line]
    said = f"The 10 of {num_classes} classes with the lowest recall"
    if num_classes <= 20:
        assert rows == [f"kind {label}" for label in range(num_classes)]
        assert said not in lines
    else:
        assert rows == [f"kind {num_classes - 1 - place}" for place in range(10)]
        assert said in lines


def test_a_class_without_samples_has_no_figures(capsys: pytest.CaptureFixture[str]) -> None:
    [row] = [line for line in shown(3, capsys) if "kind 1" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")[1:]] == ["n/a", "n/a", "n/a", "0"]


def test_where_predictions_go_is_no_difference_from_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = frozenset({"predictions.max_class_columns"})
    request = Request("predict", [], "digits", Path("logs"), typed=given)
    changed = ("path", "top_k", "max_class_columns")
    show_checkpoint(request, [(f"predictions.{name}", "1", "2") for name in changed])
    said = capsys.readouterr().out
    assert [name in said for name in changed] == [False, False, True]
    show_checkpoint(request, [("predictions.path", "null", "{run_dir}/predictions.csv")])
    assert "setting" not in capsys.readouterr().out  # no empty table


@pytest.mark.parametrize(
    ("path", "called"),
    [("ours", "tool"), ("", "ours/tool"), ("other:ours", "ours/tool"), ("ours:other", "tool")],
)
def test_a_program_is_named_so_that_the_shell_finds_it(
    path: str, called: str, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("ours", "other"):
        (workdir / folder).mkdir()
        (workdir / folder / "tool").touch(mode=0o755)
    monkeypatch.setattr("sys.executable", str(workdir / "ours" / "python"))
    folders = [str(workdir / name) for name in path.split(":") if name]
    monkeypatch.setenv("PATH", ":".join(folders))
    assert program("tool") == called
    assert program("none") == "none"


def test_an_environments_link_is_not_the_program_it_leads_to(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("ours", "other"):
        (workdir / folder).mkdir()
    (workdir / "other/python").touch(mode=0o755)
    (workdir / "ours/python").symlink_to(workdir / "other/python")
    monkeypatch.setattr("sys.executable", str(workdir / "ours" / "python"))
    monkeypatch.setenv("PATH", str(workdir / "other"))
    assert program("python") == "ours/python"


def test_commands_that_follow_can_be_pasted(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path("my logs", "digits", "run")
    for file in ("events.out.tfevents.1", "checkpoints/last.ckpt"):
        (run / file).parent.mkdir(parents=True, exist_ok=True)
        (run / file).touch()
    trainer = SimpleNamespace(current_epoch=1, global_step=1)
    show_fit({}, trainer, torch.nn.Linear(1, 1), 1.0, run, [])  # type: ignore[arg-type]
    commands = capsys.readouterr().out.splitlines()[-2:]
    assert [shlex.split(command)[-1] for command in commands] == ["my logs", str(run)]


@pytest.mark.parametrize(
    ("counts", "said"), [([60, 6], "maple has 6 images, oak 60: see --data.balanced"), ([6, 9], "")]
)
def test_a_rare_class_is_pointed_out(
    counts: list[int], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = SimpleNamespace(class_names=["oak", "maple"], class_counts=counts)
    show_start(SimpleNamespace(datamodule=data), torch.nn.Linear(1, 1), Path("run"))  # type: ignore[arg-type]
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines if "images" in line] == ([said] if said else [])


@pytest.mark.parametrize(
    ("size", "said"), [(224, "3 classes, 3 x 224 x 224"), (None, "3 classes, 3 channels")]
)
def test_what_the_data_are_is_shown(
    size: int | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    split = range(1200)
    data = SimpleNamespace(num_classes=3, in_channels=3, image_size=size, train_set=split)
    show_start(SimpleNamespace(datamodule=data), torch.nn.Linear(1, 1), Path("run"))  # type: ignore[arg-type]
    assert f"Data   SimpleNamespace, {said}, 1,200 train samples\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("epochs", "steps", "said"), [(1, 1, "1 epoch, 1 step, 3 s"), (2, 1000, "2 epochs, 1,000 ste")]
)
def test_one_is_no_plural(
    epochs: int, steps: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = SimpleNamespace(current_epoch=epochs, global_step=steps)
    show_fit({}, trainer, SimpleNamespace(), 3.0, None, [])  # type: ignore[arg-type]
    assert capsys.readouterr().out.startswith(said)
