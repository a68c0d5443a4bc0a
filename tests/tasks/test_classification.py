import functools
import math

import lightning as L
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_nets import MLP, ConvNet
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from project.mistakes import UserError
from project.tasks import ClassificationTask


def test_val_loss_is_a_mean_over_samples(trainer, task, data):
    model, split = task(), data(samples=19)
    metrics = trainer().validate(model, split, verbose=False)[0]
    expected = F.cross_entropy(model(split.images), split.labels).item()
    assert metrics["val/loss"] == pytest.approx(expected, rel=1e-6)
    correct = (model(split.images).argmax(dim=1) == split.labels).double().mean().item()
    assert metrics["val/acc"] == pytest.approx(correct)
    assert set(metrics) == {"val/loss", "val/acc", "val/f1"}


def test_every_promised_scalar_is_logged(trainer, task, data):
    run = trainer()
    run.fit(task(), data())
    assert set(run.callback_metrics) == set(ClassificationTask.logged)


def test_confusion_matrix_and_per_class_stand_after_the_test(trainer, task, data):
    model = task()
    with pytest.raises(RuntimeError, match="needs an evaluation"):
        model.per_class()
    trainer().test(model, data(samples=19), verbose=False)
    assert model.confusion_matrix.shape == (3, 3)
    assert model.confusion_matrix.sum() == 19
    assert model.per_class().support.sum() == 19


def test_absent_class_is_left_out_of_f1(trainer, task, data):
    split = data()
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    nn.init.zeros_(net[1].weight)
    net[1].bias.data = torch.tensor([1.0, 0.0, 0.0, 0.0])
    split.labels = split.labels.clamp(max=1)
    split.num_classes = 4
    metrics = trainer().test(task(net, 4), split, verbose=False)[0]
    share = (split.labels == 0).double().mean().item()
    assert metrics["test/f1"] == pytest.approx((2 * share / (1 + share) + 0) / 2)


def test_smoothing_and_class_weights_act_in_training_only(trainer, task, data):
    losses = []
    for options in ({}, {"label_smoothing": 0.3, "class_weights": [1.0, 2.0, 3.0]}):
        run = trainer(limit_train_batches=1)
        frozen = functools.partial(torch.optim.SGD, lr=0.0)
        run.fit(task(optimizer=frozen, scheduler=None, **options), data())
        losses.append({k: run.callback_metrics[k].item() for k in ("train/loss", "val/loss")})
    assert losses[0]["val/loss"] == losses[1]["val/loss"]
    assert losses[0]["train/loss"] != pytest.approx(losses[1]["train/loss"], rel=1e-3)


