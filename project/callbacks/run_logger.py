"""TensorBoard in the run's folder, every point of a curve once, whatever the run went through."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.fabric.loggers.tensorboard import TensorBoardLogger as FabricTensorBoardLogger
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

# Charts of the page CUSTOM SCALARS, each of the curves that match. It is the page for a first look:
# TIME SERIES opens the groups that come first in the alphabet.
CHARTS = {
    "Training": {
        "loss: train and val": ["Multiline", ["^(train|val)/loss$"]],
        "scores: val": ["Multiline", ["^val/(?!loss$|.*_best$)"]],
        "learning rate": ["Multiline", ["^lr-"]],
    }
}


class TensorBoard(TensorBoardLogger):
    """TensorBoard's event file, straight in ``save_dir``.

    Lightning's own logger also leaves an ``hparams.yaml`` there, empty unless a module logs its
    hyperparameters, and a scalar ``hp_metric`` of -1; it writes ``epoch`` up to three times a step,
    and after a resume it writes steps again that are already there.

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
        self._newest: dict[str, tuple[int | None, float]] = {}  # of every scalar
        self._kept: set[tuple[str, int]] = set()  # what is in the files of a run before its resume

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:  # noqa: ANN401
        """The writer; its file's name sorts after those of the run's earlier lives."""
        if self._experiment is None:
            earlier = _event_files(self.log_dir)
            writer = super().experiment  # opens a file
            now = _event_files(self.log_dir)
            if earlier and now[-1] == earlier[-1]:
                writer.close()
                for file in set(now) - set(earlier):
                    file.unlink()
                self._experiment = None
                _let_its_second_pass(earlier[-1])
            super().experiment.add_custom_scalars(CHARTS)
        return super().experiment

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close the file; what a closing test writes goes into another."""
        super().finalize(status)
        self._experiment = None  # a closed writer would open that file by itself, unseen

    @rank_zero_only
    def save(self) -> None:
        """Write what is pending to the disk."""
        # Past Lightning's save(), which is the one that writes hparams.yaml.
        FabricTensorBoardLogger.save(self)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write scalars, but none that is there already."""
        new: dict[str, float] = {}
        for name, value in metrics.items():
            if isinstance(value, dict):
                new[name] = value
            elif (name, step) not in self._kept and self._newest.get(name) != (step, float(value)):
                new[name], self._newest[name] = value, (step, float(value))
        super().log_metrics(new, step)

    def written(self) -> dict[str, Any]:
        """Say what a checkpoint saved now has to know to go on here, all of it on the disk."""
        self.save()
        files = _event_files(self.log_dir)
        return {
            "sizes": {file.name: file.stat().st_size for file in files},
            "newest": {name: list(point) for name, point in self._newest.items()},
        }

    def rewind(self, step: int, written: dict[str, Any]) -> None:
        """Go on after a resume: what a run had written from ``step`` on is no longer shown.

        Args:
            step: The first that comes again.
            written: What the checkpoint knows.
        """
        from tensorboard.compat.proto import event_pb2  # type: ignore[import-untyped]

        self._newest |= {name: (at, value) for name, (at, value) in written["newest"].items()}
        again: list[Any] = []
        for file in _event_files(self.log_dir):
            size = written["sizes"].get(file.name, 0)
            # Points before `step` that came after the checkpoint stay, and are not written again.
            for event in map(event_pb2.Event.FromString, _records(file, size)):
                if event.step < step:
                    self._kept |= {(value.tag, event.step) for value in event.summary.value}
            # Pictures of the last validation are ahead, where they count steps as `global_step`.
            if file.name == max(written["sizes"], default=""):
                records = _records(file, 0, size)
                again += [event_pb2.Event.FromString(r) for r in records if _step(r) >= step]
        writer = self.experiment._get_file_writer()
        begin = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        # As SummaryWriter(purge_step=...) does.
        writer.add_event(event_pb2.Event(step=step, session_log=begin))
        for event in again:
            if event.HasField("summary"):
                writer.add_event(event, walltime=event.wall_time)
        self.save()


def _let_its_second_pass(file: Path) -> None:
    """Wait until a new event file sorts after this one: names begin with the second."""
    stamp = file.name.split(".")[3]
    over = float(stamp) + 1 if stamp.isdigit() else 0.0
    end = min(over, time.time() + 2)  # another machine's clock may be ahead
    time.sleep(max(0.0, end - time.time()))


def _event_files(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("events.out.tfevents.*"))


def _records(file: Path, start: int, end: int | None = None) -> Iterator[bytes]:
    """Yield the records between two bytes of an event file, up to one that is not whole."""
    with file.open("rb") as events:
        events.seek(start)
        # A record is its length (8 bytes), that number's checksum (4), the data, its checksum (4).
        while (end is None or events.tell() < end) and len(head := events.read(12)) == 12:
            length = int.from_bytes(head[:8], "little")
            data = events.read(length + 4)
            if len(data) < length + 4:
                return
            yield data[:length]


def _step(record: bytes) -> int:
    """The step of an event, without decoding its picture: time (9 bytes), then tag 2, a varint."""
    if record[9:10] != b"\x10":  # 0 is left out
        return 0
    step = shift = 0
    for byte in record[10:20]:
        step |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return step
