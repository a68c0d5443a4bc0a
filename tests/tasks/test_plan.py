import functools

import lightning as L
import pytest
import torch
from small_nets import ConvNet
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau

from project.callbacks import ExactResume
from project.mistakes import UserError
from project.optim import WarmupCosine

# 64 images in batches of 8: 8 steps per epoch.


def test_default_schedule_covers_the_run_and_ends_at_its_end(trainer, task, data, lr_trace):
    trace = lr_trace()
    trainer(max_epochs=3, callbacks=[trace]).fit(task(), data())
    assert len(trace.lrs) == 24
    assert max(trace.lrs) == pytest.approx(1e-3)
    assert trace.lrs[-1] == pytest.approx(1e-5)


def test_accumulation_longer_than_an_epoch_is_said_and_the_schedule_still_ends(
    trainer, task, data, lr_trace, capsys
):
    trace = lr_trace()
    trainer(max_epochs=3, accumulate_grad_batches=50, callbacks=[trace]).fit(task(), data())
    assert len(trace.lrs) == 3
    assert trace.lrs[-1] == pytest.approx(1e-5)
    assert "accumulate_grad_batches 50 is more than an epoch has" in capsys.readouterr().out


def test_accumulated_gradient_is_a_mean_over_the_batches_really_seen(trainer, task, data):
    after = []
    for options in ({"accumulate_grad_batches": 50}, {}):
        optimizer = functools.partial(torch.optim.SGD, lr=0.5)
        model = task(optimizer=optimizer, scheduler=None)
        split = data() if options else data(batch_size=64)
        trainer(**options).fit(model, split)
        after.append(model.net.layers[1].weight.detach())
    # The same 64 images, summed in another order.
    torch.testing.assert_close(after[0], after[1], rtol=1e-4, atol=1e-6)


def resume(trainer, task, data, lr_trace, tmp_path, first, second):
    traces = [lr_trace(), lr_trace()]
    run = trainer(max_epochs=2, callbacks=[traces[0]])
    run.fit(task(**first), data())
    run.save_checkpoint(tmp_path / "a.ckpt")
    run = trainer(max_epochs=4, callbacks=[traces[1]])
    run.fit(task(**second), data(), ckpt_path=tmp_path / "a.ckpt")
    return traces[0].lrs, traces[1].lrs


def test_longer_resume_stretches_the_cosine_and_says_so(
    trainer, task, data, lr_trace, tmp_path, capsys
):
    schedule = {"scheduler": functools.partial(WarmupCosine, warmup_steps=0.25)}
    _, lrs = resume(trainer, task, data, lr_trace, tmp_path, schedule, schedule)
    assert len(lrs) == 16
    assert lrs == sorted(lrs, reverse=True)
    assert lrs[-1] == pytest.approx(1e-5)
    said = [line for line in capsys.readouterr().out.splitlines() if "WarmupCosine" in line]
    assert len(said) == 1
    assert "16 optimizer steps is stretched to 32" in said[0]


@pytest.mark.parametrize(("batch_size", "total"), [(16, 24), (4, 48), (8, 32)])
@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_train_end"])
def test_another_batch_size_leaves_the_schedule_the_steps_to_come(
    trainer, task, data, lr_trace, tmp_path, capsys, batch_size, total, hook
):
    class Save(L.Callback):
        pass

    def save(self, trainer, *_):
        trainer.save_checkpoint(tmp_path / "a.ckpt")

    setattr(Save, hook, save)
    trainer(max_epochs=2, callbacks=[Save(), ExactResume()]).fit(task(), data())
    trace = lr_trace()
    capsys.readouterr()
    second = trainer(max_epochs=4, callbacks=[ExactResume(), trace])
    second.fit(task(), data(batch_size=batch_size), ckpt_path=tmp_path / "a.ckpt")
    assert len(trace.lrs) == total - 16
    assert trace.lrs == sorted(trace.lrs, reverse=True)
    assert trace.lrs[-1] == pytest.approx(1e-5)
    assert trace.lrs[0] > 1e-4
    assert f"16 optimizer steps is stretched to {total}; at step 16" in capsys.readouterr().out


