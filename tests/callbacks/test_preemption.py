"""PreemptionGuard in a plain Trainer; tests/processes has the command, ranks and schedulers."""

import os
import signal
import time

import pytest
from lightning.pytorch.callbacks import Callback

from project.callbacks import ExactResume, PreemptionGuard


class Sender(Callback):
    """Sends signals to this process at the beginning of a batch."""

    def __init__(self, hook, *names, at=1):
        self.names, self.at = names, at
        setattr(self, hook, self.send)

    def send(self, trainer, module, batch, batch_idx, *_):
        if batch_idx == self.at and not trainer.sanity_checking:
            for name in self.names:
                os.kill(os.getpid(), getattr(signal, name))
                time.sleep(0.05)  # two of one kind that come at once may count as one


@pytest.fixture
def fit(make_trainer, make_module, data, tmp_path):
    def run(*callbacks):
        trainer = make_trainer(
            *callbacks, ExactResume(), PreemptionGuard(str(tmp_path)), enable_checkpointing=True
        )
        try:
            trainer.fit(make_module(), data)
        finally:
            run.step = trainer.global_step

    return run


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_stops_after_the_batch_and_gives_the_signals_back(fit, tmp_path, name):
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    with pytest.raises(SystemExit) as stop:
        fit(Sender("on_train_batch_start", name))
    assert stop.value.code == 75
    assert fit.step == 2
    assert (tmp_path / "checkpoints" / "autosave.ckpt").is_file()
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before


def test_stops_in_a_validation_too(fit, tmp_path):
    with pytest.raises(SystemExit, match="at step 4, epoch 0"):
        fit(Sender("on_validation_batch_start", "SIGTERM"))
    assert (tmp_path / "checkpoints" / "autosave.ckpt").is_file()


@pytest.mark.parametrize("given", [signal.default_int_handler, signal.SIG_IGN])
def test_second_interrupt_is_pythons_own(fit, tmp_path, given):
    handler = signal.signal(signal.SIGINT, given)  # a shell's background job begins ignoring it
    with pytest.raises(SystemExit) as stop:  # Lightning's answer to a KeyboardInterrupt
        fit(Sender("on_train_batch_start", "SIGINT", "SIGINT"))
    signal.signal(signal.SIGINT, handler)  # Lightning leaves it ignored
    assert stop.value.code == 1
    assert not (tmp_path / "checkpoints" / "autosave.ckpt").exists()


def test_a_trial_run_is_not_looked_after(make_trainer, make_module, data, tmp_path):
    seen = []

    class Look(Callback):
        def on_train_batch_end(self, *_):
            seen.append(signal.getsignal(signal.SIGINT))

    guard = PreemptionGuard(str(tmp_path))
    options = {"fast_dev_run": True, "enable_checkpointing": True}
    make_trainer(Look(), guard, **options).fit(make_module(), data)
    assert seen == [signal.getsignal(signal.SIGINT)]
