"""A place where a check can do what it likes: afterwards the process is as it was."""

import contextlib
import io
import logging
import os
import random
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from lightning.pytorch import seed_everything


@contextlib.contextmanager
def isolated(seed: int) -> Iterator[list[warnings.WarningMessage]]:
    """Seed everything, say nothing, compile nothing; then put all of it back.

    Args:
        seed: What random numbers begin with, so that two doctors find the same.

    Yields:
        The warnings that come.
    """
    with (
        _random_numbers(),
        _environment(),
        _flags(),
        _silence() as heard,
        torch.enable_grad(),
        torch.compiler.set_stance("force_eager"),
    ):
        seed_everything(seed, workers=True, verbose=False)
        yield heard


@contextlib.contextmanager
def _random_numbers() -> Iterator[None]:
    python, numbers = random.getstate(), np.random.get_state()
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(cuda):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        for key in os.environ.keys() - before.keys():
            del os.environ[key]
        os.environ.update(before)


@contextlib.contextmanager
def _flags() -> Iterator[None]:
    """Put back what Lightning's Trainer sets for the whole process."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark, precision = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    dtype, anomaly = torch.get_default_dtype(), torch.is_anomaly_enabled()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        torch.set_float32_matmul_precision(precision)
        torch.set_default_dtype(dtype)
        torch.autograd.set_detect_anomaly(anomaly)


@contextlib.contextmanager
def _silence() -> Iterator[list[warnings.WarningMessage]]:
    disabled = logging.root.manager.disable
    try:
        with (
            warnings.catch_warnings(record=True) as heard,
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("always")
            logging.disable(logging.CRITICAL)
            yield heard
    finally:
        logging.disable(disabled)
