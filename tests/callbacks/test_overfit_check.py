import copy

import pytest
import torch

from project.callbacks import OverfitCheck
from project.mistakes import RunFailed, UserError


def fit(make_trainer, module, data, check=None, **options):
    settings = {"overfit_batches": 2, "limit_val_batches": 0, "max_epochs": 40, "logger": False}
    make_trainer(check or OverfitCheck(), **{**settings, **options}).fit(module, data)


def test_a_network_that_learns_passes_with_one_line(make_trainer, make_module, data, capsys):
    fit(make_trainer, make_module(), data)
    lines = [line for line in capsys.readouterr().out.splitlines() if "overfit" in line]
    assert len(lines) == 1
    assert "passed: the network memorised 2 batches in 80 steps" in lines[0]


def test_dropout_does_not_hide_that_the_batches_are_learned(
    make_trainer, make_module, data, capsys
):
    fit(make_trainer, make_module(dropout=0.9), data)
    assert "overfit check passed" in capsys.readouterr().out


def test_frozen_parameters_fail_with_both_losses_and_advice(make_trainer, make_module, data):
    with pytest.raises(RunFailed, match=r"FAILED.*from 1\.\d+ to 1\.\d+.*\n.*frozen parameters"):
        fit(make_trainer, make_module(lr=0.0), data)


def test_labels_that_change_fail(make_trainer, make_module, data):
    class Noisy(make_module):
        def training_step(self, batch, batch_idx):
            images, labels, index = batch
            labels.copy_(torch.randint(0, 3, labels.shape))
            return super().training_step((images, labels, index), batch_idx)

    with pytest.raises(RunFailed, match="cannot memorise 2 batches"):
        fit(make_trainer, Noisy(), data)


def test_a_loss_that_is_not_a_number_fails(make_trainer, make_module, data):
    with pytest.raises(RunFailed, match="in evaluation mode nan"):
        fit(make_trainer, make_module(lr=float("inf")), data, max_epochs=2)


def test_a_difference_of_evaluation_mode_is_named(make_trainer, make_module, data):
    class Broken(make_module):
        def forward(self, images):
            return super().forward(images) * (1.0 if self.training else 0.0)

    with pytest.raises(RunFailed, match="training loss is fine"):
        fit(make_trainer, Broken(), data)


def test_measuring_changes_neither_weights_nor_modes(make_trainer, make_module, data):
    class Watched(make_module):
        def on_train_epoch_end(self):
            self.before = copy.deepcopy(self.state_dict())

        def on_train_end(self):
            # Callbacks come first, so the measure is over by now.
            self.modes = [part.training for part in self.modules()]

        def on_train_start(self):
            self.net[1].eval()

    module = Watched()
    fit(make_trainer, module, data)
    # Module, Sequential, Flatten, Dropout, Linear
    assert module.modes == [True, True, True, False, True]
    assert all(torch.equal(module.before[key], value) for key, value in module.state_dict().items())


def test_a_run_over_the_whole_training_set_is_refused(make_trainer, make_module, data):
    with pytest.raises(UserError, match=r"Set --trainer\.overfit_batches 1"):
        fit(make_trainer, make_module(), data, overfit_batches=0)


def test_the_limit_can_be_set(make_trainer, make_module, data):
    with pytest.raises(RunFailed, match=r"at most 1e-09"):
        fit(make_trainer, make_module(), data, OverfitCheck(max_loss=1e-9))


def test_a_limit_of_zero_is_refused():
    with pytest.raises(ValueError, match="max_loss must be above 0, got 0"):
        OverfitCheck(max_loss=0)
