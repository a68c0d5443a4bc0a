"""The classics of torch and Lightning as users provoke them, and what is said of them."""

import io
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from project.cli import main
from project.explain import add_explanation, explain

LINES = 5


def box(provoke: Callable[[], Any]) -> str:
    """Return what is said about the error that a function raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        provoke()
    known = explain(caught.value)
    assert known is not None, f"{caught.type.__name__}: {caught.value}"
    lines = known.splitlines()
    assert len(lines) in (4, LINES)
    assert lines[-2].startswith("│ Usual cause: ")
    assert lines[-1].startswith("└ Next: ")
    return known


class Net(nn.Module):
    def __init__(self, first: nn.Module, *rest: nn.Module):
        super().__init__()
        self.body = nn.Sequential(first, *rest)

    def forward(self, x):
        return self.body(x)


images = torch.zeros(2, 1, 8, 8)
labels = torch.tensor([0, 1])


def no_channels():
    return Net(nn.Conv2d(1, 4, 3))(torch.zeros(2, 8))


def reuse():
    weight = torch.ones(3, requires_grad=True)
    loss = (weight**2).sum()
    loss.backward()
    loss.backward()


def in_place():
    weight = torch.ones(3, requires_grad=True)
    hidden = weight.sigmoid()
    out = hidden.sum()
    hidden += 1
    out.backward()


def leaf():
    weight = torch.ones(3, requires_grad=True)
    weight += 1


def nothing_to_train():
    net = Net(nn.Linear(8, 2))
    F.mse_loss(net(torch.zeros(2, 8)).detach(), torch.zeros(2, 2)).backward()


def load(state: dict[str, Any], classes: int = 2):
    Net(nn.Linear(8, classes)).load_state_dict(state)


def prefixed(prefix: str) -> dict[str, Any]:
    return {prefix + name: value for name, value in Net(nn.Linear(8, 2)).state_dict().items()}


def unsafe():
    file = io.BytesIO()
    torch.save(Net(nn.Linear(8, 2)), file)
    file.seek(0)
    torch.load(file, weights_only=True)


class Sizes(Dataset[Any]):
    def __init__(self, transform: Any = None):
        self.transform = transform

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(3, 4 + index, 4)


def spawn():
    loader = DataLoader(Sizes(lambda x: x), num_workers=1, multiprocessing_context="spawn")
    next(iter(loader))


CASES = [
    (lambda: torch.zeros(2, device="meta") + torch.zeros(2), "cpu and meta"),
    (lambda: Net(nn.Linear(8, 2, device="meta"))(torch.zeros(2, 8)), "body.0 (Linear)"),
    (lambda: torch.zeros(1, requires_grad=True).numpy(), "detach().cpu()"),
    (lambda: Net(nn.Linear(8, 2))(torch.zeros(2, 8).double()), "float64"),
    (lambda: Net(nn.Linear(8, 2))(torch.zeros(2, 8, dtype=torch.uint8)), "float32"),
    (lambda: Net(nn.Conv2d(1, 4, 3))(images.double()), "body.0 (Conv2d)"),
    (lambda: Net(nn.Conv2d(1, 4, 3))(images.byte()), "different types"),
    (lambda: F.cross_entropy(torch.zeros(2, 3), labels.int()), "torch.int32"),
    (lambda: F.cross_entropy(torch.zeros(2, 3), labels.float()), "torch.float32"),
    (lambda: Net(nn.Flatten(), nn.Linear(100, 2))(images), "takes 100 features, its input has 64"),
    (lambda: torch.zeros(2, 3) @ torch.zeros(4, 5), "3 is not 4"),
    (lambda: Net(nn.Conv2d(3, 4, 3))(images), "takes 3 channels, its input (2, 1, 8, 8) has 1"),
    (no_channels, "shape (2, 8)"),
    (lambda: Net(nn.Conv2d(1, 4, 9))(images), "a kernel of 9 x 9 over 8 x 8"),
    (lambda: Net(nn.BatchNorm2d(3))(images), "is for 3 channels, its input has 1"),
    (lambda: Net(nn.BatchNorm1d(8))(torch.zeros(1, 8)), "drop_last"),
    (lambda: F.cross_entropy(torch.zeros(4, 3), labels), "4 predictions and 2 targets"),
    (lambda: F.binary_cross_entropy_with_logits(torch.zeros(2, 1), torch.zeros(2)), "(2, 1)"),
    (lambda: F.cross_entropy(torch.zeros(2, 5, 3), torch.zeros(2, 5).long()), "got (2, 5)"),
    (lambda: F.cross_entropy(torch.zeros(2, 3), labels[:, None]), "of shape (2, 1)"),
    (lambda: torch.zeros(2, 3) + torch.zeros(2, 4), "3 and 4 in dimension 1"),
    (lambda: images.view(-1, 100), "128 numbers cannot be arranged as [-1, 100]"),
    (lambda: next(iter(DataLoader(Sizes(), batch_size=4))), "shape (3, 4, 4), sample 1 has (3, 5"),
    (lambda: F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3])), "3 classes, 0 to 2"),
    (lambda: F.nll_loss(torch.zeros(2, 3), torch.tensor([0, -1])), "A label is -1"),
    (lambda: Net(nn.Embedding(5, 2))(torch.tensor([7])), "5 rows, 0 to 4; an index is 7"),
    (nothing_to_train, "nothing to differentiate"),
    (lambda: torch.ones(3, requires_grad=True).mul(2).backward(), "loss.mean()"),
    (reuse, "an earlier step"),
    (in_place, "of shape (3), made by Sigmoid"),
    (leaf, "torch.no_grad()"),
    (lambda: load(prefixed("module.")), "DataParallel or DDP"),
    (lambda: load(prefixed("_orig_mod.")), "torch.compile"),
    (lambda: load(prefixed(""), classes=5), "body.0.weight is (2, 8) in the file and (5, 8)"),
    (lambda: load({"head.weight": labels}), "2 names are not in the file (e.g. body.0.weight)"),
    (unsafe, f"The file holds {__name__}.Net"),
    (lambda: torch.save({"f": lambda x: x}, io.BytesIO()), "save_hyperparameters"),
]


@pytest.mark.parametrize(("provoke", "says"), CASES)
def test_a_classic_is_explained_with_what_is_involved(provoke, says) -> None:
    assert says in box(provoke)


@pytest.mark.filterwarnings("ignore:Got pickle error")  # torch's own hint at it
def test_what_cannot_be_sent_to_a_worker_is_explained() -> None:
    assert "--data.num_workers 0" in box(spawn)


def raising(kind: type[Exception], text: str) -> Callable[[], None]:
    def provoke() -> None:
        raise kind(text)

    return provoke


# What cannot be provoked on one CPU, as torch's and Lightning's sources word it.
TEXTS = [
    (
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
        "cpu! (when checking argument for argument mat1 in method wrapper_CUDA_addmm)",
        "cuda:0 and cpu",
    ),
    (
        "Expected all tensors to be on the same device, but got mat1 is on cpu, different from "
        "other tensors on cuda:0 (when checking argument in method wrapper_CUDA_addmm)",
        "cpu and cuda:0",
    ),
    (
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the "
        "same or input should be a MKLDNN tensor and weight is a dense tensor",
        "register_buffer",
    ),
    (
        "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously "
        "reported at some other API call, so the stacktrace below might be incorrect.",
        "--trainer.accelerator cpu",
    ),
    (
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800123 "
        "milliseconds before timing out.",
        "waited for 1800 s in ALLREDUCE",
    ),
    (
        "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
        "1800000ms for recv operation to complete",
        "waited for 1800 s",
    ),
    (
        "It looks like your LightningModule has parameters that were not used in producing the "
        "loss returned by training_step. If this is intentional, you must enable the detection of "
        "unused parameters in DDP, either by setting the string value "
        "`strategy='ddp_find_unused_parameters_true'` or by setting the flag in the strategy.",
        "ddp_find_unused_parameters_true",
    ),
]


@pytest.mark.parametrize(("text", "says"), TEXTS)
def test_a_classic_of_several_devices_is_explained(text, says) -> None:
    assert says in box(raising(RuntimeError, text))


def test_the_line_of_the_users_code_is_named() -> None:
    line = Net.forward.__code__.co_firstlineno + 1
    assert f"{Path(__file__).name}, line {line}\n" in box(no_channels)


class Uneven(Sizes):
    def __getitem__(self, index):
        return torch.zeros(3, 8) @ torch.zeros(4, 8)


def test_an_error_in_a_worker_is_that_of_the_users_line() -> None:
    batches = iter(DataLoader(Uneven(), num_workers=1))
    said = box(lambda: next(batches))
    batches._shutdown_workers()  # at once, without waiting for the garbage collector
    assert "8 is not 4" in said
    assert f"line {Uneven.__getitem__.__code__.co_firstlineno + 1}" in said


UNKNOWN = [
    RuntimeError("something else about a device: cuda:0"),
    RuntimeError("my own check: Target 3 is out of bounds"),
    ValueError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
    IndexError("list index out of range"),
    IndexError("index out of range in self"),
    KeyError("element 0 of tensors does not require grad"),
    AttributeError("Can't get local object 'f.<locals>.g'"),
    pickle.PicklingError("Can't pickle <function <lambda> at 0x7f>: not found"),
    TypeError("cannot pickle 'module' object"),
    pickle.UnpicklingError("Weights only load failed. … Unsupported operand 105"),
    RuntimeError("Please call `iter(combined_loader)` first."),
    TimeoutError("timed out waiting for the license server"),
]


@pytest.mark.parametrize("error", UNKNOWN)
def test_another_error_is_not_explained(error) -> None:
    with pytest.raises(type(error)) as caught:
        raise error
    assert explain(caught.value) is None


def test_the_explanation_stands_below_the_traceback_and_only_once() -> None:
    with pytest.raises(RuntimeError) as caught:
        Net(nn.Linear(8, 2))(torch.zeros(2, 9))
    add_explanation(caught.value)
    add_explanation(caught.value)
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1].startswith("└ Next: ")
    assert sum(line.startswith("┌") for line in lines) == 1


def test_a_note_that_cannot_be_made_does_not_hide_the_error(monkeypatch) -> None:
    monkeypatch.setattr("project.explain._scene", lambda error: 1 / 0)
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)")
    add_explanation(error)
    assert not hasattr(error, "__notes__")


MINE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes: int):
        super().__init__()
        self.head = nn.Linear(64, num_classes)

    def forward(self, images):
        images = images.double() if self.training else images
        return self.head(images.flatten(1))
"""