def test_a_shorter_end_is_said_to_be_shorter(trainer, task, data, tmp_path, capsys):
    first = trainer()
    first.fit(task(scheduler=functools.partial(WarmupCosine, total_steps=64)), data())
    first.save_checkpoint(tmp_path / "a.ckpt")
    trainer(max_epochs=4).fit(task(), data(), ckpt_path=tmp_path / "a.ckpt")
    assert "64 optimizer steps is shortened to 32; at step 8" in capsys.readouterr().out


@pytest.mark.parametrize("own_total", [True, False])
def test_longer_resume_of_one_cycle_does_not_die(
    trainer, task, data, lr_trace, tmp_path, capsys, own_total
):
    total = 16 if own_total else None
    schedule = {"scheduler": functools.partial(OneCycleLR, max_lr=0.1, total_steps=total)}
    first, lrs = resume(trainer, task, data, lr_trace, tmp_path, schedule, schedule)
    assert first[-1] == pytest.approx(0.1 / 25 / 1e4)
    assert len(lrs) == 16
    assert lrs == sorted(lrs, reverse=True)
    out = capsys.readouterr().out
    assert out.count("OneCycleLR: the schedule of 16 optimizer steps is stretched to 32") == 1


def test_too_short_one_cycle_does_not_die_in_the_middle(trainer, task, data, lr_trace, capsys):
    trace = lr_trace()
    schedule = functools.partial(OneCycleLR, max_lr=0.1, total_steps=5)
    trainer(callbacks=[trace]).fit(task(scheduler=schedule), data())
    assert len(trace.lrs) == 8
    assert "OneCycleLR: the schedule of 5" in capsys.readouterr().out


