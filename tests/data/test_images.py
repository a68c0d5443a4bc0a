import warnings
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from project.data import DigitsDataModule
from project.data.images import ImageDataModule, ImageDataset
from project.data.loader import EvalSampler
from project.data.loading import as_is, resize
from project.data.split import stratified_split
from project.mistakes import UserError


def rows(dataset: ImageDataset | None) -> set[int]:
    assert dataset is not None
    return set(dataset.rows.tolist())


def test_split_is_disjoint_and_covers_the_training_set(ready):
    data = ready()
    assert not rows(data.train_set) & rows(data.val_set)
    assert len(rows(data.train_set) | rows(data.val_set)) == 1457
    assert data.test_set is not None
    assert len(data.test_set) == 360


def test_split_is_stratified(ready):
    data = ready(val_fraction=0.2)
    assert data.val_set is not None
    labels = data.val_set.labels
    share = labels[data.val_set.rows].bincount() / labels.bincount()
    # Rounding to whole images: half an image of about 142.
    assert (share - 0.2).abs().max() < 0.5 / 130
    assert data.test_set is not None
    assert data.test_set.labels.bincount().tolist() == [36] * 10


def test_split_depends_on_data_seed_and_not_on_the_run(monkeypatch: pytest.MonkeyPatch, ready):
    first = rows(ready().val_set)
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    torch.manual_seed(7)
    assert rows(ready().val_set) == first
    assert rows(ready(data_seed=1).val_set) != first


def test_test_set_depends_on_no_seed(ready):
    one, two = ready(data_seed=0), ready(data_seed=1)
    assert one.test_set is not None
    assert two.test_set is not None
    assert torch.equal(one.test_set.images, two.test_set.images)


def test_split_validates_every_class_that_has_two_samples():
    kept, held_out = stratified_split(torch.tensor([0, 0, 1, 2, 2]), 0.1, 0)
    assert len(held_out) == 2
    assert len(kept) == 3


def test_batch_is_normalised_images_labels_index(ready):
    data = ready(batch_size=1310)
    batch = next(iter(data.train_dataloader()))
    assert batch[0].dtype == torch.uint8
    images, labels, index = data.on_after_batch_transfer(batch, 0)
    assert images.shape == (1310, 1, 8, 8)
    assert images.dtype == torch.float32
    assert labels.dtype == index.dtype == torch.int64
    # 90 % of the images that the constants come from.
    assert abs(float(images.mean())) < 0.01
    assert abs(float(images.std()) - 1) < 0.01


def test_item_is_the_row_of_the_batch(ready):
    dataset = ready().val_set
    assert dataset is not None
    image, label, index = dataset[3]
    batch = dataset.__getitems__([1, 3])
    assert torch.equal(image, batch[0][1])
    assert (label, index) == (batch[1][1], 3)


def test_absent_sample_has_label_minus_100(ready):
    dataset = ready().val_set
    assert dataset is not None
    _, labels, index = dataset.__getitems__([2, -1])
    assert labels[1] == -100
    assert labels[0] >= 0
    assert index.tolist() == [2, -1]


def test_a_way_of_ones_own_to_make_batches_is_asked_for_every_batch(small):
    class Own(ImageDataset):
        def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, ...]:
            return *super().__getitems__(indices), len(indices)

    data = small(batch_size=8)
    data.setup("fit")
    data.train_set = Own(data.train_set.images, data.train_set.labels)
    assert {batch[3] for batch in data.train_dataloader()} == {8}


def test_two_processes_evaluate_every_image_once_with_its_own_label(ready):
    dataset = ready().val_set
    assert dataset is not None
    assert len(dataset) % 2 == 1, "no padding would be tested"
    seen = {}
    sizes = []
    for rank in (0, 1):
        sampler = EvalSampler(len(dataset), rank, 2)
        for _, labels, index in DataLoader(
            dataset, batch_size=50, sampler=sampler, collate_fn=as_is
        ):
            sizes.append(len(index))
            seen |= dict(zip(index[labels != -100].tolist(), labels[labels != -100], strict=True))
    assert sum(sizes) == len(dataset) + 1
    assert len(seen) == len(dataset)
    assert all(label == dataset[i][1] for i, label in seen.items())


def test_training_images_change_with_the_epoch_and_not_in_validation(ready, recorder, trainer):
    data = ready(shift=1, batch_size=100)
    net = recorder()
    trainer(max_epochs=2, limit_train_batches=1, limit_val_batches=1).fit(net, datamodule=data)
    order, again = (torch.tensor(index) for index in net.indices)
    plain = [
        data.preprocess(data.train_set.__getitems__(index.tolist())[0])  # type: ignore[union-attr]
        for index in (order, again)
    ]
    assert not torch.equal(net.images[0], plain[0])
    expected = data.preprocess(
        data.augment(data.train_set.__getitems__(again.tolist())[0], again, epoch=1)  # type: ignore[union-attr]
    )
    assert torch.equal(net.images[1], expected)
    batch = next(iter(data.val_dataloader()))
    assert torch.equal(data.on_after_batch_transfer(batch, 0)[0], data.preprocess(batch[0]))


@pytest.mark.slow
def test_augmented_images_are_the_same_with_workers(small, recorder, trainer):
    def images(workers: int) -> list[torch.Tensor]:
        net = recorder()
        data = small(shift=1, batch_size=256, num_workers=workers)
        trainer(max_epochs=2).fit(net, datamodule=data)
        return net.images

    none, two = images(0), images(2)
    assert len(none) == 10
    assert all(torch.equal(a, b) for a, b in zip(none, two, strict=True))