@pytest.fixture
def mine(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (workdir / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(workdir)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return ["fit", "--model.net", "mine.Net"]


@pytest.mark.slow
def test_fit_adds_what_a_classic_means(mine: list[str]) -> None:
    with pytest.raises(RuntimeError) as caught:
        main(mine)
    [note] = caught.value.__notes__
    assert "net.head (Linear) have different types" in note
    assert "mine.py, line 11" in note


@pytest.mark.slow
def test_a_command_shows_the_traceback_and_then_the_box(mine: list[str]) -> None:
    command = [sys.executable, "-m", "project", *mine]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    before, after = ended.stderr.split("┌ What this means")
    assert "Traceback" in before
    assert len(after.splitlines()) <= LINES


class Task(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.spare = nn.Linear(4, 2), nn.Linear(4, 2)

    def training_step(self, batch, batch_idx):
        return self.net(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trained(loader: DataLoader[Any], strategy: str = "auto") -> Callable[[], None]:
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=strategy,
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return lambda: trainer.fit(Task(), loader)


def test_an_array_of_float64_in_a_training_is_explained(workdir: Path) -> None:
    data = DataLoader(torch.from_numpy(np.zeros((2, 4))), num_workers=0)
    assert "net (Linear)" in box(trained(data))


@pytest.mark.filterwarnings("ignore:Got pickle error", "ignore:Consider setting")
def test_what_lightnings_clean_up_hides_is_explained(workdir: Path) -> None:
    data = DataLoader(Sizes(lambda x: x), num_workers=1, multiprocessing_context="spawn")
    assert "--data.num_workers 0" in box(trained(data))


def test_parameters_that_ddp_waits_for_are_named(workdir: Path) -> None:
    try:
        said = box(trained(DataLoader(torch.zeros(4, 4)), "ddp"))
    finally:  # else its threads may outlive the interpreter
        torch.distributed.destroy_process_group()
    assert "no gradient: spare.weight, spare.bias;" in said