def test_an_unchanged_resume_says_nothing(trainer, task, data, tmp_path, capsys):
    class Save(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 3:
                trainer.save_checkpoint(tmp_path / "a.ckpt")

    trainer(callbacks=[Save()]).fit(task(), data())
    capsys.readouterr()
    trainer().fit(task(), data(), ckpt_path=tmp_path / "a.ckpt")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("scheduler", [None, WarmupCosine, "plateau"])
def test_lr_and_weight_decay_asked_for_beat_the_checkpoint(
    trainer, task, data, lr_trace, tmp_path, capsys, scheduler
):
    if scheduler == "plateau":
        scheduler = functools.partial(ReduceLROnPlateau, factor=0.5)
    make = functools.partial(torch.optim.AdamW, weight_decay=0.1)
    first = {"optimizer": functools.partial(make, lr=1e-3), "scheduler": scheduler}
    second = {
        "optimizer": functools.partial(make, lr=1e-2, weight_decay=0.2),
        "scheduler": scheduler,
    }
    _, straight = resume(trainer, task, data, lr_trace, tmp_path, first, first)
    out = capsys.readouterr().out
    assert "Other than in the checkpoint" not in out
    _, changed = resume(trainer, task, data, lr_trace, tmp_path, first, second)
    assert changed == pytest.approx([10 * lr for lr in straight])
    line = "as asked for now: lr 0.001 -> 0.01, weight_decay 0.1 -> 0.2."
    assert line in capsys.readouterr().out


def test_a_longer_cosine_annealing_asked_for_beats_the_checkpoint(
    trainer, task, data, lr_trace, tmp_path, capsys
):
    schedules = [{"scheduler": functools.partial(CosineAnnealingLR, T_max=t)} for t in (2, 4)]
    _, lrs = resume(trainer, task, data, lr_trace, tmp_path, *schedules)
    assert lrs[0] == pytest.approx(5e-4)  # half of the way down
    assert lrs == sorted(lrs, reverse=True)
    assert "T_max 2 -> 4" in capsys.readouterr().out


def test_plateau_works_when_validation_is_rarer_than_epochs(trainer, task, data, lr_trace):
    trace = lr_trace()
    # A threshold that no loss can pass: every validation counts as bad, the first included.
    schedule = functools.partial(ReduceLROnPlateau, patience=0, factor=0.5, threshold=1e3)
    run = trainer(max_epochs=6, check_val_every_n_epoch=2, callbacks=[trace])
    run.fit(task(scheduler=schedule), data())
    lrs = [lr / 1e-3 for lr in trace.lrs[::8]]
    assert lrs == pytest.approx([1, 1, 0.5, 0.5, 0.25, 0.25])


def test_plateau_counts_a_validation_once(trainer, task, data, lr_trace):
    trace = lr_trace()
    schedule = functools.partial(ReduceLROnPlateau, patience=0, factor=0.5, threshold=1e3)
    run = trainer(
        max_epochs=4, check_val_every_n_epoch=None, val_check_interval=16, callbacks=[trace]
    )
    with pytest.warns(RuntimeWarning, match="not available"):  # epoch 1 ends without a validation
        run.fit(task(scheduler=schedule), data())
    # Validations end epochs 2 and 4; epoch 3 has no news.
    assert trace.lrs[-1] == pytest.approx(5e-4)


def test_interval_may_be_chosen(trainer, task, data, lr_trace):
    trace = lr_trace()
    schedule = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    model = task(scheduler=schedule, scheduler_interval="step")
    trainer(callbacks=[trace], max_steps=3).fit(model, data())
    assert trace.lrs == pytest.approx([1e-3, 5e-4, 2.5e-4])


def test_scale_lr_follows_the_global_batch_and_is_said(trainer, task, data, lr_trace, capsys):
    trace = lr_trace()
    model = task(scheduler=None, scale_lr=16)
    trainer(accumulate_grad_batches=4, callbacks=[trace]).fit(model, data())
    assert trace.lrs == pytest.approx([2e-3] * 2)  # 8 x 1 x 4 / 16
    assert "lr 0.001 -> 0.002 for a global batch of 32" in capsys.readouterr().out


def test_weight_decay_leaves_out_norms_and_biases(trainer, task, data):
    model = task(ConvNet(1, 3))
    run = trainer()
    run.fit(model, data())
    decay, no_decay = run.optimizers[0].param_groups
    assert (decay["weight_decay"], no_decay["weight_decay"]) == (0.01, 0.0)
    assert len(decay["params"]) == 4
    assert decay["fused"] is True


def test_a_wholly_frozen_network_is_refused(trainer, task, data):
    model = task()
    model.net.requires_grad_(False)
    with pytest.raises(UserError, match="every parameter of MLP is frozen"):
        trainer().fit(model, data())


def test_training_without_an_end_stays_at_the_peak(trainer, task, data, lr_trace):
    trace = lr_trace()
    schedule = functools.partial(WarmupCosine, warmup_steps=2, total_steps=None)
    run = trainer(max_epochs=-1, max_time={"seconds": 0}, callbacks=[trace])
    run.fit(task(scheduler=schedule), data())
    assert trace.lrs[:3] == pytest.approx([5e-4, 1e-3, 1e-3][: len(trace.lrs)])


def test_building_the_optimizer_does_not_load_the_data(trainer, task, data, monkeypatch):
    # Lightning would not restore the position of a stateful loader after that.
    loaded = []
    load, build = data.train_dataloader, type(task()).configure_optimizers
    monkeypatch.setattr(data, "train_dataloader", lambda s: loaded.append("load") or load(s))
    monkeypatch.setattr(
        "project.tasks.ClassificationTask.configure_optimizers",
        lambda s: (build(s), loaded.append("built"))[0],
    )
    trainer(limit_val_batches=0).fit(task(scale_lr=8), data())
    assert loaded == ["built", "load"]


def test_one_cycle_without_an_end_is_refused(trainer, task, data):
    schedule = functools.partial(OneCycleLR, max_lr=0.1, total_steps=5)
    with pytest.raises(UserError, match="OneCycleLR needs an end"):
        trainer(max_epochs=-1, max_time="00:00:00:01").fit(task(scheduler=schedule), data())
