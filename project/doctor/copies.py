"""Copies of what the user has made, so that no check can change the original."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader

# Bytes of data up to which a data module is copied with its tensors; beyond, they are shared.
ROOM = 2**28
LOADERS = ("train", "val", "test", "predict")


class Loaders(L.LightningDataModule):
    """Loaders that were given as such, as a data module.

    Args:
        loaders: A loader, or several, for each of train, val, test and predict that there is.
    """

    def __init__(self, loaders: dict[str, Any]) -> None:
        super().__init__()
        self.loaders = loaders
        if unknown := loaders.keys() - set(LOADERS):
            raise ValueError(f"loaders must be named {', '.join(LOADERS)}, got {min(unknown)!r}")
        given = {f"{split}_dataloader": _giver(split) for split in loaders}
        self.__class__ = type("Loaders", (Loaders,), given)


def _giver(split: str) -> Callable[[Loaders], object]:
    return lambda self: self.loaders[split]


def as_datamodule(data: object, task: L.LightningModule) -> L.LightningDataModule:
    """Make a data module of whatever a Trainer takes: a data module, loaders, or the task's own.

    Args:
        data: A data module, a training loader, a dictionary of loaders by split, or None.
        task: Has the loaders where ``data`` is None.
    """
    if isinstance(data, L.LightningDataModule):
        return data
    if data is None:
        return _of_task(copy.deepcopy(task))
    return Loaders(data if isinstance(data, dict) else {"train": data})


def _of_task(task: L.LightningModule) -> L.LightningDataModule:
    """Make a data module of the loaders that a task makes itself."""
    names = [f"{s}_dataloader" for s in LOADERS if is_overridden(f"{s}_dataloader", task)]
    methods = {name: _caller(name) for name in ("prepare_data", "setup", *names)}
    made: L.LightningDataModule = type("Loaders", (L.LightningDataModule,), methods)()
    made.task = task  # type: ignore[attr-defined]
    return made


def _caller(name: str) -> Callable[..., object]:
    return lambda self, *args: getattr(self.task, name)(*args)


def copied_task(task: L.LightningModule) -> L.LightningModule:
    """Copy a task; the copy has no trainer."""
    with torch.no_grad():
        made = copy.deepcopy(task)
    made.trainer = None
    # A ScriptModule's copies have lost it.
    for old, new in zip(task.parameters(), made.parameters(), strict=True):
        new.requires_grad_(old.requires_grad)
    return made


def copied(data: L.LightningDataModule) -> L.LightningDataModule:
    """Copy a data module, but share its tensors where they would need much room."""
    trainer = data.trainer
    memo: dict[int, Any] = {id(trainer): trainer}
    arrays = list(_arrays(vars(data), set()))
    if sum(array.nbytes for array in arrays) > ROOM:
        memo |= {id(array): array for array in arrays}
    made = copy.copy(data)
    for name, value in vars(data).items():
        with contextlib.suppress(Exception):  # an open file, a lock, a connection: is shared
            setattr(made, name, copy.deepcopy(value, memo))
    made.trainer = None
    return made


def _arrays(value: object, seen: set[int], depth: int = 6) -> Iterator[Any]:
    """Yield the tensors and arrays below a value."""
    if id(value) in seen or depth == 0:
        return
    seen.add(id(value))
    if isinstance(value, Tensor | np.ndarray):
        yield value
        return
    inside: list[Any] = []
    if isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, list | tuple) and len(value) < 1000:
        inside = list(value)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        inside = list(vars(value).values())
    for item in inside:
        yield from _arrays(item, seen, depth - 1)


def stand_in(data: L.LightningDataModule, **methods: Any) -> L.LightningDataModule:
    """Return the data module, ready, for one loop: same data, loading in this process.

    Args:
        data: A copy that has been set up.
        methods: What it does in another way.
    """
    made = copy.copy(data)
    kind = type(data)

    def here(split: str) -> Any:  # noqa: ANN401
        def load(self: L.LightningDataModule) -> object:
            return without_workers(getattr(super(made.__class__, self), f"{split}_dataloader")())

        return load

    own = {
        f"{split}_dataloader": here(split)
        for split in LOADERS
        if f"{split}_dataloader" not in vars(data) and has_loader(data, split)
    }
    done: dict[str, Any] = {"prepare_data": lambda self: None, "setup": lambda self, stage: None}
    made.__class__ = type(kind.__name__, (kind,), own | done | methods)
    made.trainer = None
    return made


def as_they_are(data: L.LightningDataModule, loader: Callable[[], object]) -> dict[str, Any]:
    """Return methods for ``stand_in``: train on batches that need no further transfer.

    Args:
        data: The data module.
        loader: Gives the training loader.
    """

    def hook(name: str) -> Callable[..., Any]:
        def transfer(self: L.LightningDataModule, batch: Any, dataloader_idx: int) -> Any:  # noqa: ANN401
            assert self.trainer is not None
            if self.trainer.training:
                return batch
            owner = data if is_overridden(name, data) else self.trainer.lightning_module
            return getattr(type(owner), name)(self if owner is data else owner, batch, 0)

        return transfer

    hooks = {name: hook(name) for name in ("on_before_batch_transfer", "on_after_batch_transfer")}
    return {"train_dataloader": lambda self: loader(), **hooks}


def has_loader(data: L.LightningDataModule, split: str) -> bool:
    """Whether the data module makes a loader of its own for a split."""
    name = f"{split}_dataloader"
    base = getattr(L.LightningDataModule, name)
    return name in vars(data) or getattr(type(data), name) is not base


def without_workers(loaders: object) -> object:
    """Let loaders load in this process: starting workers takes longer than most checks."""
    if isinstance(loaders, list | tuple):
        return [without_workers(loader) for loader in loaders]
    if not isinstance(loaders, DataLoader) or loaders.num_workers == 0:
        return loaders
    here = copy.copy(loaders)
    here.num_workers, here.timeout, here._iterator = 0, 0, None
    return here
