"""Compiling happens once: not again after a validation, nor for the smaller last batch."""

import lightning as L
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.utils.data import DataLoader, TensorDataset

from project.models import MLP
from project.tasks import ClassificationTask


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_once_for_every_epoch_validation_and_size_of_batch(tmp_path, monkeypatch):
    counter, seen = CompileCounter(), []
    net = MLP(in_channels=1, image_size=8, num_classes=10, hidden_dims=[8])
    compile_net = net.compile
    monkeypatch.setattr(net, "compile", lambda: compile_net(backend=counter))
    task = ClassificationTask(net, num_classes=10, compile=True)

    class Watch(L.Callback):
        def on_train_epoch_end(self, *_):
            seen.append(counter.frame_count)

    data = TensorDataset(torch.randn(40, 1, 8, 8), torch.randint(10, (40,)))
    trainer = L.Trainer(
        max_epochs=4, logger=False, default_root_dir=tmp_path, callbacks=[Watch()],
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    torch._dynamo.reset()
    # Batches of 16, 16 and 8; 40 in validation.
    trainer.fit(task, DataLoader(data, 16, shuffle=True), DataLoader(data, 40))
    first, *later = seen
    assert first > 0
    # Once for training and once for evaluation, whatever the size of the batch.
    assert later == [later[0]] * 3
    assert later[-1] == 2
