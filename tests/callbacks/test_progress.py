import io
import re
import time
from contextlib import nullcontext, redirect_stdout

import pytest

from project.callbacks import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal():
    return Terminal()


def screen_after(text):
    """What stays on the screen: a carriage return goes back, and what follows overwrites."""
    lines = []
    for line in text.replace("\x1b[A", "").split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return [line for line in lines if line]


EPOCH = r"epoch +{}  train/loss \d\.\d{{4}}  val/loss \d\.\d{{4}}  val/acc \d\.\d{{4}}  \d+\.\d s"


def fit(make_trainer, module, data, bar=None, terminal=None, **options):
    trainer = make_trainer(
        bar or ProgressBar(), **{"enable_progress_bar": True, "logger": False, **options}
    )
    with redirect_stdout(terminal) if terminal else nullcontext():
        trainer.fit(module, data)
    return trainer


def test_a_log_file_gets_one_line_an_epoch_and_no_bar(make_trainer, make_module, data, capsys):
    fit(make_trainer, make_module(), data)
    out, err = capsys.readouterr()
    assert err == ""
    assert "\r" not in out
    lines = out.splitlines()
    assert len(lines) == 2
    for epoch, line in enumerate(lines):
        assert re.fullmatch(EPOCH.format(epoch), line)


def test_a_terminal_keeps_the_lines_of_the_epochs_only(make_trainer, make_module, data, terminal):
    fit(make_trainer, make_module(), data, ProgressBar(refresh_seconds=0), terminal)
    lines = screen_after(terminal.getvalue())
    assert [bool(re.fullmatch(EPOCH.format(i), line)) for i, line in enumerate(lines)] == [True] * 2


def test_the_bar_shows_the_metrics_and_the_validation_but_no_version(
    make_trainer, make_module, data, terminal
):
    fit(make_trainer, make_module(), data, ProgressBar(refresh_seconds=0), terminal, logger=True)
    assert "val/acc=" in terminal.getvalue()
    assert "Epoch 1, validation 2/3" in terminal.getvalue()
    assert "v_num" not in terminal.getvalue()


def test_metrics_that_the_module_logs_at_its_epoch_end_are_in_the_line(
    make_trainer, make_module, data, capsys
):
    class Late(make_module):
        def on_train_epoch_end(self):
            self.log("train/late", float(self.current_epoch))

    fit(make_trainer, Late(), data, ProgressBar(metrics=["train/late"]))
    lines = capsys.readouterr().out.splitlines()
    assert ["train/late 0.0000" in lines[0], "train/late 1.0000" in lines[1]] == [True, True]


def test_an_epoch_without_validation_shows_no_stale_metric(make_trainer, make_module, data, capsys):
    fit(make_trainer, make_module(), data, max_epochs=3, check_val_every_n_epoch=2)
    lines = capsys.readouterr().out.splitlines()
    assert ["val/loss" in line for line in lines] == [False, True, False]


def test_redraws_go_by_the_clock(make_trainer, make_module, data, terminal):
    fit(make_trainer, make_module(), data, ProgressBar(refresh_seconds=1000), terminal)
    # Opening, and one start for every epoch: none of the eight batches is drawn.
    assert "1/4" not in terminal.getvalue()
    assert "4/4" not in terminal.getvalue()


def test_a_long_epoch_leaves_a_trace_in_a_log_file(
    make_trainer, make_module, data, capsys, monkeypatch
):
    monkeypatch.setattr("project.callbacks.progress._QUIET_SECONDS", 0.0)
    fit(make_trainer, make_module(), data, max_epochs=1, num_sanity_val_steps=0)
    assert "train epoch 0  batch 3/4" in capsys.readouterr().out


def test_what_a_module_prints_is_not_swallowed_without_a_terminal(
    make_trainer, make_module, data, capsys
):
    class Talking(make_module):
        def on_train_start(self):
            self.print("hello")

    fit(make_trainer, Talking(), data)
    assert "hello" in capsys.readouterr().out


def test_what_is_printed_before_and_after_the_bar_is_not_swallowed_on_a_terminal(
    make_trainer, make_module, data, terminal
):
    class Talking(make_module):
        def on_fit_start(self):
            self.print("hello")

        def on_fit_end(self):
            self.print("bye")

    fit(make_trainer, Talking(), data, terminal=terminal)
    lines = screen_after(terminal.getvalue())
    assert (lines[0], lines[-1]) == ("hello", "bye")


def test_an_exception_leaves_the_lines_of_the_epochs_before_it(
    make_trainer, make_module, data, terminal
):
    class Broken(make_module):
        def on_train_epoch_end(self):
            if self.current_epoch == 1:
                raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fit(make_trainer, Broken(), data, ProgressBar(refresh_seconds=0), terminal)
    first, second = screen_after(terminal.getvalue())
    assert re.fullmatch(EPOCH.format(0), first)
    assert re.fullmatch(EPOCH.format(1), second)


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_other_verbs_leave_no_bar_behind(make_trainer, make_module, data, terminal, verb):
    data.predict_dataloader = data.test_dataloader
    module = make_module()
    module.predict_step = lambda batch, batch_idx: module(batch[0])
    trainer = make_trainer(ProgressBar(refresh_seconds=0), enable_progress_bar=True, logger=False)
    options = {} if verb == "predict" else {"verbose": False}
    with redirect_stdout(terminal):
        getattr(trainer, verb)(module, data, **options)
    assert "2/" in terminal.getvalue()
    assert screen_after(terminal.getvalue()) == []


def test_a_step_costs_less_than_a_tenth_of_a_millisecond(make_trainer, make_module, data, terminal):
    bar = ProgressBar()
    trainer = fit(make_trainer, make_module(), data, bar, terminal, max_epochs=1)
    started = time.perf_counter()
    for batch_idx in range(1000):
        bar.on_train_batch_end(trainer, trainer.lightning_module, None, None, batch_idx)
    # Really 1 to 2 us a call; the limit is the promise, with room for a busy machine.
    assert (time.perf_counter() - started) / 1000 < 1e-4


def test_a_negative_refresh_is_refused():
    with pytest.raises(ValueError, match="refresh_seconds must not be negative, got -1"):
        ProgressBar(refresh_seconds=-1)
