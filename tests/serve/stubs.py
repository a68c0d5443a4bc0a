"""A model that does what a test wants, served by a process of its own: `python stubs.py OPTIONS`.

The first byte of a "file" says what becomes of it: a capital letter is one of the disasters below,
any other byte is the only pixel of the image.
"""

import os
import signal
import sys
import time
from functools import partial
from typing import ClassVar

import numpy as np


class Stub:
    """Takes its time for every batch."""

    metadata: ClassVar = {"class_names": ["dark", "bright"]}

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def read(self, data: bytes) -> np.ndarray:
        if data[:1] in (b"", b"B"):
            raise ValueError("it is bad")
        if data[:1] == b"D":
            os.kill(os.getpid(), signal.SIGKILL)
        return np.array([[[data[0]]]], np.uint8)

    def predict(self, images: np.ndarray) -> np.ndarray:
        bright = images[:, 0, 0, 0]
        if ord("E") in bright:
            raise RuntimeError("the stub fails")
        if ord("K") in bright:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000 if ord("H") in bright else self.seconds)
        bright = np.where(bright == ord("N"), np.nan, bright / 255)
        return np.stack([1 - bright, bright], 1).astype(np.float32)


class Broken(Stub):
    """Dies while it is loaded."""

    def __init__(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Lost(Stub):
    """Cannot be loaded while a file is there."""

    def __init__(self, seconds: float, file: str) -> None:
        super().__init__(seconds)
        if os.path.exists(file):
            raise FileExistsError(file)


def main(seconds: str, replicas: str, batch: str, queue: str, timeout_s: str, only: str) -> None:
    import stubs  # by the name that a replica imports it by, which is not `__main__`

    from project.serve.app import Serving
    from project.serve.replica import Setup
    from project.serve.server import Place, serve
    from project.serve.uploads import Limits

    model = partial(stubs.Stub, float(seconds))
    if only == "broken":
        model = stubs.Broken
    elif only:
        model = partial(stubs.Lost, float(seconds), only)
    setup = Setup(model, 1, int(batch), 0.01, 10**6)
    serving = Serving(Limits(2**20, int(queue)), float(timeout_s), int(queue))
    from project.cli import _tell
    from project.mistakes import RunFailed

    try:
        serve(Place("127.0.0.1", 0, int(replicas), "info"), setup, serving)
    except RunFailed as failure:
        sys.exit(_tell(f"Error: {failure}", 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
