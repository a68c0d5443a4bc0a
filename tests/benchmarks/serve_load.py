"""How fast `lightning serve` is next to the bare model, and whether its memory stays as it is.

    python tests/benchmarks/serve_load.py

ResNet-18 at 224 pixels, 64 clients that send JPEG files, against the same network fed with tensors
in batches of 32, by turns; then 20,000 requests to a model of the digits. It trains both models
itself, for a step each. Where other programs compute too, the clock on the wall says little: say
OMP_NUM_THREADS=1, and look at the images per second of CPU time (of server and replicas together).

Bars on two cores: 0.8 of the bare model's images per second or more, p99 below 3 times p50, and
memory after 20,000 requests as after 2,000.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COMMAND = [sys.executable, "-m", "project"]
SHORT = ["--trainer.max_steps", "1", "--trainer.limit_val_batches", "1"]
SHORT += ["--trainer.limit_test_batches", "1"]
CLIENTS = 64


def main() -> None:
    """Measure and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20_000, help="for the memory")
    parser.add_argument("--options", default="", help="of lightning serve, e.g. '--replicas 1'")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path[1:]])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        speed(given.seconds, given.rounds, given.options.split())
        memory(given.requests, given.options.split())


def speed(seconds: float, rounds: int, options: list[str]) -> None:
    """Compare server and bare model by turns."""
    photos()
    data = ["--config", "configs/image_folder.yaml", "--data.data_dir", "photos"]
    data += ["--data.image_size", "224", "--data.batch_size", "8"]
    fit(*data, "--model.net", "torchvision.models.resnet18")
    bare, rows = Bare(), []
    line = "bare {:6.1f}, of CPU {:6.1f}  served {:6.1f}, of CPU {:6.1f}  p50 {:.0f} p99 {:.0f} ms"
    with serving(options) as (url, pid):
        load(url, "photos/a/0.jpg", seconds=3)  # both are warm
        bare.images_per_second(3)
        pids = [pid, *children(pid)]
        for _ in range(rounds):
            alone, before = bare.images_per_second(seconds), cpu_seconds(pids)
            served = load(url, "photos/a/0.jpg", seconds)
            assert served["other"] == 0, served
            rate = len(served["seconds"]) / (cpu_seconds(pids) - before)
            rows.append((*alone, served["rate"], rate, *percentiles(served["seconds"])))
            print(line.format(*rows[-1]), flush=True)
    wall, cpu, spread = (
        statistics.median(row[over] / row[under] for row in rows)
        for over, under in ((2, 0), (3, 1), (5, 4))
    )
    print(f"ResNet-18, {CLIENTS} clients: {wall:.2f} of the bare model's images per second,")
    print(f"  {cpu:.2f} of its images per second of CPU time; p99 = {spread:.2f} x p50")


class Bare:
    """The network of the newest run without anything around it, in this process."""

    def __init__(self) -> None:
        import torch

        from project.runs import load_run

        self.torch, self.net = torch, load_run("last", "last").task
        self.batch = torch.randn(32, 3, 224, 224)

    def images_per_second(self, seconds: float) -> tuple[float, float]:
        """Return them by the clock on the wall, and by the CPU time of this process."""
        count, began, cpu = 0, time.perf_counter(), time.process_time()
        with self.torch.inference_mode():
            while time.perf_counter() - began < seconds:
                count += len(self.net(self.batch))
        return count / (time.perf_counter() - began), count / (time.process_time() - cpu)


def memory(requests: int, options: list[str]) -> None:
    """Watch the memory of server and replicas over many requests."""
    fit(*SHORT)
    image = Image.fromarray((np.arange(64).reshape(8, 8) * 4).astype(np.uint8))
    image.save("digit.png")
    with serving(["--log_level", "warning", *options]) as (url, pid):
        found = []
        for part in range(1, 11):
            load(url, "digit.png", count=requests // 10)
            pids = [pid, *children(pid)]
            found.append([resident_mb(each) for each in pids])
            shown = ", ".join(f"{mb:.1f}" for mb in found[-1])
            print(f"{part * requests // 10:6} requests: {shown} MB (server, replicas)", flush=True)
    grown = [f"{last - first:+.1f}" for first, last in zip(found[0], found[-1], strict=True)]
    print(f"Digits, from {requests // 10} to {requests} requests: {', '.join(grown)} MB")


def photos() -> None:
    """Write noise that is as large as photographs are after a first resize."""
    random = np.random.default_rng(0)
    for label in "ab":
        Path("photos", label).mkdir(parents=True)
        for number in range(20):
            small = Image.fromarray(random.integers(0, 255, (32, 32, 3), dtype=np.uint8))
            small.resize((320, 256)).save(f"photos/{label}/{number}.jpg")


def fit(*settings: str) -> None:
    """Train for a step."""
    subprocess.run([*COMMAND, "fit", *settings, *SHORT], check=True, capture_output=True)


@contextmanager
def serving(options: list[str]) -> Iterator[tuple[str, int]]:
    """Serve the newest run, and give its address and process."""
    args = ["serve", "--run", "last", "--ckpt_path", "last", "--port", "0", *options]
    with open("log.jsonl", "w") as log:
        process = subprocess.Popen([*COMMAND, *args], stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    url = next(found[0] for line in lines if (found := re.findall(r"http://[\d.:]+", line)))
    try:
        yield url, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def load(url: str, file: str, seconds: float = 0, count: int = 0) -> dict[str, Any]:
    """Ask from another process, for so long or so often."""
    client = [sys.executable, __file__, "client", url, file, str(seconds), str(count)]
    done = subprocess.run(client, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def clients(url: str, file: str, seconds: float, count: int) -> dict[str, Any]:
    """Ask with many clients, each as soon as it has its answer."""
    import aiohttp

    body, taken, other, left = Path(file).read_bytes(), [], 0, count
    began = time.perf_counter()

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal left, other
        while left > 0 if count else time.perf_counter() - began < seconds:
            left, sent = left - 1, time.perf_counter()
            async with session.post(f"{url}/predict?top_k=1", data=body) as answer:
                await answer.read()
                other += answer.status != 200
            taken.append(time.perf_counter() - sent)

    headers = {"Content-Type": "application/octet-stream"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
    return {"rate": len(taken) / (time.perf_counter() - began), "seconds": taken, "other": other}


def percentiles(seconds: list[float]) -> tuple[float, float]:
    """Return the 50th and the 99th, in milliseconds."""
    found = np.percentile(seconds, [50, 99]) * 1000
    return float(found[0]), float(found[1])


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, whichever of its threads did."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def cpu_seconds(pids: list[int]) -> float:
    """Return what processes have used: fields 14 and 15 of proc(5)'s stat."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Return the memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        url, file, seconds, count = sys.argv[2:]
        print(json.dumps(asyncio.run(clients(url, file, float(seconds), int(count)))))
    else:
        main()
