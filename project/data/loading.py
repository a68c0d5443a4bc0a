"""From a data set of images to normalised batches on the device: what all data modules share."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from project import cores
from project.data.augment.augmentation import Augmentation
from project.data.augment.augmentation import check_at_least as check_at_least
from project.data.hashing import run_seed
from project.data.loader import (
    BalancedSampler,
    EpochLoader,
    EpochSampler,
    EvalSampler,
    FixedSampler,
)
from project.data.padding import blank
from project.data.reading.image_file import MAX_PIXELS
from project.data.reading.reader import ImageReader, ImageSource
from project.mistakes import UserError

# images (B, C, H, W), labels int64 (B,) or, mixed, probabilities (B, num_classes), index int64 (B,)
Batch = tuple[Tensor, Tensor, Tensor]


class Split(Dataset[Batch]):
    """A split of a data set, from which whole batches of uint8 images are taken."""

    # Whether training asks for ``(epoch, index)`` pairs, to change images while they are decoded.
    # The random resized crop is then left to the data set, and all the rest of the augmentation too
    # where images keep their sizes (``image_size`` None).
    wants_epoch = False
    labels: Tensor  # of a whole data set, (N,)
    rows: Tensor  # of them, those of this split, (M,)

    @property
    def targets(self) -> Tensor:
        """Labels of the split, int64 ``(M,)``."""
        return self.labels[self.rows].long()

    def __len__(self) -> int:
        """Return the number of samples."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Batch:
        """Return one sample, without the dimension of the batch."""
        images, labels, positions = self.__getitems__([index])
        return images[0], labels[0], positions[0]

    def __getitems__(self, indices: list[Any]) -> Batch:
        """Return the batch of ``indices``; -1, a sample that is not there, gets label -100."""
        raise NotImplementedError


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


