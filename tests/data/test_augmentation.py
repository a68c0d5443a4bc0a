"""Augmentation as settings of a data module: when it is done, and that it survives a resume."""

from pathlib import Path

import lightning as L
import pytest
import torch
from torch import nn

from project.data.digits import DigitsDataModule
from project.data.images import ImageDataModule, ImageDataset
from project.data.mnist import MNISTDataModule
from project.mistakes import UserError

EVERYTHING = {
    "shift": 1,
    "flip": True,
    "vertical_flip": True,
    "rotation": 10.0,
    "random_resized_crop": (0.5, 1.0),
    "color_jitter": 0.3,
    "erase": 2,
    "rand_augment": 5,
    "mixup": 0.2,
    "cutmix": 1.0,
}
BATCH = 107  # 12 batches an epoch


class Net(L.LightningModule):
    """Keeps what it is trained on, and what it is validated on."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 10)
        self.steps, self.labels, self.valid = [], [], []

    def training_step(self, batch, batch_idx):
        images, labels, index = batch
        self.steps.append((self.current_epoch, index, images))
        self.labels.append(labels)
        return nn.functional.cross_entropy(self.net(images.flatten(1)), labels)

    def validation_step(self, batch, batch_idx):
        self.valid.append(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


class Stop(L.Callback):
    """Saves in the middle of epoch 1."""

    def __init__(self, file: Path):
        self.file = file

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 17 and not self.file.exists():
            trainer.save_checkpoint(self.file)


def same(one: Net, other: Net, done: int = 0) -> bool:
    return (
        len(other.steps) == len(one.steps) - done > 0
        and all(torch.equal(a, b) for a, b in zip(one.labels[done:], other.labels, strict=True))
        and all(
            a[0] == b[0] and torch.equal(a[1], b[1]) and torch.equal(a[2], b[2])
            for a, b in zip(one.steps[done:], other.steps, strict=True)
        )
    )


def test_every_setting_by_itself_changes_training_images(ready):
    plain = ready()
    images, labels, index = plain.train_set.__getitems__(list(range(40)))
    normal = plain.preprocess(images)
    for name, value in EVERYTHING.items():
        data = ready(**{name: value})
        assert data.augments
        assert data.mixes == (name in ("mixup", "cutmix"))
        changed = data.preprocess(data.augment(images, index, epoch=0))
        changed, soft = data.mix(changed, labels, index, epoch=0)
        assert not torch.equal(changed, normal), name
        assert soft.shape == ((40, 10) if data.mixes else (40,))
    assert not plain.augments
    assert plain.augment(images, index, 0) is images


def test_whatever_is_on_training_is_the_same_with_workers_and_after_a_resume(
    tmp_path, small, trainer
):
    def fit(ckpt: Path | None = None, workers: int = 0) -> Net:
        net = Net()
        data = small(batch_size=BATCH, num_workers=workers, **EVERYTHING)
        stop = Stop(tmp_path / "stop.ckpt")
        trainer(max_epochs=2, callbacks=[stop]).fit(
            net, datamodule=data, ckpt_path=ckpt, weights_only=True
        )
        return net

    whole = fit()
    assert whole.labels[0].shape == (BATCH, 10)
    assert not torch.equal(whole.labels[0], whole.labels[12])
    assert same(whole, fit(workers=2))
    assert same(whole, fit(tmp_path / "stop.ckpt"), done=17)


def test_processes_mix_their_batches_in_their_own_way(ready):
    data = ready(mixup=1.0)
    images, labels, index = data.train_set.__getitems__(list(range(40)))
    first, second = (
        data.mix(images[half].float(), labels[half], index[half], 0)[1].amax(1)
        for half in (slice(0, 20), slice(20, 40))
    )
    assert first.min() != second.min()


def test_nothing_is_done_in_validation_and_sanity_check(small, trainer):
    data, net = small(**EVERYTHING), Net()
    trainer(max_epochs=1, limit_train_batches=1, num_sanity_val_steps=1).fit(net, datamodule=data)
    for images, labels, index in net.valid:
        assert torch.equal(images, data.preprocess(data.val_set.__getitems__(index.tolist())[0]))
        assert labels.dtype == torch.int64
    assert len(net.valid) == 2


def test_overfitting_changes_every_image_in_one_way_and_mixes_none(small, trainer, capsys):
    net = Net()
    settings = {"max_epochs": 2, "overfit_batches": 2, "limit_val_batches": 0}
    trainer(**settings).fit(net, datamodule=small(**EVERYTHING))
    assert [epoch for epoch, *_ in net.steps] == [0, 0, 1, 1]
    for before, after in zip(net.steps[:2], net.steps[2:], strict=True):
        assert torch.equal(before[2], after[2])
    assert all(labels.dtype == torch.int64 for labels in net.labels)
    assert "overfit_batches: no mixup or cutmix" in capsys.readouterr().out


def test_one_image_is_augmented_as_it_is_in_a_batch(ready):
    data = ready(**EVERYTHING)
    images, _, index = data.train_set.__getitems__(list(range(20)))
    whole = data.augment(images, index, epoch=3)
    for row in range(20):
        assert torch.equal(data.augment(images[row, None], index[row, None], 3)[0], whole[row])


def test_crop_is_left_to_a_data_set_that_does_it_in_decoding(ready, trainer):
    class Decoding(ImageDataset):
        wants_epoch = True

        def __getitems__(self, pairs):
            return super().__getitems__([index for _, index in pairs])

    data, net = ready(random_resized_crop=(0.1, 0.2)), Net()
    whole = data.train_set
    data.train_set = Decoding(whole.images, whole.labels, whole.rows)
    trainer(max_epochs=1, limit_train_batches=1, limit_val_batches=0).fit(net, datamodule=data)
    _, index, images = net.steps[0]
    assert torch.equal(images, data.preprocess(whole.__getitems__(index.tolist())[0]))


def test_images_of_different_sizes_cannot_be_mixed(ready):
    data = ready(cutmix=1.0)
    data.image_size = None
    with pytest.raises(UserError, match="image_size is null"):
        data.train_dataloader()


@pytest.mark.parametrize("module", [DigitsDataModule, MNISTDataModule])
@pytest.mark.parametrize("name", ["flip", "vertical_flip"])
def test_digits_cannot_be_mirrored(module: type[ImageDataModule], name: str):
    with pytest.raises(ValueError, match=f"{name} is not for {module.__name__}"):
        module(**{name: True})
    module(**{name: False})


@pytest.mark.parametrize(
    "setting",
    [
        {"shift": -1},
        {"erase": -1},
        {"rotation": -1.0},
        {"rotation": 181.0},
        {"random_resized_crop": (0.0, 1.0)},
        {"random_resized_crop": (0.5, 0.4)},
        {"random_resized_crop": (0.5, 1.1)},
        {"color_jitter": -0.1},
        {"color_jitter": 1.1},
        {"rand_augment": -1},
        {"rand_augment": 31},
        {"mixup": -0.1},
        {"cutmix": float("nan")},
    ],
)
def test_setting_outside_its_range_is_refused_by_name(setting: dict[str, float]):
    with pytest.raises(ValueError, match=next(iter(setting))):
        DigitsDataModule(**setting)


def test_every_setting_is_in_the_help_of_a_data_module(capsys: pytest.CaptureFixture[str]):
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    parser.add_class_arguments(DigitsDataModule, "data")
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    told = capsys.readouterr().out
    assert all(f"--data.{name}" in told for name in EVERYTHING)
    assert "in pixels" in told
