import pickle
from pathlib import Path

import pytest
from torchvision.datasets import CIFAR10

from project.data import CIFAR10DataModule
from project.mistakes import UserError


def test_facts_are_known_before_any_file_is_read(facts):
    facts(CIFAR10DataModule, channels=3, size=32)


def test_cifar10_is_one_tensor_with_channels_first(cifar_dir: Path):
    data = CIFAR10DataModule(str(cifar_dir))
    data.prepare_data()
    data.setup()
    images, labels = data.load(train=True)
    assert images.shape == (100, 3, 32, 32)
    assert images.is_contiguous()
    file = pickle.loads((cifar_dir / "cifar-10-batches-py" / "data_batch_1").read_bytes())
    assert images[3].flatten().tolist() == file["data"][3].tolist()
    assert labels[:20].tolist() == file["labels"]
    assert len(data.train_dataloader()) == 1


@pytest.mark.usefixtures("offline")
def test_damaged_cifar10_is_refused(cifar_dir: Path, monkeypatch: pytest.MonkeyPatch):
    wrong = [[name, "0" * 32] for name, _ in CIFAR10.train_list]
    monkeypatch.setattr(CIFAR10, "train_list", wrong)
    with pytest.raises(UserError, match="damaged"):
        CIFAR10DataModule(str(cifar_dir), download=False).setup("fit")


@pytest.mark.parametrize("download", [True, False])
def test_missing_files_are_named_with_their_folder(says_what_is_missing, download: bool):
    says_what_is_missing(
        CIFAR10DataModule, download, "cifar-10-python.tar.gz", "cifar-10-batches-py"
    )
