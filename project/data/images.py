"""Images that fit into memory: one uint8 tensor, gathered by the batch, float on the device."""

import warnings
from typing import Any, ClassVar

import lightning as L
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from project.data.augment import random_erase, random_flip, random_shift, sample_keys
from project.data.hashing import run_seed
from project.data.loader import EpochLoader, EpochSampler, EvalSampler, FixedSampler
from project.data.split import stratified_split
from project.mistakes import UserError

# images (B, C, H, W), labels int64 (B,), index int64 (B,)
Batch = tuple[Tensor, Tensor, Tensor]


class ImageDataset(Dataset[Batch]):
    """A split: the rows of one image tensor that belong to it.

    A batch is gathered at once instead of stacked from single images.

    Args:
        images: uint8 ``(N, C, H, W)``, shared by the splits.
        labels: int64 ``(N,)``.
        rows: Rows of this split, int64 ``(M,)``; by default all.
    """

    def __init__(self, images: Tensor, labels: Tensor, rows: Tensor | None = None) -> None:
        self.images, self.labels = images, labels
        self.rows = torch.arange(len(images)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Batch:
        images, labels, positions = self.__getitems__([index])
        return images[0], labels[0], positions[0]

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return the batch of ``indices``; -1, a sample that is not there, gets label -100."""
        index = torch.tensor(indices)
        rows = self.rows[index.clamp(min=0)]
        labels = self.labels[rows].where(index >= 0, -100)
        return self.images.index_select(0, rows), labels, index


def as_is(batch: Batch) -> Batch:
    """Collate nothing: ``__getitems__`` has made the batch."""
    return batch


def resize(images: Tensor, size: int) -> Tensor:
    """Resize uint8 images ``(N, C, H, W)`` to ``(N, C, size, size)``, bilinear, antialiased."""
    if images.shape[-2:] == (size, size):
        return images
    # In float, for the same values on every device; in pieces, for float needs four times the room.
    pieces = [
        F.interpolate(piece.float(), (size, size), mode="bilinear", antialias=True)
        .round_()
        .clamp_(0, 255)
        .to(torch.uint8)
        for piece in torch.split(images, 1024)
    ]
    return torch.cat(pieces)


class ImageDataModule(L.LightningDataModule):
    """Base of the data sets that are held in memory: a subclass has the constants and ``load``.

    Order and augmentation are pure functions of the run's seed, the epoch and the sample, the same
    for any number of workers and processes and after a resume. The official test set is never
    trained on.

    Args:
        batch_size: Training images per process. The global batch is ``batch_size`` times the number
            of processes (devices times nodes); the learning rate is not scaled with it.
        eval_batch_size: Images per process and batch when nothing is trained. By default 1000,
            fewer if they have more pixels than 1000 images of 32 x 32, never fewer than
            ``batch_size``: without gradients there is room for more, and small batches cost up to
            16 times the time.
        num_workers: Worker processes. 0, because the images are in memory: gathering a batch takes
            less than handing it over (an epoch of MNIST 0.04 s, from 2 workers 2 s; 2 CPU cores).
        pin_memory: Put batches into page-locked memory, from which CUDA copies faster. By default
            if the run is on CUDA.
        prefetch_factor: Batches that each worker makes in advance; by default 2. Needs workers.
        persistent_workers: Keep workers from epoch to epoch; by default if there are any.
        drop_last: Leave out the training images that do not fill the last batch, others in every
            epoch. If they do not fill a single one, they are all trained on in one short batch.
        val_fraction: Share of the training images, in (0, 1), that is held out for validation, the
            same share of every class.
        data_seed: Which images are held out depends on this seed only, not on the seed of the run.
        image_size: Height and width to which the images are resized once, when they are loaded; by
            default they stay as they are.

    Raises:
        ValueError: If an argument is outside its range.
    """

    class_names: ClassVar[list[str]]
    in_channels: ClassVar[int]
    native_size: ClassVar[int]
    # Per channel, of the training images as fractions in [0, 1].
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]

    # What is done to training images only; a subclass sets what suits its images.
    shift: int = 0
    flip: bool = False
    erase: int = 0

    train_set: ImageDataset | None = None
    val_set: ImageDataset | None = None
    test_set: ImageDataset | None = None

    def __init__(
        self,
        batch_size: int = 64,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
        pin_memory: bool | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        drop_last: bool = True,
        val_fraction: float = 0.1,
        data_seed: int = 0,
        image_size: int | None = None,
    ) -> None:
        super().__init__()
        # Not to the logger: a setting of the same name in the model would be an error.
        self.save_hyperparameters(logger=False)
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        self.pin_memory, self.persistent_workers = pin_memory, persistent_workers
        self.drop_last, self.val_fraction, self.data_seed = drop_last, val_fraction, data_seed
        self.image_size = self.native_size if image_size is None else image_size
        self.num_classes = len(self.class_names)
        self._mean = torch.tensor(self.mean).mul(255)[:, None, None]  # (C, 1, 1)
        self._std = torch.tensor(self.std).mul(255)[:, None, None]
        self._check_settings()

    def _check_settings(self) -> None:
        check_at_least(1, batch_size=self.batch_size, eval_batch_size=self.eval_batch_size)
        check_at_least(1, image_size=self.image_size, prefetch_factor=self.prefetch_factor)
        check_at_least(0, num_workers=self.num_workers)
        if self.num_workers == 0 and (self.prefetch_factor is not None or self.persistent_workers):
            raise ValueError("prefetch_factor and persistent_workers need num_workers > 0")
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"val_fraction must be in (0, 1), got {self.val_fraction}")

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read the official training or test set.

        Args:
            train: Which of the two.

        Returns:
            Images uint8 ``(N, C, H, W)`` from 0 to 255 and labels int64 ``(N,)``.
        """
        raise NotImplementedError

    def setup(self, stage: str | None = None) -> None:
        """Read what ``stage`` needs, once."""
        if stage in (None, "fit", "validate") and self.train_set is None:
            images, labels = self.load(train=True)
            kept, held_out = stratified_split(labels, self.val_fraction, self.data_seed)
            if len(held_out) == 0:
                raise UserError(
                    f"{len(labels)} training images, {self.num_classes} classes: no class has two, "
                    "one to train and one to validate on.\nAdd images."
                )
            images = resize(images, self.image_size)
            self.train_set = ImageDataset(images, labels, kept)
            self.val_set = ImageDataset(images, labels, held_out)
        if stage in (None, "test", "predict") and self.test_set is None:
            images, labels = self.load(train=False)
            self.test_set = ImageDataset(resize(images, self.image_size), labels)

    def train_dataloader(self) -> EpochLoader[Batch]:
        """Return the training images, in a new order every epoch."""
        assert self.train_set is not None
        overfit = getattr(self.trainer, "overfit_batches", 0) > 0
        sampler = (FixedSampler if overfit else EpochSampler)(
            len(self.train_set), self.batch_size, run_seed(), self.drop_last
        )
        return EpochLoader(
            self.train_set,
            sampler,
            progress=None if self.trainer is None else self._batches_trained,
            batch_size=self.batch_size,
            **self._options(),
        )

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the images held out of the training set."""
        return self._eval_dataloader(self.val_set)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return the official test set."""
        return self._eval_dataloader(self.test_set)

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Return the official test set."""
        return self._eval_dataloader(self.test_set)

    def preprocess(self, images: Tensor) -> Tensor:
        """Turn images into what a network takes, in training, prediction and serving alike.

        Args:
            images: uint8 ``(B, C, H, W)`` from 0 to 255, any height and width, on any device.

        Returns:
            float32 ``(B, C, image_size, image_size)``, mean 0 and deviation 1 over the training
            set.
        """
        if images.device != self._mean.device:
            self._mean, self._std = self._mean.to(images.device), self._std.to(images.device)
        return resize(images, self.image_size).float().sub_(self._mean).div_(self._std)

    def augment(self, images: Tensor, index: Tensor, epoch: int) -> Tensor:
        """Change training images at random, by (seed, epoch, index) only.

        Args:
            images: uint8 ``(B, C, H, W)``.
            index: Position of each image in the training split, ``(B,)``.
            epoch: Epoch, from 0.

        Returns:
            uint8 ``(B, C, H, W)``.
        """
        if not (self.shift or self.flip or self.erase):
            return images
        keys = sample_keys(run_seed(), epoch, index)
        if self.shift:
            images = random_shift(images, keys, self.shift)
        if self.flip:
            images = random_flip(images, keys)
        if self.erase:
            images = random_erase(images, keys, self.erase, self._mean.round())
        return images

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Augment in training only, and normalise, on the device: uint8 is a quarter to copy."""
        images, labels, index = batch
        if self.trainer is not None and self.trainer.training:
            images = self.augment(images, index, self.trainer.current_epoch)
        images = self.preprocess(images)
        if self.trainer is not None:
            # Half or double precision throughout (bf16-true, 64-true); nothing otherwise.
            images = self.trainer.precision_plugin.convert_input(images)
        return images, labels, index

    def _batches_trained(self) -> int:
        assert self.trainer is not None
        # `processed` counts on before the hooks that save, and not if a step is interrupted.
        current = self.trainer.fit_loop.epoch_loop.batch_progress.current
        return int(current.processed)  # type: ignore[attr-defined]

    def _eval_dataloader(self, dataset: ImageDataset | None) -> DataLoader[Batch]:
        assert dataset is not None
        room = min(1000, 1000 * 32 * 32 // self.image_size**2)
        return DataLoader(
            dataset,
            batch_size=self.eval_batch_size or max(self.batch_size, room),
            sampler=EvalSampler(len(dataset)),
            **self._options(),
        )

    def _options(self) -> dict[str, Any]:
        """Return what all loaders share."""
        # Lightning asks for workers wherever there are none; here they would only cost time.
        warnings.filterwarnings("ignore", ".*does not have many workers")
        workers = self.num_workers > 0
        keep = self.persistent_workers
        return {
            "collate_fn": as_is,
            "num_workers": self.num_workers,
            "pin_memory": self._on_cuda() if self.pin_memory is None else self.pin_memory,
            "prefetch_factor": self.prefetch_factor,
            "persistent_workers": workers if keep is None else keep,
            # A loader draws from the global generator when it starts, which would shift dropout's
            # numbers after a resume; this one is its own.
            "generator": torch.Generator(),
        }

    def _on_cuda(self) -> bool:
        if self.trainer is None:
            return torch.cuda.is_available()
        return self.trainer.strategy.root_device.type == "cuda"


def check_at_least(least: int, **values: int | None) -> None:
    """Raise ValueError, by name, for a setting that is smaller."""
    for name, value in values.items():
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
