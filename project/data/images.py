"""Images that fit into memory: one uint8 tensor, gathered by the batch, float on the device."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from project.data.loading import Batch, ImageLoading, Split, check_at_least, resize
from project.data.split import stratified_split
from project.mistakes import UserError


class ImageDataset(Split):
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

    @property
    def rows_at_once(self) -> int:
        """Samples that are best gathered at once: as many as stay in a processor's cache.

        0 for a subclass with a way of its own, which may depend on the batch.
        """
        usual = type(self).__getitems__ is ImageDataset.__getitems__
        return max(1, 2**20 // self.images[0].nbytes) if usual else 0

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return the batch of ``indices``; -1, a sample that is not there, gets label -100."""
        index = torch.tensor(indices)
        rows = self.rows.index_select(0, index.clamp(min=0))
        labels = self.labels.index_select(0, rows).where(index >= 0, -100)
        if self.images.is_cuda:  # copied while it computes: nobody waits
            rows = rows.pin_memory().to(self.images.device, non_blocking=True)
        return self.images.index_select(0, rows), labels, index


class ImageDataModule(ImageLoading):
    """Base of the data sets that are held in memory: a subclass has the constants and ``load``.

    The official test set is never trained on.

    Args:
        val_fraction: Share of the training images, in (0, 1), that is held out for validation, the
            same share of every class.
        data_seed: Which images are held out depends on this seed only, not on the seed of the run.
        image_size: Height and width to which the images are resized once, when they are loaded; by
            default they stay as they are.
        on_device: Keep the images on the GPU, as uint8, so that no batch is copied to it; the
            batches are the same. By default where they take at most a quarter of its free memory.
        kwargs: See :class:`ImageLoading`. No ``num_workers`` are needed: gathering a batch from
            memory takes less than handing it over (an epoch of MNIST 0.04 s, from 2 workers 2 s;
            2 CPU cores).

    Raises:
        ValueError: If an argument is outside its range.
    """

    class_names: ClassVar[list[str]]
    in_channels: ClassVar[int]
    native_size: ClassVar[int]
    # Per channel, of the training images as fractions in [0, 1].
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]

    image_size: int
    train_set: ImageDataset | None = None
    val_set: ImageDataset | None = None
    test_set: ImageDataset | None = None

    def __init__(
        self,
        val_fraction: float = 0.1,
        data_seed: int = 0,
        image_size: int | None = None,
        on_device: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # Not to the logger: a setting of the same name in the model would be an error.
        self.save_hyperparameters(logger=False)
        check_at_least(1, image_size=image_size)
        if not 0 < val_fraction < 1:
            raise ValueError(f"val_fraction must be in (0, 1), got {val_fraction}")
        self.val_fraction, self.data_seed, self.on_device = val_fraction, data_seed, on_device
        self.image_size = self.native_size if image_size is None else image_size
        self.num_classes = len(self.class_names)
        self.normalise_with(self.mean, self.std)

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
            images = self._place(resize(images, self.image_size))
            self.train_set = ImageDataset(images, labels, kept)
            self.val_set = ImageDataset(images, labels, held_out)
        if stage in (None, "test", "predict") and self.test_set is None:
            images, labels = self.load(train=False)
            self.test_set = ImageDataset(self._place(resize(images, self.image_size)), labels)

    def _place(self, images: Tensor) -> Tensor:
        """Put them on the GPU, if there is one, with room; workers could not share them."""
        device = None if self.trainer is None else self.trainer.strategy.root_device
        if device is None or device.type != "cuda" or self.on_device is False or self.num_workers:
            return images
        free, _ = torch.cuda.mem_get_info(device)
        if self.on_device is None and images.nbytes > free // 4:
            return images
        self.pin_memory = False  # what is there already cannot be
        return images.to(device)
