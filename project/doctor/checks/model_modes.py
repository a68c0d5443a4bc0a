"""Training and evaluation mode: each where it belongs."""

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.hooks import RemovableHandle

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.step import MOST
from project.doctor.structures import trimmed


class _Modes(Callback):
    """Notes in which mode Dropout and BatchNorm compute, at every call.

    Args:
        names: Their names.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.stage = ""
        self.seen: dict[str, dict[str, set[bool]]] = {}
        self.handles: list[RemovableHandle] = []
        self.epoch = 0

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for name in self.names:

            def note(module: nn.Module, args: object, name: str = name) -> None:
                if self.stage:
                    self.seen.setdefault(self.stage, {}).setdefault(name, set()).add(
                        module.training
                    )

            module = pl_module.get_submodule(name)
            self.handles.append(module.register_forward_pre_hook(note))

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        self.stage = f"train {min(trainer.current_epoch, 1)}"

    def on_train_batch_end(self, *_: Any) -> None:
        self.stage = ""

    def on_validation_batch_start(self, *_: Any) -> None:
        self.stage = "val"

    def on_validation_batch_end(self, *_: Any) -> None:
        self.stage = ""


@check("model", seconds=10)
def mode_restored(subject: Subject) -> Finding:
    """Dropout and BatchNorm are in training mode in training, also after a validation."""
    task = subject.fresh_task()
    names = [name for name, module in task.named_modules() if _has_modes(module)]
    if not names:
        raise Skip("no Dropout and no BatchNorm")
    modes = _Modes(names)
    batches = [trimmed(batch, MOST) for batch in subject.batches("train", 1)]
    subject.train(
        task,
        steps=2,
        batches=batches * 2,
        callbacks=[modes],
        max_epochs=2,
        max_steps=-1,
        limit_train_batches=1,
        overfit_batches=0,
        accumulate_grad_batches=1,
        check_val_every_n_epoch=1,
    )
    first, later = modes.seen.get("train 0", {}), modes.seen.get("train 1", {})
    lost = [n for n, found in later.items() if found == {False} and True in first.get(n, {False})]
    if lost:
        return fail(
            f"{_named(task, lost)} trained in the first epoch, but is in eval mode after the "
            "validation",
            "Remove eval() from the task, Lightning sets the mode; or call train() afterwards.",
        )
    wrong = [n for n, found in modes.seen.get("val", {}).items() if True in found]
    if wrong:
        norm = any(isinstance(task.get_submodule(name), _NormBase) for name in wrong)
        return (fail if norm else warn)(
            f"{_named(task, wrong)} is in training mode while validating",
            "Remove train() from the task; Lightning sets the mode.",
        )
    return _while_training(task, first)


def _while_training(task: L.LightningModule, seen: dict[str, set[bool]]) -> Finding:
    """Judge what is in eval mode while training."""
    still = [n for n, found in seen.items() if found == {False} and not _is_frozen(task, n)]
    norms = [n for n in still if isinstance(task.get_submodule(n), _NormBase)]
    if still and (len(still) == len(seen) or len(still) > len(norms)):
        return warn(
            f"{_named(task, still)} is in eval mode while training, although what surrounds it is "
            "trained",
            "Call train() on the network once, in __init__; pretrained ones come in eval mode.",
        )
    return passed(f"{len(seen)} modules")


def _has_modes(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    return isinstance(module, _NormBase) and module.track_running_stats


def _is_frozen(task: L.LightningModule, name: str) -> bool:
    """Whether nothing is trained in the module and in what directly surrounds it."""
    own = list(task.get_submodule(name).parameters())
    around = own or list(task.get_submodule(name.rpartition(".")[0]).parameters())
    return bool(around) and not any(parameter.requires_grad for parameter in around)


def _named(task: L.LightningModule, names: list[str]) -> str:
    kind = type(task.get_submodule(names[0])).__name__
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]} ({kind}){more}"


@check("model")
def modes_differ(subject: Subject) -> Finding:
    """With Dropout or BatchNorm, training and eval mode give different outputs."""
    task = subject.fresh_task().train()
    active = {n for n, module in task.named_modules() if _has_modes(module)}
    active = {n for n in active if not _is_frozen(task, n)}
    if not active:
        raise Skip("no Dropout and no BatchNorm")
    images, _ = subject.pairs("train")[0]
    if len(images) < 2:
        raise Skip("batches have one sample only")
    images = images[:MOST]
    with torch.no_grad():
        trained = subject.logits(task, images)
        quiet = [n for n in active if not task.get_submodule(n).training]
        evaluated = subject.logits(subject.fresh_task().eval(), images)
    if trained.shape == evaluated.shape and torch.equal(trained, evaluated):
        zero = float(trained.std()) == 0.0  # a last layer of zeros
        if quiet:
            return warn(
                f"forward puts {sorted(quiet)[0]} into eval mode",
                "Call train() and eval() nowhere: Lightning does.",
            )
        if not zero:
            return warn(
                f"training and eval mode give the same outputs in spite of {sorted(active)[0]}",
                "Is it called in forward, and with what is used afterwards?",
            )
    return passed()
