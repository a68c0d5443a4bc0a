"""Peak memory of a run over images in memory, against what has to be there.

Each is the peak resident memory of a process of its own (Linux and macOS), MNIST (or, where it is
not at hand, random images of its size) and the MLP:

- imports: what Lightning, torchvision, TensorBoard and the command import, and nothing else.
- needed: the same, with the training images and one batch's forward, backward and step.
- ours: `lightning fit --config configs/mnist.yaml`, two short epochs, with all a default run has.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]


def imports(_: str = "") -> None:
    import tensorboard.compat.proto.summary_pb2
    import torch.utils.tensorboard
    import torchvision.datasets

    import project.callbacks
    import project.data
    import project.tasks
    import project.verbs

    assert tensorboard
    assert torch.utils.tensorboard
    assert torchvision
    assert project.callbacks


def needed(data_dir: str) -> None:
    imports()
    import torch

    from project.data import MNISTDataModule
    from project.models import MLP
    from project.optim import parameter_groups

    data, net = MNISTDataModule(data_dir), MLP(1, 28, 10)
    data.setup("fit")
    optimizer = torch.optim.AdamW(parameter_groups(net), fused=True)
    images, labels, _ = next(iter(data.train_dataloader()))
    torch.nn.functional.cross_entropy(net(data.preprocess(images)), labels).backward()
    optimizer.step()
    with torch.no_grad():  # and a validation's larger batch
        net(data.preprocess(next(iter(data.val_dataloader()))[0]))


def ours(data_dir: str) -> None:
    from project.cli import main

    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "config": ROOT / "configs/mnist.yaml",
            "data.data_dir": data_dir,
            "trainer.max_epochs": 2,
            "trainer.limit_train_batches": 100,
            "trainer.limit_test_batches": 0,
            "trainer.default_root_dir": folder,
        }
        assert main(["fit", *(f"--{key}={value}" for key, value in settings.items())]) == 0


def random_mnist(data_dir: str) -> None:
    from train_step import random_mnist

    random_mnist(Path(data_dir))


MEASURED = {one.__name__: one for one in (imports, needed, ours, random_mnist)}


def peak(what: str, data_dir: Path) -> float:
    """MiB."""
    command = [sys.executable, __file__, "--data_dir", str(data_dir), "--measure", what]
    out = subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL)
    return int(out.split()[-1]) * (1 if sys.platform == "darwin" else 1024) / 2**20


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", type=Path, default=Path("data"), help="has MNIST/raw")
    parser.add_argument("--measure", choices=MEASURED, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        MEASURED[args.measure](str(args.data_dir))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return
    with tempfile.TemporaryDirectory() as folder:
        data_dir, data = args.data_dir.resolve(), "MNIST"
        if not (data_dir / "MNIST/raw").is_dir():
            data_dir, data = Path(folder), f"random images of MNIST's size: no {data_dir}/MNIST/raw"
            peak("random_mnist", data_dir)  # not here: a process inherits its parent's peak
        found = {what: peak(what, data_dir) for what in ("imports", "needed", "ours")}
    table = Table("what", "peak MiB", title=f"ours / needed {found['ours'] / found['needed']:.2f}")
    for what, size in found.items():
        table.add_row(what, f"{size:.0f}")
    Console().print(table, f"{data}; bar <= 1.2")


if __name__ == "__main__":
    main()
