"""A run that is stopped and resumed sees the samples that the uninterrupted run sees."""

from pathlib import Path

import lightning as L
import pytest
import torch
from torch import nn

from project.data.images import ImageDataModule

# 12 batches an epoch.
BATCH, EPOCHS = 107, 3


class Net(L.LightningModule):
    def __init__(self, fail_at: int | None = None):
        super().__init__()
        self.net = nn.Linear(64, 10)
        self.fail_at = fail_at
        self.steps: list[tuple[int, tuple[int, ...], float]] = []

    def training_step(self, batch, batch_idx):
        images, labels, index = batch
        if self.fail_at == self.global_step:
            raise RuntimeError("as if the power went")
        self.steps.append((self.current_epoch, tuple(index.tolist()), float(images.sum())))
        return nn.functional.cross_entropy(self.net(images.flatten(1)), labels)

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", torch.tensor(1.0))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


class Save(L.Callback):
    """Saves in one hook, when ``step`` optimizer steps are done."""

    def __init__(self, file: Path, hook: str, step: int):
        self.file, self.hook, self.step = file, hook, step

    def on_train_batch_end(self, trainer, *args):
        self.save(trainer, "on_train_batch_end")

    def on_validation_end(self, trainer, *args):
        self.save(trainer, "on_validation_end")

    def on_train_epoch_end(self, trainer, *args):
        self.save(trainer, "on_train_epoch_end")

    def on_exception(self, trainer, *args):
        self.save(trainer, "on_exception")

    def save(self, trainer: L.Trainer, hook: str):
        if hook == self.hook and trainer.global_step == self.step and not self.file.exists():
            trainer.save_checkpoint(self.file)


def fit(net: Net, data: ImageDataModule, ckpt: Path | None = None, **settings) -> Net:
    trainer = L.Trainer(
        **{"max_epochs": EPOCHS, **settings},
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(net, datamodule=data, ckpt_path=ckpt, weights_only=True)
    return net


@pytest.fixture
def digits(small):
    def make(workers: int = 0) -> ImageDataModule:
        return small(batch_size=BATCH, shift=1, num_workers=workers)

    return make


@pytest.mark.parametrize(
    ("hook", "step", "settings"),
    [
        ("on_train_batch_end", 17, {}),  # in the middle of epoch 1
        ("on_train_batch_end", 17, {"workers": 2}),
        ("on_train_batch_end", 24, {}),  # after the last batch of epoch 1
        pytest.param("on_train_batch_end", 24, {"workers": 2}, marks=pytest.mark.slow),
        ("on_validation_end", 24, {}),  # ModelCheckpoint's usual moment
        ("on_train_epoch_end", 24, {}),
        ("on_validation_end", 16, {"val_check_interval": 4}),  # validation within an epoch
        ("on_train_batch_end", 12, {"limit_train_batches": 8}),
        ("on_validation_end", 16, {"limit_train_batches": 8}),  # the epoch is 8 of 12 batches
        ("on_train_batch_end", 17, {"max_epochs": -1, "max_steps": 36}),
        ("on_train_batch_end", 4, {"accumulate_grad_batches": 3, "max_epochs": 2}),
    ],
)
def test_resumed_run_goes_on_exactly(tmp_path: Path, hook, step, settings, digits):
    settings = dict(settings)
    workers = settings.pop("workers", 0)
    whole = Net()
    file = tmp_path / "stop.ckpt"
    save = Save(file, hook, step)
    fit(whole, digits(workers), callbacks=[save], **settings)
    assert file.exists()
    done = step * settings.get("accumulate_grad_batches", 1)

    resumed = fit(Net(), digits(workers), ckpt=file, **settings)
    assert whole.steps[done:] == resumed.steps
    assert resumed.steps


def test_interrupted_step_is_done_again(tmp_path: Path, digits):
    whole = fit(Net(), digits())
    file = tmp_path / "stop.ckpt"
    with pytest.raises(RuntimeError, match="power"):
        fit(Net(fail_at=17), digits(), callbacks=[Save(file, "on_exception", 17)])
    resumed = fit(Net(), digits(), ckpt=file)
    assert resumed.steps == whole.steps[17:]


def test_run_can_be_resumed_twice(tmp_path: Path, digits):
    whole = fit(Net(), digits())
    first, second = tmp_path / "1.ckpt", tmp_path / "2.ckpt"
    fit(Net(), digits(), callbacks=[Save(first, "on_train_batch_end", 14)])
    fit(Net(), digits(), ckpt=first, callbacks=[Save(second, "on_train_batch_end", 19)])
    assert fit(Net(), digits(), ckpt=second).steps == whole.steps[19:]


def test_seed_of_the_run_sets_the_order(monkeypatch: pytest.MonkeyPatch, digits):
    zero = fit(Net(), digits(), max_epochs=1)
    monkeypatch.setenv("PL_GLOBAL_SEED", "1")
    assert fit(Net(), digits(), max_epochs=1).steps != zero.steps
