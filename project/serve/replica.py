"""One copy of the model, in a process of its own: files of images come in, probabilities go out.

A process, because a decoder or an operator that crashes, and memory that runs out, then cost a
replica and not the server; and because two networks in one process wait for one another's GIL.
Decoding is done here too: the server, which has to answer at any time, imports no torch.
"""

import io
import os
import pickle
import queue
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from project.mistakes import UserError
from project.serve.model import Images, Model

HEAD = struct.Struct(">Q")  # number of the bytes that follow
# What is looked for when only the size is to be known. Without them Pillow would try all it has.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "TIFF", "WEBP")


@dataclass(frozen=True)
class Setup:
    """What a replica is told first.

    Args:
        open_model: Loads the model; is pickled.
        threads: CPU threads for decoding, and for the model (as ``OMP_NUM_THREADS``).
        max_batch: Images that the model gets at once, at most.
        max_wait_s: Seconds that a batch waits for images that are still being decoded.
        max_pixels: Larger images are refused before they are decoded.
    """

    open_model: Callable[[], Model]
    threads: int
    max_batch: int
    max_wait_s: float
    max_pixels: int


class Failed(NamedTuple):
    """The model could not be loaded.

    Args:
        message: What the user has to change, or the traceback.
        is_mistake: Whether it is the user's mistake.
    """

    message: str
    is_mistake: bool


class Answer(NamedTuple):
    """What became of one image.

    Args:
        number: That of the request for it.
        probs: ``(num_classes,)``; None where it failed.
        status: HTTP's word for what happened: 200, or 400, 413, 422 or 500 with a reason.
        reason: Why there are no ``probs``.
    """

    number: int
    probs: list[float] | None
    status: int = 200
    reason: str = ""


class Answers(NamedTuple):
    """What a replica says again and again.

    Args:
        answers: One for each image.
        batch: How many images the model got at once; 0 where it was not asked.
        error: The traceback, if the model failed.
    """

    answers: list[Answer]
    batch: int = 0
    error: str = ""


def pack(message: object) -> bytes:
    """Return a message as it goes over the socket."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(data)) + data


class _Worker:
    """A replica at work.

    Args:
        stream: The socket to the server.
        model: What it serves.
        setup: How.
    """

    def __init__(self, stream: io.BufferedRWPair, model: Model, setup: Setup) -> None:
        self.stream, self.model, self.setup = stream, model, setup
        self.decoded: queue.SimpleQueue[tuple[int, Images]] = queue.SimpleQueue()
        self.sending, self.counting = threading.Lock(), threading.Lock()
        self.decoding = 0  # images that are on their way to `decoded`

    def run(self) -> None:
        """Answer until the server is gone."""
        threading.Thread(target=self._receive, daemon=True).start()
        while True:
            groups: dict[Any, list[tuple[int, Images]]] = {}
            for number, image in self._take():
                groups.setdefault(image.shape, []).append((number, image))
            for group in groups.values():  # one, unless images keep their own sizes
                self.send(self._predict(group))

    def send(self, message: object) -> None:
        """Tell the server something; from any thread."""
        with self.sending:
            self.stream.write(pack(message))
            self.stream.flush()

    def _receive(self) -> None:
        decoders = ThreadPoolExecutor(self.setup.threads)
        while True:
            head = self.stream.read(HEAD.size)
            if len(head) < HEAD.size:
                os._exit(0)  # the server is gone, and nobody waits for what is still computed
            number, data = pickle.loads(self.stream.read(*HEAD.unpack(head)))
            with self.counting:
                self.decoding += 1
            decoders.submit(self._decode, number, data)

    def _decode(self, number: int, data: bytes) -> None:
        try:
            if pixels := _too_many_pixels(data, self.setup.max_pixels):
                self.send(Answers([Answer(number, None, 413, pixels)]))
            else:
                self.decoded.put((number, self.model.read(data)))
        except ValueError as error:  # BadImage is one
            self.send(Answers([Answer(number, None, 400, str(error))]))
        except Exception:
            reason = "the image could not be decoded"
            self.send(Answers([Answer(number, None, 500, reason)], error=traceback.format_exc()))
        finally:
            with self.counting:
                self.decoding -= 1

    def _take(self) -> list[tuple[int, Images]]:
        """Take what has come while the last batch was computed; a lone image does not wait."""
        batch = [self.decoded.get()]
        until = time.monotonic() + self.setup.max_wait_s
        while len(batch) < self.setup.max_batch:
            left = until - time.monotonic() if self.decoding else 0
            try:
                batch.append(self.decoded.get(block=left > 0, timeout=max(left, 0)))
            except queue.Empty:
                if left <= 0:
                    break
        return batch

    def _predict(self, group: list[tuple[int, Images]]) -> Answers:
        numbers, images = zip(*group, strict=True)
        try:
            probs = self.model.predict(np.stack(images))
            answers = [_answer(number, row) for number, row in zip(numbers, probs, strict=True)]
        except Exception:
            failed = [Answer(number, None, 500, "the model failed") for number in numbers]
            return Answers(failed, len(group), traceback.format_exc())
        return Answers(answers, len(group))


def _answer(number: int, probs: npt.NDArray[np.float32]) -> Answer:
    if not np.isfinite(probs).all():  # JSON has no word for it
        return Answer(number, None, 500, "the model's probabilities are NaN or infinite")
    return Answer(number, probs.tolist())


def _too_many_pixels(data: bytes, allowed: int) -> str:
    """Say how many there are if they are too many; only the header is read."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
    except Image.DecompressionBombError:
        return f"it has more than the {allowed:,} pixels allowed (--max_pixels)"
    except Exception:  # the model's own reading says what is wrong
        return ""
    if width * height <= allowed:
        return ""
    pixels = f"{width} x {height} = {width * height:,} pixels"
    return f"it has {pixels}, more than the {allowed:,} allowed (--max_pixels)"


def _load(setup: Setup) -> Model | Failed:
    try:
        return setup.open_model()
    except UserError as mistake:
        return Failed(str(mistake), is_mistake=True)
    except Exception:
        return Failed(traceback.format_exc(), is_mistake=False)


def main(descriptor: int) -> None:
    """Be a replica.

    Args:
        descriptor: Of the socket to the server.
    """
    stream = socket.socket(fileno=descriptor).makefile("rwb")
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return  # the server has ended already
    setup: Setup = pickle.loads(stream.read(*HEAD.unpack(head)))
    model = _load(setup)
    if isinstance(model, Failed):
        stream.write(pack(model))
        stream.flush()
        return
    worker = _Worker(stream, model, setup)
    worker.send(dict(model.metadata))
    worker.run()


if __name__ == "__main__":
    # By its name, so that what is pickled here is what the server knows, not a class of `__main__`.
    from project.serve import replica

    replica.main(int(sys.argv[1]))