def test_data_set_smaller_than_a_batch_is_trained_on(small, recorder, trainer):
    net = recorder()
    trainer(max_epochs=1).fit(net, datamodule=small(batch_size=4096))
    assert [len(index) for index in net.indices] == [1310]


def test_last_batch_is_dropped_unless_asked_for(ready):
    assert len(ready(batch_size=64).train_dataloader()) == 20
    assert len(ready(batch_size=64, drop_last=False).train_dataloader()) == 21


def test_one_image_of_every_class_is_refused_with_numbers(
    monkeypatch: pytest.MonkeyPatch, ready, small
):
    images, labels = torch.zeros(10, 1, 8, 8, dtype=torch.uint8), torch.arange(10)
    monkeypatch.setattr(small, "load", lambda self, train: (images, labels))
    with pytest.raises(UserError, match="10 training images, 10 classes"):
        ready()


def test_overfitting_repeats_the_same_batches_without_a_warning(small, recorder, trainer):
    net = recorder()
    trainer(max_epochs=2, overfit_batches=2).fit(net, datamodule=small())
    assert net.indices[:2] == net.indices[2:]
    # Not the first ones in the file, which may be of one class.
    assert net.indices[0] != sorted(net.indices[0])


def test_no_advice_to_start_workers(monkeypatch: pytest.MonkeyPatch, small, recorder, trainer):
    connector = "lightning.pytorch.trainer.connectors.data_connector"
    monkeypatch.setattr(f"{connector}.suggested_max_num_workers", lambda world: 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*LeafSpec")
        trainer(max_epochs=1, limit_train_batches=1).fit(recorder(), datamodule=small())


def test_prediction_keeps_the_order_and_the_dataset_of_the_test(small, recorder, trainer):
    class Predictor(recorder):
        def predict_step(self, batch, batch_idx):
            return batch[2]

    data = small(eval_batch_size=100)
    index = torch.cat(trainer().predict(Predictor(), datamodule=data))  # type: ignore[arg-type]
    assert index.tolist() == list(range(360))


def test_images_have_the_precision_of_the_weights(small, recorder, trainer):
    net = recorder()
    trainer(max_epochs=1, limit_train_batches=1, precision="bf16-true").fit(net, datamodule=small())
    assert net.images[0].dtype == torch.bfloat16


def test_starting_a_loader_draws_nothing_from_the_global_generator(ready):
    # Otherwise the numbers for dropout would be others after a resume.
    data = ready()
    before = torch.get_rng_state()
    for dataloader in (data.train_dataloader(), data.val_dataloader()):
        next(iter(dataloader))
    assert torch.equal(torch.get_rng_state(), before)


def test_image_size_resizes_what_is_loaded_and_what_is_served(ready, small):
    data = ready(image_size=12)
    assert data.test_set is not None
    assert data.test_set.images.shape == (360, 1, 12, 12)
    original = small().load(train=False)[0]
    assert torch.equal(data.preprocess(original), data.preprocess(data.test_set.images))


def test_resizing_is_antialiased():
    # A quarter of the columns is white; without antialiasing, samples fall between them: all black.
    stripes = (torch.arange(64) % 4 == 0).to(torch.uint8).mul(255).expand(1, 1, 64, 64)
    small = resize(stripes, 16)[..., 2:-2].float()
    # One level for rounding.
    assert abs(float(small.mean()) - 255 / 4) < 1


def test_evaluation_batches_are_large_but_bounded_in_pixels(ready):
    assert ready().val_dataloader().batch_size == 1000
    assert ready(image_size=64).val_dataloader().batch_size == 250
    assert ready(image_size=64, batch_size=512).val_dataloader().batch_size == 512
    assert ready(eval_batch_size=7).val_dataloader().batch_size == 7


@pytest.mark.parametrize(
    "setting",
    [
        {"batch_size": 0},
        {"eval_batch_size": 0},
        {"num_workers": -1},
        {"image_size": 0},
        {"val_fraction": 0.0},
        {"val_fraction": 1.0},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
    ],
)
def test_wrong_setting_is_refused_by_name(setting: dict[str, float], small):
    with pytest.raises(ValueError, match=next(iter(setting))):
        small(**setting)  # type: ignore[arg-type]


def test_settings_of_the_base_are_in_the_help(capsys: pytest.CaptureFixture[str]):
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    parser.add_class_arguments(ImageDataModule, "data")
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    told = capsys.readouterr().out
    for name in ("batch_size", "num_workers", "image_size", "val_fraction"):
        assert f"--data.{name}" in told
    assert "number of processes" in " ".join(told.split()).replace("- ", "")


def test_hyperparameters_are_plain_and_complete(small):
    hparams = dict(small(shift=1, batch_size=8).hparams)
    assert hparams["shift"] == 1
    assert hparams["batch_size"] == 8
    assert hparams["val_fraction"] == 0.1
    assert all(value is None or isinstance(value, int | float) for value in hparams.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of NVIDIA's")
def test_images_on_the_gpu_give_the_same_batches():
    batches = []
    for on_device in (True, False):
        data = DigitsDataModule(on_device=on_device)
        data.trainer = L.Trainer(accelerator="gpu", devices=1, logger=False)
        data.setup("fit")
        assert data.train_set.images.is_cuda == on_device
        batches.append([[part.cpu() for part in batch] for batch in data.train_dataloader()])
    for ours, theirs in zip(*batches, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_images_stay_in_main_memory_without_a_gpu_or_where_it_is_full(monkeypatch):
    data = DigitsDataModule()
    data.setup("fit")
    assert not data.train_set.images.is_cuda
    images = torch.zeros(100, dtype=torch.uint8)
    place = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cuda")))
    monkeypatch.setattr(data, "trainer", place)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (399, 1000))
    assert data._place(images) is images
