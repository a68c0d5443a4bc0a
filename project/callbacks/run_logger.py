"""TensorBoard in the run's folder, and nothing but TensorBoard."""

from lightning.fabric.loggers.tensorboard import TensorBoardLogger as FabricTensorBoardLogger
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only


class TensorBoard(TensorBoardLogger):
    """TensorBoard's event file, straight in ``save_dir``.

    Lightning's own logger also leaves an ``hparams.yaml`` there, empty unless a module logs its
    hyperparameters, and a scalar ``hp_metric`` of -1.

    Args:
        save_dir: The run's folder.
        name: Folder below ``save_dir``.
        version: Folder below ``name``.
        max_queue: Number of pending entries that makes the writer write them to the disk.
        flush_secs: Seconds after which pending entries are written to the disk.
    """

    def __init__(
        self,
        save_dir: str = ".",
        name: str = "",
        version: str = "",
        max_queue: int = 10,
        flush_secs: int = 30,
    ) -> None:
        super().__init__(
            save_dir,
            name,
            version,
            default_hp_metric=False,
            max_queue=max_queue,
            flush_secs=flush_secs,
        )

    @rank_zero_only
    def save(self) -> None:
        """Write what is pending to the disk."""
        # Past Lightning's save(), which is the one that writes hparams.yaml.
        FabricTensorBoardLogger.save(self)
