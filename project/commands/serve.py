"""Answer with a trained model over HTTP, on this machine only unless told otherwise.

Example: `lightning serve --run last`

  --run RUN               a run's folder, or last: its best checkpoint is served
  --ckpt_path best|last|FILE   another one
  --model FILE            what lightning export has written, instead of a run
  --host ADDRESS          default 127.0.0.1; 0.0.0.0 lets every machine in, and there is no password
  --port N                default 8000; 0 takes any that is free
  --replicas N            copies of the model, each in a process; default 2, on one CPU 1
  --threads N             CPU threads of all replicas together; default: all there are
  --device D              auto (default), cpu, cuda, cuda:1, …
  --max_batch N           images that the model gets at once, at most; default 32
  --max_wait_ms N         how long a batch waits for images that are being decoded; default 10
  --max_body_mb N         largest request; default 10
  --max_pixels N          largest image, in pixels; default 64000000
  --timeout_s N           longest time to read a request and to answer it; default 30
  --queue N               images that wait at most, then 503 is answered; default 256
  --log_level LEVEL       of the JSON lines on stderr: debug, info (default), warning, error

/predict takes an image, a form with several or JSON; / is a page to drop images on, /docs describes
the rest: /health, /info, /metrics (Prometheus), /openapi.json. SIGTERM and Ctrl-C answer what has
been asked and end with exit code 0; a second one ends at once.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from project import cores, heavy
from project.mistakes import UserError
from project.options import VerbParser, whole
from project.request import request_of_run
from project.runs import find_class

if TYPE_CHECKING:
    from project.serve.model import Images, Model, Probs

_LEVELS = ("debug", "info", "warning", "error")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal comes.

    Args:
        argv: What follows the verb.

    Returns:
        0 after a signal and when all requests are answered.

    Raises:
        UserError: If an option is wrong, the port is taken, or there is no such model.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    options = _options(argv)
    open_model = _model(options)
    try:
        import aiohttp  # noqa: F401
    except ModuleNotFoundError:
        raise UserError("serve needs a package more: pip install -e '.[serve]'") from None
    _serve(options, open_model)
    return 0


def _above_0(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


_above_0.__name__ = "number above 0"


def _options(argv: list[str]) -> argparse.Namespace:
    said = os.environ.get(cores.THREADS, "").split(",")[0].strip()
    # 0 and what is no number are nobody's wish: OpenMP does not heed them, either.
    threads = (int(said) if said.isdecimal() else 0) or cores.threads()
    parser = VerbParser("serve")
    for name in ("run", "ckpt_path", "model"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=whole(0, 65535), default=8000)
    parser.add_argument("--replicas", type=whole(1), default=min(2, cores.usable()))
    parser.add_argument("--threads", type=whole(1), default=threads)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--max_batch", type=whole(1), default=32)
    parser.add_argument("--max_wait_ms", type=whole(0), default=10)
    parser.add_argument("--max_body_mb", type=_above_0, default=10.0)
    parser.add_argument("--max_pixels", type=whole(1), default=64_000_000)
    parser.add_argument("--timeout_s", type=_above_0, default=30.0)
    parser.add_argument("--queue", type=whole(1), default=256)
    parser.add_argument("--log_level", choices=_LEVELS, default="info")
    return parser.parse_args(argv)


def _model(options: argparse.Namespace) -> "Callable[[], Model]":
    """Return what loads the model in a replica; that it exists is known here."""
    if not options.host:  # an unset variable; the system would listen everywhere
        raise UserError("--host needs an address. 0.0.0.0 lets every machine in.")
    if options.model is not None:
        if options.device not in ("auto", "cpu"):
            raise UserError(f"--device {options.device}: an exported file is computed on the CPU.")
        if options.run or options.ckpt_path:
            raise UserError(
                "--model serves an exported file, --run and --ckpt_path a run: give one."
            )
        if not Path(options.model).is_file():
            raise UserError(f"--model {options.model}: no such file. lightning export makes one.")
        if Path(options.model).suffix == ".ckpt":
            raise UserError(
                f"--model takes what lightning export has written; {options.model} is a checkpoint."
                f"\nServe it by --ckpt_path {options.model}"
            )
        return partial(_ExportedModel, options.model, _threads(options))
    request = request_of_run("serve", options.run, options.ckpt_path, ", or --model FILE")
    assert request.run is not None
    assert request.ckpt_path is not None
    return partial(_open_run, request.run.path, request.ckpt_path, options.device)


def _open_run(run: Path, ckpt_path: Path, device: str) -> "Model":
    heavy.import_lightning()
    from project.serve.model import TrainedModel

    return TrainedModel(run, ckpt_path, device)


class _ExportedModel:
    """A file of ``lightning export``, with what reads images for it.

    Args:
        file: The file.
        threads: How many it computes with.
    """

    def __init__(self, file: str, threads: int) -> None:
        from project.export.exported import open_exported

        self.exported = open_exported(file, threads)
        self.metadata = {"model": Path(file).name, **self.exported.metadata}
        reader = self.metadata["reader"]
        if reader is None:
            raise UserError(f"{file} does not say how images are read: its data has no reader.")
        self.reader = find_class(reader["class_path"])(**reader["init_args"])

    def read(self, data: bytes) -> "Images":
        """Decode a file as for training, uint8 ``(C, H, W)``; ValueError if it is bad."""
        image: Images = self.reader(data).numpy()
        return image

    def predict(self, images: "Images") -> "Probs":
        """Map uint8 images ``(B, C, H, W)`` to probabilities ``(B, num_classes)``."""
        return self.exported.predict(images)


def _threads(options: argparse.Namespace) -> int:
    share: int = options.threads // options.replicas
    return max(1, share)


def _serve(options: argparse.Namespace, open_model: "Callable[[], Model]") -> None:
    from project.serve.app import Serving
    from project.serve.replica import Setup
    from project.serve.server import Place, serve
    from project.serve.uploads import Limits

    setup = Setup(
        open_model,
        threads=_threads(options),
        max_batch=options.max_batch,
        max_wait_s=options.max_wait_ms / 1000,
        max_pixels=options.max_pixels,
    )
    limits = Limits(int(options.max_body_mb * 2**20), options.queue)
    place = Place(options.host, options.port, options.replicas, options.log_level)
    serve(place, setup, Serving(limits, options.timeout_s, options.queue))
