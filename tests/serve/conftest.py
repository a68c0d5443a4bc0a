"""Servers for the tests, and what makes `serve_process` and `stubs` importable."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from project.runs import Run

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from serve_process import Server  # noqa: E402


@pytest.fixture
def stub_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start servers of a stub; they are ended after the test."""
    started: list[Server] = []

    def start(
        seconds: float = 0.0,
        replicas: int = 1,
        max_batch: int = 4,
        queue: int = 64,
        timeout_s: float = 20,
        only: str = "",
        wait: bool = True,
    ) -> Server:
        args = [str(a) for a in (seconds, replicas, max_batch, queue, timeout_s, only)]
        folder = tmp_path / f"server{len(started)}"
        started.append(Server([str(HERE / "stubs.py"), *args], folder))
        return started[-1].wait_ready() if wait else started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="session")
def digits_server(digits_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`lightning serve` with a run of the digits, for all tests that leave it as it is."""
    args = ["-m", "project", "serve", "--run", str(digits_run.path), "--port", "0"]
    server = Server(args, tmp_path_factory.mktemp("digits_server") / "files")
    try:
        yield server.wait_ready()
    finally:
        server.process.kill()
        server.process.wait()
