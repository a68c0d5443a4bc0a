import subprocess
import sys

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging
from torch import nn

from project.callbacks import AveragingGuard, FiniteGuard, FreezeBackbone
from project.mistakes import UserError

BACKBONE, HEAD = "net.0", "net.2"


@pytest.fixture
def module(make_module):
    """A network of two layers with BatchNorm between them."""
    found = make_module(lr=0.01)
    found.net = nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8)), nn.ReLU(), nn.Linear(8, 3)
    )
    found.num_classes = 3
    return found


class Watch(Callback):
    """State of the network after every training batch, and what was in training mode in it."""

    def __init__(self):
        self.states, self.norms = [], []

    def on_train_batch_end(self, trainer, module, *_):
        self.states.append({k: v.detach().clone() for k, v in module.state_dict().items()})
        self.norms.append(module.net[0][2].training)


def moved(watch, part, first, last):
    """Whether parameters or statistics of a part changed between two batches."""
    one, other = watch.states[first], watch.states[last]
    return [k for k in one if k.startswith(part) and not torch.equal(one[k], other[k])]


# 32 images in batches of 8: 4 batches an epoch.
def test_only_the_head_is_trained_until_the_epoch_comes(make_trainer, module, data):
    watch = Watch()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    make_trainer(watch, FreezeBackbone(2), max_epochs=3, logger=False).fit(module, data)
    watch.states.insert(0, before)
    assert moved(watch, BACKBONE, 0, 8) == []
    assert len(moved(watch, HEAD, 0, 8)) == 2
    # Also the statistics of BatchNorm.
    assert len(moved(watch, BACKBONE, 8, 12)) == 7


def test_batch_norm_stays_in_evaluation_mode_whatever_comes_between(make_trainer, module, data):
    watch = Watch()

    class Rude(Callback):
        def on_train_batch_start(self, trainer, module, *_):
            module.train()

    options = {"max_epochs": 3, "val_check_interval": 2, "logger": False}
    make_trainer(Rude(), FreezeBackbone(2), watch, **options).fit(module, data)
    assert watch.norms == [False] * 8 + [True] * 4


def test_the_optimizer_has_all_parameters_from_the_start(make_trainer, module, data):
    seen = []

    class Count(Callback):
        def on_train_start(self, trainer, module):
            [group] = trainer.optimizers[0].param_groups
            seen.append(len(group["params"]))

    make_trainer(Count(), FreezeBackbone(), max_epochs=1, logger=False).fit(module, data)
    assert seen == [6]


def test_it_says_what_is_frozen_and_when_that_ends(make_trainer, module, data, capsys):
    make_trainer(FreezeBackbone(1), max_epochs=2, logger=False).fit(module, data)
    said = capsys.readouterr().out
    assert "Frozen until epoch 1: 536 parameters, all but 2\n" in said
    assert "Epoch 1: the backbone is trained too from here\n" in said


def test_it_says_that_a_training_ends_before_the_thaw(make_trainer, module, data, capsys):
    make_trainer(FreezeBackbone(2), max_epochs=2, logger=False).fit(module, data)
    assert "all but 2; to the end, as epoch 1 is the last\n" in capsys.readouterr().out


def test_the_network_is_left_as_it_was_given(make_trainer, module, data):
    module.net[0][1].bias.requires_grad_(False)
    make_trainer(FreezeBackbone(5), logger=False).fit(module, data)
    assert [name for name, p in module.named_parameters() if not p.requires_grad] == [
        "net.0.1.bias"
    ]
    assert module.net[0][2].training


