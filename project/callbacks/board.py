"""What callbacks share to write to TensorBoard: the writer, class names, a picture."""

import io
from typing import TYPE_CHECKING, Any, cast

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def tensorboard_writer(trainer: L.Trainer) -> "SummaryWriter | None":
    """The run's TensorBoard writer; None on other ranks and where no TensorBoard logger is set."""
    if not trainer.is_global_zero:
        return None
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            return cast("SummaryWriter", logger.experiment)
    return None


def class_names(trainer: L.Trainer, num_classes: int) -> list[str]:
    """Names from ``trainer.datamodule.class_names``, or the class numbers where none fit."""
    names: Any = getattr(getattr(trainer, "datamodule", None), "class_names", None)
    if names is None or len(names) != num_classes:
        return [str(index) for index in range(num_classes)]
    return [str(name) for name in names]


def add_picture(writer: "SummaryWriter", tag: str, picture: Image.Image, step: int) -> None:
    """Log ``picture``, ``L`` or ``RGB``, under ``tag``.

    Packed less tightly than by ``add_image``, which takes as long as a small network's validation.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    image = Summary.Image(
        width=picture.width,
        height=picture.height,
        colorspace=len(picture.getbands()),
        encoded_image_string=file.getvalue(),
    )
    value = Summary.Value(tag=tag, image=image)
    writer._get_file_writer().add_summary(Summary(value=[value]), step)  # type: ignore[no-untyped-call]
