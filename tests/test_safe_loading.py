"""Nothing that is loaded runs code: a checkpoint that would is refused, whoever asks for it."""

import contextlib
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from project.cli import main
from project.mistakes import UserError
from project.runs import Run, load_run

# Every way in: the arguments that make the command load FILE, or what is in the folder RUN.
FILE = [
    ["validate", "--run", "RUN", "--ckpt_path", "FILE"],
    ["test", "--run", "RUN", "--ckpt_path", "FILE"],
    ["predict", "--run", "RUN", "--ckpt_path", "FILE"],
    ["fit", "--init_from", "FILE"],
]
IN_RUN = [
    ["validate", "--run", "RUN"],
    ["test", "--run", "RUN", "--ckpt_path", "best"],
    ["predict", "--run", "RUN", "--ckpt_path", "last"],
    ["fit", "--resume", "RUN", "--trainer.max_epochs", "9"],
    ["fit", "--init_from", "RUN"],
]


class Payload:
    """Unpickling it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(workdir: Path) -> Path:
    return workdir / "code-was-run"


@pytest.fixture
def run(digits_run: Run, workdir: Path) -> Run:
    """A run of our own to put bad files into."""
    return Run(Path(shutil.copytree(digits_run.path, workdir / "logs" / "digits" / "run")))


def as_checkpoint(file: Path, good: Path, payload: Payload) -> None:
    torch.save({**torch.load(good), "payload": payload}, file)


def as_old_checkpoint(file: Path, good: Path, payload: Payload) -> None:
    content = {**torch.load(good), "payload": payload}
    torch.save(content, file, _use_new_zipfile_serialization=False)


def as_pickle(file: Path, good: Path, payload: Payload) -> None:
    file.write_bytes(pickle.dumps(payload))


FORMATS = [as_checkpoint, as_old_checkpoint, as_pickle]


def refusal(capsys: pytest.CaptureFixture[str], args: list[str], run: Path, file: Path) -> str:
    """Run a command that must be refused; return what it says."""
    capsys.readouterr()
    assert main([{"RUN": str(run), "FILE": str(file)}.get(arg, arg) for arg in args]) == 2
    said = capsys.readouterr().err
    assert said.startswith("Error: ")
    assert len(said.strip().splitlines()) <= 3
    return said


@pytest.mark.parametrize("write", FORMATS)
def test_these_files_do_run_code_where_it_is_allowed(
    write: Callable[..., None], run: Run, mark: Path, workdir: Path
) -> None:
    write(workdir / "bad.ckpt", run.checkpoint("best"), Payload(mark))
    with contextlib.suppress(Exception):  # a bare pickle: by then it has run
        torch.load(workdir / "bad.ckpt", weights_only=False)
    assert mark.exists()


@pytest.mark.parametrize("write", FORMATS)
@pytest.mark.parametrize("args", FILE, ids=" ".join)
def test_a_file_with_code_is_refused(
    args: list[str],
    write: Callable[..., None],
    run: Run,
    mark: Path,
    workdir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(workdir / "bad.ckpt", run.checkpoint("best"), Payload(mark))
    said = refusal(capsys, args, run.path, workdir / "bad.ckpt")
    assert "bad.ckpt" in said
    assert ("not a checkpoint" if write is as_pickle else "mkdir") in said
    assert not mark.exists()


@pytest.mark.parametrize("args", IN_RUN, ids=" ".join)
def test_a_run_with_code_in_its_checkpoints_is_refused(
    args: list[str], run: Run, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = run.checkpoints()
    for file in files:
        as_checkpoint(file, file, Payload(mark))
    assert "mkdir" in refusal(capsys, args, run.path, Path("none"))
    assert not mark.exists()
    assert run.checkpoints() == files


@pytest.mark.parametrize("write", FORMATS)
def test_load_run_refuses_a_file_with_code(
    write: Callable[..., None], run: Run, mark: Path, workdir: Path
) -> None:
    write(workdir / "bad.ckpt", run.checkpoint("best"), Payload(mark))
    with pytest.raises(UserError, match=r"bad\.ckpt is (refused: .*mkdir|not a checkpoint)"):
        load_run(run.path, str(workdir / "bad.ckpt"))
    assert not mark.exists()


@pytest.mark.parametrize(
    "content", [b"", b"not a checkpoint", b"PK\3\4 neither", b"\x80\x04."], ids=repr
)
@pytest.mark.parametrize("args", [FILE[1], FILE[-1]], ids=" ".join)
def test_what_is_no_checkpoint_is_refused_in_words(
    content: bytes, args: list[str], run: Run, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "bad.ckpt").write_bytes(content)
    assert "not a checkpoint" in refusal(capsys, args, run.path, workdir / "bad.ckpt")


def test_a_damaged_checkpoint_is_refused_in_words(
    run: Run, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run.checkpoint("best").read_bytes()
    (workdir / "bad.ckpt").write_bytes(whole[: len(whole) // 2])
    assert "damaged" in refusal(capsys, FILE[1], run.path, workdir / "bad.ckpt")


@pytest.fixture
def server(workdir: Path) -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Nothing."""

    handler = partial(Handler, directory=workdir)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


@pytest.mark.parametrize("args", FILE, ids=" ".join)
def test_a_checkpoint_on_the_web_runs_no_code(
    args: list[str],
    server: str,
    run: Run,
    mark: Path,
    workdir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    as_checkpoint(workdir / "bad.ckpt", run.checkpoint("best"), Payload(mark))
    args = [f"{server}/bad.ckpt" if arg == "FILE" else arg for arg in args]
    refusal(capsys, args, run.path, Path("none"))
    assert not mark.exists()


def test_load_run_runs_no_code_from_the_web(
    server: str, run: Run, mark: Path, workdir: Path
) -> None:
    as_checkpoint(workdir / "bad.ckpt", run.checkpoint("best"), Payload(mark))
    with pytest.raises(UserError):
        load_run(run.path, f"{server}/bad.ckpt")
    assert not mark.exists()
