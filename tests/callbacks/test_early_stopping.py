"""EarlyStopping says when patience will be over after a few steps."""

import pytest

from project.cli import main

START = ["fit", "--data.batch_size", "1000"]
START += ["--model.net", "project.models.MLP", "--model.net.hidden_dims", "[4]"]
ONE, TWO = ["--early_stopping.patience", "1"], ["--trainer.max_epochs", "2"]


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ([*ONE, *TWO], "1 step"),
        ([*ONE, *TWO, "--data.batch_size", "600"], "2 steps"),
        ([*ONE, *TWO, "--data.batch_size", "200"], ""),
        (TWO, ""),  # over before patience is
        ([*ONE, *TWO, "--trainer.limit_train_batches", "1"], ""),  # a trial
        (["--early_stopping", "null", *TWO], ""),
    ],
)
def test_epochs_of_few_steps_are_said(
    more: list[str], count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*START, *more]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "An epoch is" in line]
    end = "lower --data.batch_size or raise --early_stopping.patience, now 1."
    assert told == ([f"An epoch is {count}: {end}"] if count else [])
