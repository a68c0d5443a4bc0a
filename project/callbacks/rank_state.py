"""What every process carries on besides weights: random numbers, and metrics so far."""

import random
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultMetric,
    _Sync,
)
from torch import Tensor, distributed, nn
from torchmetrics import Metric

State = dict[str, Any]  # plain values and tensors, so that it loads with weights_only=True

_META: tuple[str, ...] = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph")
_META += ("add_dataloader_idx", "dataloader_idx", "metric_attribute")


def rank_state(trainer: L.Trainer) -> State:
    """Copy the state of this process."""
    return {
        "rng": rng_state(trainer.strategy.root_device),
        "results": _results(trainer),
        "metrics": _metrics(trainer.lightning_module),
    }


def load_rank_state(trainer: L.Trainer, state: State) -> None:
    """Bring back a state; call it when nothing draws random numbers before the next batch."""
    _load_metrics(trainer.lightning_module, state["metrics"])
    _load_results(trainer, state["results"])
    set_rng_state(state["rng"], trainer.strategy.root_device)


def gather(value: State) -> list[State]:
    """Return the values of all processes, in the order of their ranks, on every process."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [value]
    values: list[State] = [{}] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def rng_state(device: torch.device) -> State:
    """Copy the state of Python's, NumPy's and torch's generators; of devices, that of ``device``.

    Asking for the others would start CUDA on each of them.
    """
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state()
    name, keys, position, has_gauss, cached = legacy
    words_of_numpy = torch.from_numpy(keys.astype(np.int64))
    state: State = {
        "python": [version, list(words), gauss],
        "numpy": [name, words_of_numpy, position, int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_rng_state(state: State, device: torch.device) -> None:
    """Bring back what :func:`rng_state` has copied; a device of another kind keeps its own."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
    if "mps" in state and device.type == "mps":
        torch.mps.set_rng_state(state["mps"].cpu())


def _results(trainer: L.Trainer) -> list[State]:
    """What ``self.log(..., on_epoch=True)`` has added up in this epoch of training."""
    found = []
    for key, result in trainer.fit_loop.epoch_loop._results.items():
        meta = result.meta
        if meta.sync.group is not None:  # a group of processes cannot be stored
            continue
        state = {name: getattr(meta, name) for name in _META}
        state |= {"key": key, "reduce_fx": meta.reduce_fx.__name__, "is_tensor": result.is_tensor}
        state |= {"sync": [meta.sync.should, meta.sync.op, meta.sync.rank_zero_only]}
        if result.is_tensor:
            state["value"] = _copy(result.value)
            state["batch_size"] = _copy(getattr(result, "cumulated_batch_size", None))
        state |= {"updates": result._update_count, "has_reset": result.has_reset}
        found.append(state)
    return found


def _load_results(trainer: L.Trainer, states: list[State]) -> None:
    results = trainer.fit_loop.epoch_loop._results
    for state in states:
        meta = _Metadata(
            **{name: state[name] for name in _META}, reduce_fx=getattr(torch, state["reduce_fx"])
        )
        should, op, rank_zero_only = state["sync"]
        meta.sync = _Sync(
            fn=trainer.strategy.reduce, _should=should, _op=op, rank_zero_only=rank_zero_only
        )
        result = _ResultMetric(meta, state["is_tensor"])
        if state["is_tensor"]:
            result.value = state["value"]
            if state["batch_size"] is not None:
                result.cumulated_batch_size = state["batch_size"]
        else:
            try:
                result.value = trainer.lightning_module.get_submodule(state["metric_attribute"])
            except AttributeError:  # the module has changed
                continue
        result._update_count, result.has_reset = state["updates"], state["has_reset"]
        results[state["key"]] = result.to(trainer.strategy.root_device)
    if states:
        # Lightning takes the first batch of a process for the first of an epoch, and would reset.
        trainer._logger_connector._first_loop_iter = False


def _metrics(module: nn.Module) -> State:
    """The counts of every torchmetrics object that has any."""
    found: State = {}
    for name, metric in module.named_modules():
        if isinstance(metric, Metric) and metric._update_count:
            counts = {key: _copy(getattr(metric, key)) for key in metric._defaults}
            found[name] = {"updates": metric._update_count, "counts": counts}
    return found


def _load_metrics(module: nn.Module, states: State) -> None:
    for name, metric in module.named_modules():
        if isinstance(metric, Metric) and name in states:
            for key, value in states[name]["counts"].items():
                setattr(metric, key, _copy(value, metric.device))
            metric._update_count, metric._computed = states[name]["updates"], None


def _copy(value: Any, device: torch.device | None = None) -> Any:  # noqa: ANN401
    if isinstance(value, Tensor):
        return value.detach().clone().to(device) if device else value.detach().clone()
    return [_copy(item, device) for item in value] if isinstance(value, list) else value
