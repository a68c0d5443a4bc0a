"""What to do when memory runs out: said with numbers that can be typed in."""

import mmap
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils.data import get_worker_info

from project.mistakes import Meaning

# Of the device: torch's own error, and what libraries say that allocate past torch.
_DEVICE = re.compile(
    r"(CUDA|HIP|XPU|MPS backend) (error: )?out of memory|CU(DNN|BLAS)_STATUS_ALLOC_FAILED"
)
_MACHINE = re.compile(r"DefaultCPUAllocator: |can't allocate memory|Cannot allocate memory")
_WORKER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal: (\w[\w ]*)|exited)"
)
_SHARED = re.compile(r"shared memory|\bshm\b|/torch_\d+_|Bus error")
_no_room = mmap.mmap(-1, 1)  # 1 if a worker found no shared memory; seen by all that are forked


class OutOfMemoryAdvice(Callback):
    """Say where memory ran out and what to try, in place of a traceback.

    Takes up errors of a device that is full, of a machine that is full, and of a data loader whose
    worker was killed or found no shared memory. The numbers it gives keep the global batch, so that
    learning rate and schedule stay right. What PyTorch knows about the memory of a GPU goes to
    ``memory.txt`` in the run's folder.

    Args:
        run_dir: The run's folder.
    """

    def __init__(self, run_dir: str) -> None:
        self.run_dir = run_dir
        self._batch: list[tuple[torch.Size, torch.dtype]] = []

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """See to it that workers without shared memory end."""
        _no_room[0] = 0
        _end_workers_without_room()

    def on_train_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Remember how large the batch is, without keeping it."""
        self._batch = [(part.shape, part.dtype) for part in _tensors(batch)]

    on_validation_batch_start = on_train_batch_start
    on_test_batch_start = on_train_batch_start
    on_predict_batch_start = on_train_batch_start

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Note on the error what it means, if it is one of memory."""
        text = str(exception)
        if isinstance(exception, torch.OutOfMemoryError) or _DEVICE.search(text):
            said = self._full(trainer, pl_module, "GPU" if torch.cuda.is_available() else "device")
        elif not isinstance(exception, RuntimeError | OSError | MemoryError):
            return
        elif worker := _WORKER.search(text):
            said = _killed(trainer, worker[1] or "", bool(_no_room[0] or _SHARED.search(text)))
        elif "DataLoader worker" in text and _SHARED.search(text):
            said = _killed(trainer, "Bus error", True)
        elif isinstance(exception, MemoryError) or _MACHINE.search(text):
            said = self._full(trainer, pl_module, "main")
        else:
            return
        exception.add_note(Meaning(said))

    def _full(self, trainer: L.Trainer, module: L.LightningModule, memory: str) -> str:
        lines = [f"Out of {memory} memory {where(trainer)}, batch {_shapes(self._batch)}"]
        lines[0] += f"; peak {_peak(trainer)}."
        lines += [f"Try, in this order: {'; '.join(_ways(trainer, module))}."]
        folder = Path(self.run_dir)
        if trainer.strategy.root_device.type == "cuda" and folder.is_dir():
            file = folder / "memory.txt"
            file.write_text(torch.cuda.memory_summary(trainer.strategy.root_device))
            lines.append(f"What takes the memory: {file}")
        return "\n".join(lines)


@cache
def _end_workers_without_room() -> None:
    """Have a worker end whose batch does not fit into shared memory.

    The thread that hands it over would print the error and drop the batch, and the run would wait
    for it for ever.
    """
    usual = Queue._on_queue_feeder_error  # type: ignore[attr-defined]

    def told(error: Exception, batch: object) -> None:
        if get_worker_info() is not None and _SHARED.search(str(error)):
            _no_room[0] = 1
            os._exit(1)
        usual(error, batch)

    Queue._on_queue_feeder_error = staticmethod(told)  # type: ignore[attr-defined]


def where(trainer: L.Trainer) -> str:
    """How far the run is, e.g. ``in training, step 12 (epoch 0)``."""
    stage = {"train": "training", "validate": "validation", "sanity_check": "the sanity check"}
    name = str(getattr(trainer.state.stage, "value", "the beginning"))
    return f"in {stage.get(name, name)}, step {trainer.global_step} (epoch {trainer.current_epoch})"


def _shapes(batch: Iterable[tuple[torch.Size, torch.dtype]]) -> str:
    found = [f"{tuple(shape)} {str(dtype).removeprefix('torch.')}" for shape, dtype in batch]
    return ", ".join(found) or "unknown"


def _tensors(batch: object) -> Iterable[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from _tensors(part)
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from _tensors(part)


def _peak(trainer: L.Trainer) -> str:
    """The most memory that was in use, and how much there is."""
    device = trainer.strategy.root_device
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        return f"{_size(torch.cuda.max_memory_allocated(device))} of {_size(total)} on {device}"
    if sys.platform == "win32":
        return "unknown"
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{_size(peak)} of {_size(total)} in this process"


def _ways(trainer: L.Trainer, module: L.LightningModule) -> list[str]:
    """What takes less memory, from what changes least to what changes most."""
    data: Any = getattr(trainer, "datamodule", None)
    ways = []
    if trainer.training:
        batch, accumulate = getattr(data, "batch_size", None), trainer.accumulate_grad_batches
        if isinstance(batch, int) and batch > 1:
            part = next(d for d in range(2, batch + 1) if batch % d == 0)
            ways.append(
                f"--data.batch_size {batch // part} --trainer.accumulate_grad_batches "
                f"{accumulate * part} (the same global batch)"
            )
    elif hasattr(data, "eval_batch_size"):
        batch = data.eval_batch_size or getattr(data, "batch_size", 2)
        ways.append(f"--data.eval_batch_size {max(1, batch // 2)} (the results stay the same)")
    if str(trainer.precision).startswith("32"):
        ways.append("--trainer.precision bf16-mixed")
    if trainer.training and getattr(module, "checkpoint_activations", None) is False:
        ways.append("--model.checkpoint_activations true (the same numbers, a third slower)")
    if isinstance(size := getattr(data, "image_size", None), int) and size > 32:
        ways.append(f"a --data.image_size below {size}")
    return [*ways, "a smaller network"]


def _killed(trainer: L.Trainer, signal: str, shared: bool) -> str:
    """What it means that a worker has died."""
    data: Any = getattr(trainer, "datamodule", None)
    workers = getattr(data, "num_workers", None)
    if shared:
        room = ""
        if os.path.isdir("/dev/shm"):
            use = shutil.disk_usage("/dev/shm")
            room = f" (/dev/shm: {_size(use.total)}, {_size(use.free)} of it free now)"
        return (
            f"Workers of the data loader ran out of shared memory{room} {where(trainer)}.\n"
            "Load without workers: --data.num_workers 0; or give more of it, in a container with "
            "docker run --shm-size 8g (or --ipc host)."
        )
    how = f"was killed ({signal})" if signal else "ended without a word"
    lines = [f"A worker of the data loader {how} {where(trainer)}."]
    if signal in ("Killed", ""):
        lines += [
            "The machine is probably out of memory; try, in this order: fewer "
            f"--data.num_workers ({'unknown' if workers is None else workers} now), "
            "--data.prefetch_factor 1, a smaller --data.batch_size."
        ]
    else:
        lines += ["What it was doing shows with --data.num_workers 0 (a broken file, a library)."]
    return "\n".join(lines)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
