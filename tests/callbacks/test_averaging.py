import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from project.callbacks import AveragingGuard, ExactResume

# The command leaves these out as well, see `quiet.py`.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*using the WeightAveraging callback, but loading",
    "ignore:.*callbacks used to create the checkpoint need to be provided",
    "ignore:Checkpoint directory .* exists and is not empty",
)


def fit(make_trainer, module, data, tmp_path, *callbacks, ckpt=None, **options):
    torch.manual_seed(0)
    keep = ModelCheckpoint(tmp_path / "ckpt", "{epoch}", "val/loss", save_top_k=-1)
    keep._save_on_train_epoch_end = False
    own = [*callbacks, AveragingGuard(), ExactResume(), keep]
    trainer = make_trainer(*own, enable_checkpointing=True, **options)
    trainer.fit(module, datamodule=data, ckpt_path=ckpt, weights_only=True)
    return trainer, keep


def test_average_that_never_begins_changes_nothing(tmp_path, make_trainer, make_module, data):
    late = EMAWeightAveraging(update_starting_at_step=1000)
    plain, averaged = make_module(), make_module()
    averaged.load_state_dict(plain.state_dict())
    one, _ = fit(make_trainer, plain, data, tmp_path / "plain")
    other, keep = fit(make_trainer, averaged, data, tmp_path / "late", late)
    assert one.callback_metrics["val/loss"] == other.callback_metrics["val/loss"]
    assert torch.equal(plain.net[2].weight, averaged.net[2].weight)
    last = torch.load(tmp_path / "late" / "ckpt" / "epoch=1.ckpt", weights_only=True)
    assert torch.equal(last["state_dict"]["net.2.weight"], plain.net[2].weight)
    assert keep.best_model_path


def test_test_after_training_takes_the_average(tmp_path, make_trainer, make_module, data):
    trainer, keep = fit(
        make_trainer, module := make_module(), data, tmp_path, EMAWeightAveraging(decay=0.9)
    )
    best = keep.best_model_path
    [during] = trainer.test(module, data, ckpt_path=best, weights_only=True, verbose=False)
    [fresh] = make_trainer(logger=False).test(
        make_module(), data, ckpt_path=best, weights_only=True, verbose=False
    )
    assert during == fresh


def test_finished_average_is_continued_truly(tmp_path, make_trainer, make_module, data):
    first = make_module()
    start = {key: value.clone() for key, value in first.state_dict().items()}
    whole = make_module()
    whole.load_state_dict(start)
    ema = {"decay": 0.9}
    fit(make_trainer, whole, data, tmp_path / "4", EMAWeightAveraging(**ema), max_epochs=4)
    fit(make_trainer, first, data, tmp_path / "2", EMAWeightAveraging(**ema), max_epochs=2)
    file, again = tmp_path / "2" / "ckpt" / "epoch=1.ckpt", make_module()
    more = {"max_epochs": 4, "ckpt": file}
    fit(make_trainer, again, data, tmp_path / "2", EMAWeightAveraging(**ema), **more)
    assert torch.equal(again.net[2].weight, whole.net[2].weight)
