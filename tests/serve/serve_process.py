"""Servers as real processes, and what to ask them."""

import asyncio
import contextlib
import http.client
import io
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Server:
    """A process that serves; its output goes to files."""

    args: list[str]
    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)
    port: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        with self.file("out").open("wb") as out, self.file("err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *self.args], cwd=self.folder, stdout=out, stderr=err
            )

    def file(self, name: str) -> Path:
        return self.folder / name

    @property
    def out(self) -> str:
        return self.file("out").read_text()

    @property
    def err(self) -> str:
        return self.file("err").read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.err.splitlines()]

    def wait_ready(self) -> "Server":
        end = time.monotonic() + 120
        while "Stop " not in self.out:
            assert self.process.poll() is None, self.err
            assert time.monotonic() < end, self.err
            time.sleep(0.05)
        self.port = int(re.findall(r"http://127\.0\.0\.1:(\d+)", self.out)[0])
        return self

    def ask(
        self, path: str, body: Any = None, kind: str = "image/png", method: str = "", **headers: str
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"Content-Type": kind, **headers} if body is not None else headers
        chunked = body is not None and not isinstance(body, bytes)
        method = method or ("GET" if body is None else "POST")
        with contextlib.closing(connection):
            # Refused before all of it was read; the answer is there all the same.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, body, sent, encode_chunked=chunked)
            with connection.getresponse() as reply:
                return Reply(reply.status, dict(reply.getheaders()), reply.read())

    def replicas(self) -> list[int]:
        return children(self.process.pid)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


def children(pid: int) -> list[int]:
    return [
        int(child)
        for tasks in Path(f"/proc/{pid}/task").glob("*/children")
        for child in tasks.read_text().split()
    ]


def peak_mb(pid: int) -> float:
    """Most memory that a process has had at once."""
    found = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[0]) / 1024


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 10) -> bool:
    """Whether processes end; they need a moment to notice."""
    end = time.monotonic() + seconds
    while any(map(is_there, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(is_there, pids))


def png(value: int = 0, size: int = 8) -> bytes:
    return encoded(np.full((size, size), value, np.uint8))


def encoded(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def many(url: str, count: int, body: bytes, kind: str = "application/octet-stream") -> list[int]:
    """Statuses of so many requests at once, each on its own connection; 0 where none came."""
    import aiohttp

    async def one(session: aiohttp.ClientSession) -> int:
        try:
            async with session.post(url, data=body, headers={"Content-Type": kind}) as answer:
                await answer.read()
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def everything() -> list[int]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            return await asyncio.gather(*(one(session) for _ in range(count)))

    return asyncio.run(everything())