def test_train_loss_is_the_mean_since_the_last_logging(trainer, task, data):
    model, split = task(optimizer=functools.partial(torch.optim.SGD, lr=0.0)), data()
    run = trainer(log_every_n_steps=3)
    seen = []

    class Keep(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if "train/loss" in trainer.callback_metrics:
                seen.append(trainer.callback_metrics["train/loss"].item())

    run.callbacks.append(Keep())
    run.fit(model, split)
    each = [
        F.cross_entropy(model(x), y).item()
        for x, y in zip(split.images.split(8), split.labels.split(8), strict=True)
    ]
    windows = [np.mean(each[:3]), np.mean(each[3:6])]
    assert list(dict.fromkeys(seen)) == pytest.approx(windows, rel=1e-6)
    # The rest of the epoch, 2 of 8 steps.
    rest = run.callback_metrics["train/loss"].item()
    assert rest == pytest.approx(np.mean(each[6:]), rel=1e-6)


def test_train_window_survives_a_checkpoint_in_the_middle(trainer, task, data, tmp_path):
    class Save(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 4:
                trainer.save_checkpoint(tmp_path / "middle.ckpt")

    whole = trainer(log_every_n_steps=8, callbacks=[Save()])
    whole.fit(task(), data())
    resumed = trainer(log_every_n_steps=8)
    resumed.fit(task(), data(), ckpt_path=tmp_path / "middle.ckpt")
    for name in ("train/loss", "train/acc"):
        assert resumed.callback_metrics[name] == whole.callback_metrics[name], name


def test_a_fit_that_was_interrupted_leaves_nothing_to_the_next(trainer, task, data):
    class Interrupt(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 4:
                raise ZeroDivisionError

    frozen = functools.partial(torch.optim.SGD, lr=0.0)
    model, fresh, losses = task(optimizer=frozen), task(optimizer=frozen), []
    fresh.load_state_dict(model.state_dict())
    with pytest.raises(ZeroDivisionError):
        trainer(log_every_n_steps=8, callbacks=[Interrupt()]).fit(model, data())
    for each in (model, fresh):
        run = trainer(log_every_n_steps=8)
        run.fit(each, data())
        losses.append(run.callback_metrics["train/loss"].item())
    assert losses[0] == losses[1]


def test_predict_gives_ordinary_probs_in_bf16(trainer, task, data):
    probs = torch.cat(trainer(precision="bf16-mixed").predict(task(), data()))
    assert probs.dtype == torch.float32
    # A softmax in bfloat16 would be off by 4e-3.
    torch.testing.assert_close(probs.sum(dim=1), torch.ones(64), rtol=0, atol=1e-6)


def test_plain_python_checkpoint_loads_safely_with_the_same_logits(trainer, task, data, tmp_path):
    optimizer = functools.partial(torch.optim.SGD, lr=0.1)
    model, run = task(optimizer=optimizer, label_smoothing=0.1), trainer()
    run.fit(model, data())
    run.save_checkpoint(tmp_path / "a.ckpt")
    state = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert state["hyper_parameters"]["label_smoothing"] == 0.1
    assert "net" not in state["hyper_parameters"]
    net = MLP(1, 4, 3, hidden_dims=[8], dropout=0.0)
    loaded = ClassificationTask.load_from_checkpoint(tmp_path / "a.ckpt", net=net)
    assert torch.equal(loaded(data().images), model(data().images))
    assert loaded.label_smoothing == 0.1


def test_numpy_arguments_do_not_spoil_a_checkpoint(trainer, task, data, tmp_path):
    run = trainer()
    run.fit(task(num_classes=np.int64(3)), data())
    run.save_checkpoint(tmp_path / "a.ckpt")
    torch.load(tmp_path / "a.ckpt", weights_only=True)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"num_classes": 1}, "num_classes"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"class_names": ["a"]}, "class_names"),
        ({"class_weights": [1.0]}, "class_weights"),
        ({"class_weights": [1.0, -1.0, 1.0]}, "class_weights"),
        ({"scale_lr": 0}, "scale_lr"),
        ({"scheduler_monitor": "val/los"}, "scheduler_monitor"),
    ],
)
def test_wrong_arguments_are_refused(task, options, word):
    with pytest.raises(ValueError, match=word):
        task(**options)


def test_too_large_a_label_is_named(trainer, task, data):
    split = data()
    split.labels = split.labels + 5
    with pytest.raises(UserError, match=r"label is [67], but num_classes is 3"):
        trainer().validate(task(), split)


def test_plain_loaders_are_enough(trainer, task, data):
    split = data()
    triples = TensorDataset(split.images, split.labels, torch.arange(64))
    trainer().fit(task(), DataLoader(triples, batch_size=8), DataLoader(triples, batch_size=8))


def test_fit_learns(trainer, task, data):
    optimizer = functools.partial(torch.optim.AdamW, lr=0.03)
    run = trainer(max_epochs=15, check_val_every_n_epoch=15)
    run.fit(task(optimizer=optimizer), data())
    assert run.callback_metrics["val/loss"] < 0.5 * math.log(3)


def test_compile_happens_once_and_keeps_the_keys(trainer, task, data, monkeypatch):
    compilations, calls = [], []

    def backend(graph, inputs):
        compilations.append(graph)
        return graph.forward

    original = nn.Module.compile

    def compile_(self):
        calls.append(self)
        original(self, backend=backend)

    monkeypatch.setattr(nn.Module, "compile", compile_)
    model, plain = task(compile=True), task()
    split = data(samples=35)  # the last batch has 3 images
    run = trainer(max_epochs=2)
    run.fit(model, split)
    trainer().fit(model, split)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert len(calls) == 1
    before = len(compilations)
    assert before > 0
    for size in (2, 5, 6, 7):  # no size is compiled for itself
        model.net(torch.randn(size, 1, 4, 4))
    assert len(compilations) == before


def test_channels_last_changes_the_layout_not_the_numbers(trainer, task, data):
    torch.manual_seed(0)
    net, split = ConvNet(1, 3, hidden_dim=4), data(image_size=8)
    plain = trainer().validate(task(net), split, verbose=False)[0]
    model = task(net, channels_last=True)
    weight = net.features[2][0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    # Sums run in another order.
    assert trainer().validate(model, split, verbose=False)[0] == pytest.approx(plain, rel=1e-5)


def test_worst_classes_are_those_found_least_often(task):
    model = task(nn.Identity(), 4)
    # Of class 0 half are found, of 1 none, of 3 all; class 2 has no samples.
    model.confusion_matrix = torch.tensor([[2, 2, 0, 0], [3, 0, 0, 0], [0] * 4, [0, 0, 0, 5]])
    assert model.worst_classes(2) == [1, 0]
    assert model.worst_classes(10) == [1, 0, 3]
