import random

import lightning as L
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from project.callbacks import Autosave, ExactResume, TensorBoard
from project.callbacks.rank_state import rng_state, set_rng_state
from project.callbacks.resumable import save_resumable


class Resumable(DataLoader):
    """Goes on behind the batch at which it was saved, if it is still the same epoch."""

    saved = (-1, 0)

    def __iter__(self):
        epoch, done = self.saved
        start = done if epoch == self.trainer.current_epoch else 0
        yield from list(super().__iter__())[start:]

    def state_dict(self):
        progress = self.trainer.fit_loop.epoch_loop.batch_progress.current
        return {"epoch": self.trainer.current_epoch, "batches": progress.processed}

    def load_state_dict(self, state):
        self.saved = state["epoch"], state["batches"]


@pytest.fixture
def data(data, monkeypatch):
    def loader():
        # Its own generator: starting to iterate draws a number, here once more after a resume.
        made = Resumable(plain().dataset, batch_size=8, generator=torch.Generator())
        made.trainer = data.trainer
        return made

    plain = data.train_dataloader
    monkeypatch.setattr(data, "train_dataloader", loader)
    return data


@pytest.fixture
def module(make_module):
    class Noisy(make_module):
        """Draws from all generators and logs in all the ways there are."""

        def __init__(self):
            super().__init__(dropout=0.3)
            self.mean = MeanMetric()

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            noise = random.random() + np.random.rand()
            self.mean.update(loss.detach())
            self.log("train/metric", self.mean, on_step=False, on_epoch=True)
            self.log("train/sum", loss, on_step=False, on_epoch=True, reduce_fx="sum")
            self.log("train/most", loss, on_step=True, on_epoch=True, reduce_fx="max")
            return loss * (1 + 0.1 * noise)

    return Noisy


class PowerCutError(Exception):
    pass


class Save(L.Callback):
    def __init__(self, file, hook, step):
        self.file, self.hook, self.step = file, hook, step

    def on_train_batch_end(self, trainer, *args):
        self.save(trainer, "on_train_batch_end")

    def on_validation_batch_end(self, trainer, *args):
        self.save(trainer, "on_validation_batch_end")

    def save(self, trainer, hook):
        if (hook, trainer.global_step) == (self.hook, self.step) and not trainer.sanity_checking:
            save_resumable(trainer, self.file)
            raise PowerCutError


def board(folder):
    return TensorBoard(str(folder))


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = events.Tags()["scalars"]
    return sorted((tag, e.step, e.value) for tag in tags for e in events.Scalars(tag))


def run(make_trainer, module, data, folder, *callbacks, ckpt=None, **options):
    random.seed(0)
    np.random.seed(0)
    L.seed_everything(0, verbose=False)
    own = [ExactResume(), *callbacks]
    trainer = make_trainer(*own, logger=board(folder), **options)
    net = module()
    trainer.fit(net, datamodule=data, ckpt_path=ckpt, weights_only=True)
    return net


@pytest.mark.parametrize(
    "sizes", [{"val_check_interval": 2}, pytest.param({}, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("hook", "step"),
    [
        ("on_train_batch_end", 3),
        pytest.param("on_train_batch_end", 4, marks=pytest.mark.slow),
        pytest.param("on_train_batch_end", 6, marks=pytest.mark.slow),
        ("on_validation_batch_end", 4),
    ],
)
def test_all_that_is_logged_per_epoch_survives(
    tmp_path, make_trainer, module, data, hook, step, sizes
):
    whole = run(make_trainer, module, data, tmp_path / "whole", **sizes)
    file, folder = tmp_path / "a.ckpt", tmp_path / "cut"
    save = Save(file, hook, step)
    with pytest.raises(PowerCutError):
        run(make_trainer, module, data, folder, save, **sizes)
    resumed = run(make_trainer, module, data, folder, ckpt=file, **sizes)
    assert scalars(folder) == scalars(tmp_path / "whole")
    assert torch.equal(resumed.net[2].weight, whole.net[2].weight)


def test_generators_go_on_where_they_were(tmp_path):
    cpu = torch.device("cpu")
    torch.save(rng_state(cpu), tmp_path / "rng.pt")
    drawn = [random.random(), random.gauss(0, 1), np.random.randn(), float(torch.rand(()))]
    set_rng_state(torch.load(tmp_path / "rng.pt", weights_only=True), cpu)
    assert drawn == [random.random(), random.gauss(0, 1), np.random.randn(), float(torch.rand(()))]


def test_no_point_is_written_twice(tmp_path):
    logger = board(tmp_path)
    for value in (1.0, 1.0, 2.0):
        logger.log_metrics({"epoch": value}, step=3)
    logger.finalize("success")
    assert scalars(tmp_path) == [("epoch", 3, 1.0), ("epoch", 3, 2.0)]


def test_minutes_are_counted(tmp_path, make_trainer, make_module, data, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("project.callbacks.autosave.time.monotonic", lambda: clock[0])
    saved = []

    class Tick(L.Callback):
        def on_train_batch_start(self, trainer, *args):
            clock[0] += 60

        def on_save_checkpoint(self, trainer, *args):
            saved.append(trainer.global_step)

    save = Autosave(str(tmp_path), every_n_minutes=3)
    make_trainer(Tick(), save, enable_checkpointing=True, max_epochs=3).fit(make_module(), data)
    assert saved == [3, 6, 9, 12]


@pytest.mark.parametrize("wrong", [{"every_n_steps": 0}, {"every_n_minutes": -1.0}])
def test_interval_must_be_positive(tmp_path, wrong):
    with pytest.raises(ValueError, match="must be positive or null"):
        Autosave(str(tmp_path), **wrong)
