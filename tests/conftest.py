"""What every test runs under: one thread, no network, no settings from outside."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before torch is imported, and for the commands that tests start. On shared cores torch's spinning
# threads are ten times slower than one thread.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Compute with one thread, also where OMP_NUM_THREADS came too late."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Make every machine offline, so that tests pass with and without a network.

    Holds in this process; commands that a test starts must need no network by themselves.
    """
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        host = (
            address[0] if isinstance(address, tuple) else "localhost"
        )  # else a Unix socket's path
        if host not in {"localhost", "127.0.0.1", "::1", "0.0.0.0", socket.gethostname()}:
            raise ConnectionError(f"tests run offline, and this one connects to {host}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in an empty folder, so that runs, data and stray files of a test go there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
