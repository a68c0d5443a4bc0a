"""What listing and checking many small image files costs: seconds, and bytes a file in a process.

``python tests/benchmarks/index_scale.py`` writes 200,000 PNGs of 28 x 28 pixels below a temporary
folder (``--folder`` chooses another; 1 GB of blocks), and takes about a minute.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from project.data.reading.image_file import MAX_PIXELS
from project.data.reading.index import check_files, list_folder

CLASSES = 100


def write_images(folder: Path, count: int) -> None:
    """Write images, equally many of every class, in folders like those people have."""
    random = np.random.default_rng(0)
    names = [f"class_{label:03}" for label in range(CLASSES)]
    for name in names:
        (folder / name).mkdir(parents=True)
    pixels = random.integers(0, 256, (CLASSES, 28, 28), dtype=np.uint8)
    for number in range(count):
        image = pixels[number % CLASSES].copy()
        image.flat[:4] = np.frombuffer(np.int32(number).tobytes(), np.uint8)  # no two are equal
        path = folder / names[number % CLASSES] / f"image_{number:06}.png"
        Image.fromarray(image).save(path, compress_level=1)


def own_memory() -> int:
    """Bytes of memory that this process shares with no other (Linux)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    private = [line.split()[1] for line in lines if line.startswith("Private_")]
    return 1024 * sum(map(int, private))


def in_a_worker(paths: object, labels: np.ndarray, checked: object) -> int:
    """Bytes that a forked process has of its own after it has looked at every entry."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        before = own_memory()
        for row in range(len(labels)):
            _ = paths[row], labels[row], checked.content_hash[row]
        os.write(write, str(own_memory() - before).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return int(os.read(read, 100))


def measure(folder: Path, cache: Path) -> Iterator[float]:
    """Yield seconds to list, to check and of all cores; bytes: of the tables, here, in a worker."""
    names = [f"class_{label:03}" for label in range(CLASSES)]
    before, spent = own_memory(), sum(os.times()[:4])  # of children, too
    start = time.perf_counter()
    listing = list_folder(folder, names)
    yield time.perf_counter() - start
    start = time.perf_counter()
    checked = check_files(folder, listing.paths, 1, MAX_PIXELS, cache)
    yield time.perf_counter() - start
    yield sum(os.times()[:4]) - spent
    assert checked.ok.all()
    here = own_memory() - before
    arrays = [v for v in vars(checked).values() if isinstance(v, np.ndarray)]
    count = len(listing.paths)
    yield (listing.paths.nbytes + listing.labels.nbytes + sum(a.nbytes for a in arrays)) / count
    yield here / count
    yield in_a_worker(listing.paths, listing.labels, checked) / count


def fresh(folder: Path, cache: Path) -> list[float]:
    """Measure in a process of its own, so that nothing is there yet."""
    command = [sys.executable, __file__, "--measure", str(folder), str(cache)]
    return [float(word) for word in subprocess.check_output(command).split()]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000, help="files, and a tenth of it")
    parser.add_argument("--folder", type=Path, help="where to write them")
    parser.add_argument("--measure", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(*measure(*args.measure))
        return
    cores = len(os.sched_getaffinity(0))
    table = Table("files", "time", "list s", "check s", "CPU µs a file", "tables B", "process B",
                  "worker B", title=f"{cores} cores; bytes a file")  # fmt: skip
    with tempfile.TemporaryDirectory(dir=args.folder) as home:
        for count in (args.count // 10, args.count):
            write_images(Path(home, str(count)), count)
            for turn in ("first", "second"):
                found = fresh(Path(home, str(count)), Path(home, f"cache{count}"))
                each = 1e6 * found[2] / count  # depends less on what else runs
                table.add_row(f"{count:,}", turn, *(f"{value:.2f}" for value in found[:2]),
                              f"{each:.1f}", *(f"{value:.0f}" for value in found[3:]))  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