def test_averages_clipping_and_the_guard_live_with_it(make_trainer, module, data):
    watch = Watch()
    callbacks = (
        *(EMAWeightAveraging(decay=0.9), AveragingGuard(), FreezeBackbone(2)),
        *(watch, FiniteGuard()),
    )
    run = make_trainer(*callbacks, max_epochs=3, logger=False, gradient_clip_val=0.1)
    run.fit(module, data)
    assert moved(watch, BACKBONE, 0, 7) == []
    assert len(moved(watch, BACKBONE, 7, 11)) == 7


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_what_is_frozen_follows_from_the_epoch_also_after_a_resume(
    tmp_path, make_trainer, module, data, epochs
):
    start = {k: v.clone() for k, v in module.state_dict().items()}
    make_trainer(FreezeBackbone(2), max_epochs=4, logger=False).fit(module, data)
    whole = {k: v.clone() for k, v in module.state_dict().items()}
    module.load_state_dict(start)
    first = make_trainer(FreezeBackbone(2), max_epochs=epochs, logger=False)
    first.fit(module, data)
    first.save_checkpoint(tmp_path / "a.ckpt")
    module.load_state_dict(start)
    again = make_trainer(FreezeBackbone(2), max_epochs=4, logger=False)
    again.fit(module, data, ckpt_path=tmp_path / "a.ckpt")
    assert all(torch.equal(whole[k], v) for k, v in module.state_dict().items())


def test_a_head_that_the_user_names_is_taken(make_trainer, module, data, capsys):
    module.head_name = "0"
    make_trainer(FreezeBackbone(1), max_epochs=1, logger=False).fit(module, data)
    assert "27 parameters, all but 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"num_classes": 7}, "No layer of Sequential has 7 outputs.*\n.*outer parts are: 0, 1, 2"),
        ({"head_name": "net.2"}, "--model.head: Sequential has no part 'net.2'"),
        ({"head_name": "1"}, "no part '1' with parameters"),
    ],
)
def test_an_unknown_head_is_refused(make_trainer, module, data, attributes, message):
    for name, value in attributes.items():
        setattr(module, name, value)
    with pytest.raises(UserError, match=message):
        make_trainer(FreezeBackbone(), logger=False).fit(module, data)


def test_a_network_that_is_all_head_is_refused(make_trainer, module, data):
    module.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(UserError, match="nothing to train before its head, 1"):
        make_trainer(FreezeBackbone(), logger=False).fit(module, data)


def test_epoch_zero_is_refused():
    with pytest.raises(ValueError, match="until_epoch must be at least 1"):
        FreezeBackbone(0)


# Without BatchNorm, whose statistics would depend on the number of processes.
TWO = """
import sys
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from project.callbacks import FreezeBackbone

class Module(L.LightningModule):
    num_classes = 3
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

class Watch(L.Callback):
    def __init__(self):
        self.seen = []
    def on_train_batch_end(self, trainer, module, *_):
        own = torch.cat([p.detach().flatten() for p in module.parameters()])
        every = trainer.strategy.all_gather(own).view(-1, len(own))
        assert all(torch.equal(other, own) for other in every), trainer.global_step
        self.seen.append(own)

def main(processes):
    L.seed_everything(1, verbose=False)
    images = torch.randn(32, 6)
    data = TensorDataset(images, images[:, :3].argmax(dim=1))
    shard = DistributedSampler(data, processes, 0, shuffle=False) if processes > 1 else None
    if shard is not None:
        import os
        shard.rank = int(os.environ.get("LOCAL_RANK", 0))
    watch = Watch()
    trainer = L.Trainer(accelerator="cpu", devices=processes, max_epochs=4, logger=False,
        strategy="ddp" if processes > 1 else "auto", enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        accumulate_grad_batches=int(sys.argv[2]), callbacks=[FreezeBackbone(2), watch])
    trainer.fit(Module(), DataLoader(data, batch_size=8 // processes, sampler=shard))
    if trainer.is_global_zero:
        torch.save(torch.stack(watch.seen), f"{processes}.pt")

try:
    main(int(sys.argv[1]))
finally:  # else its threads may outlive the interpreter
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", ["1", "3"])
def test_two_processes_train_as_one_before_and_after_the_thaw(workdir, accumulate):
    (workdir / "two.py").write_text(TWO)
    for processes in ("1", "2"):
        line = [sys.executable, "two.py", processes, accumulate]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("Epoch 2: the backbone is trained too") == 1
    one, two = (torch.load(f"{processes}.pt") for processes in (1, 2))
    assert torch.equal(two[0, :56], two[7, :56])  # 56 parameters of the backbone
    assert not torch.equal(two[7, :56], two[-1, :56])
    # Sums run in another order.
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