class ImageLoading(Augmentation):
    """Loaders, augmentation and normalisation of a data module with images.

    A subclass sets ``image_size`` and ``num_classes`` and calls ``normalise_with`` in its
    constructor or in ``setup``, and makes the splits in ``setup``. Order and augmentation are pure
    functions of the run's seed, the epoch and the sample, the same for any number of workers and
    processes and after a resume.

    Args:
        batch_size: Training images per process. The global batch is ``batch_size`` times the number
            of processes (devices times nodes); the learning rate is not scaled with it.
        eval_batch_size: Images per process and batch when nothing is trained. By default 1000,
            fewer if they have more pixels than 1000 images of 32 x 32, never fewer than
            ``batch_size``: without gradients there is room for more, and small batches cost up to
            16 times the time.
        num_workers: Worker processes that prepare batches; 0 prepares them in the main process.
        pin_memory: Put batches into page-locked memory, from which CUDA copies faster. By default
            if the run is on CUDA.
        prefetch_factor: Batches that each worker makes in advance; by default 2, and 4 where there
            is one worker. Needs workers.
        persistent_workers: Keep workers from epoch to epoch; by default if there are any.
        drop_last: Leave out the training images that do not fill the last batch, others in every
            epoch. If they do not fill a single one, they are all trained on in one short batch.
        balanced: Draw training images so that every class is equally likely, with replacement: rare
            classes come more than once an epoch.
        kwargs: See :class:`Augmentation`.

    Raises:
        ValueError: If an argument is outside its range.
    """

    image_size: int | None
    crop_fraction = 1.0
    max_pixels = MAX_PIXELS

    train_set: Split | None = None
    val_set: Split | None = None
    test_set: Split | None = None

    _index: Tensor | None = None  # of the batch on its way to the device, on the CPU

    def __init__(
        self,
        batch_size: int = 64,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
        pin_memory: bool | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        drop_last: bool = True,
        balanced: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        self.pin_memory, self.persistent_workers = pin_memory, persistent_workers
        self.drop_last, self.balanced = drop_last, balanced
        check_at_least(1, batch_size=batch_size, eval_batch_size=eval_batch_size)
        check_at_least(1, prefetch_factor=prefetch_factor)
        check_at_least(0, num_workers=num_workers)
        if num_workers == 0 and (prefetch_factor is not None or persistent_workers):
            raise ValueError("prefetch_factor and persistent_workers need num_workers > 0")

    def normalise_with(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Set what is subtracted and divided by, per channel, of images as fractions in [0, 1]."""
        self._mean = torch.tensor(mean).mul(255)[:, None, None]  # (C, 1, 1)
        self._std = torch.tensor(std).mul(255)[:, None, None]
        self.fill_with(mean)

    @property
    def class_counts(self) -> list[int]:
        """Number of training images of every class; known after ``setup``."""
        assert self.train_set is not None
        labels = self.train_set.targets
        counts: list[int] = labels[labels >= 0].bincount(minlength=self.num_classes).tolist()
        return counts

    def train_dataloader(self) -> EpochLoader[Batch]:
        """Return the training images, in a new order every epoch."""
        assert self.train_set is not None
        if self.mixes and self.image_size is None:
            raise UserError(
                "mixup and cutmix need images of one size, but image_size is null.\n"
                "Set --data.image_size, or leave them out."
            )
        overfit = self._overfits()
        if overfit and self.mixes:
            rank_zero_only(print)("overfit_batches: no mixup or cutmix, whose labels nobody learns")
        how = self.batch_size, run_seed(), self.drop_last
        if self.balanced and not overfit:
            sampler: EpochSampler = BalancedSampler(self.train_set.targets, *how)
        else:
            sampler = (FixedSampler if overfit else EpochSampler)(len(self.train_set), *how)
        sampler.with_epoch = self.train_set.wants_epoch
        return EpochLoader(
            self.train_set,
            sampler,
            progress=None if self.trainer is None else self._batches_trained,
            batch_size=self.batch_size,
            **self._options(),
        )

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the validation images."""
        return self._eval_dataloader(self.val_set)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return the test images."""
        return self._eval_dataloader(self.test_set)

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Return the test images."""
        return self._eval_dataloader(self.test_set)

    def reader(self) -> dict[str, Any]:
        """Say what reads an image as this data module does, so that it can be made elsewhere."""
        names = ("in_channels", "image_size", "crop_fraction", "max_pixels")
        path = f"{ImageReader.__module__}.{ImageReader.__name__}"
        return {"class_path": path, "init_args": {name: getattr(self, name) for name in names}}

    def read(self, source: ImageSource) -> Tensor:
        """Read one image for ``preprocess``, uint8 ``(C, H, W)``; see :class:`ImageReader`.

        Raises:
            BadImage: If it cannot be read as an image.
        """
        return ImageReader(**self.reader()["init_args"])(source)

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
        if self.image_size is not None:
            images = resize(images, self.image_size)
        return images.float().sub_(self._mean).div_(self._std)

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Keep the positions on the CPU: drawing there, nobody has to wait for the device."""
        self._index = batch[2]
        return batch

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:  # noqa: ANN401
        """Augment in training only, and normalise, on the device: uint8 is a quarter to copy."""
        images, labels, index, *mask = batch  # with a mask: augmented before they were padded
        trainer, drawn = self.trainer, index if self._index is None else self._index
        self._index = None
        training = trainer is not None and trainer.training
        epoch = trainer.current_epoch if trainer is not None and not self._overfits() else 0
        if training and not mask:
            crop = self.train_set is None or not self.train_set.wants_epoch
            images = self.augment(images, drawn, epoch, crop)
        images = self.preprocess(images)
        if mask:
            images = blank(images, *mask)
        if training and not self._overfits():
            images, labels = self.mix(images, labels, drawn, epoch)
        if trainer is not None:
            # Half or double precision throughout (bf16-true, 64-true); nothing otherwise.
            images = trainer.precision_plugin.convert_input(images)
        return images, labels, index, *mask

    def _overfits(self) -> bool:
        return getattr(self.trainer, "overfit_batches", 0) > 0

    def _batches_trained(self) -> int:
        assert self.trainer is not None
        # `processed` counts on before the hooks that save, and not if a step is interrupted.
        current = self.trainer.fit_loop.epoch_loop.batch_progress.current
        return int(current.processed)  # type: ignore[attr-defined]

    def _eval_dataloader(self, dataset: Split | None) -> DataLoader[Batch]:
        assert dataset is not None
        room = min(1000, 1000 * 32 * 32 // (self.image_size or 256) ** 2)
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
        keep, ahead = self.persistent_workers, self.prefetch_factor
        return {
            "collate_fn": as_is,
            "num_workers": self.num_workers,
            "pin_memory": self._on_cuda() if self.pin_memory is None else self.pin_memory,
            "prefetch_factor": ahead or (cores.prefetch(self.num_workers) if workers else None),
            "persistent_workers": workers if keep is None else keep,
            # A loader draws from the global generator when it starts, which would shift dropout's
            # numbers after a resume; this one is its own.
            "generator": torch.Generator(),
        }

    def _on_cuda(self) -> bool:
        if self.trainer is None:
            return torch.cuda.is_available()
        return self.trainer.strategy.root_device.type == "cuda"
