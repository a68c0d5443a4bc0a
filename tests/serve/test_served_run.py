"""`lightning serve` with a run: it reads images as the run does, and refuses what is none."""

import asyncio
import base64
import io
import json
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

aiohttp = pytest.importorskip("aiohttp")

from serve_process import Server, encoded, many, peak_mb  # noqa: E402

from project.cli import main  # noqa: E402
from project.runs import Run, load_run  # noqa: E402
from project.serve.model import TrainedModel  # noqa: E402

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def digit() -> bytes:
    return encoded((np.arange(64).reshape(8, 8) * 4).astype(np.uint8))


def checkerboard() -> bytes:
    board = np.indices((2000, 2000)).sum(0) % 2 * 255
    return encoded(np.repeat(board.astype(np.uint8)[:, :, None], 3, 2))


@pytest.mark.parametrize("image", [digit(), checkerboard()], ids=["digit", "checkerboard"])
def test_a_file_and_its_bytes_get_the_same_probabilities(
    image: bytes, digits_server: Server, digits_run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "image.png"
    file.write_bytes(image)
    expected = load_run(digits_run.path).predict(str(file)).probs[0]
    assert np.allclose(probs(digits_server, image), expected, atol=1e-3)


def probs(server: Server, image: bytes) -> list[float]:
    """Ask for the probabilities of all classes, in their order."""
    best_first = server.ask("/predict?top_k=10", image).json["predictions"][0]["top_k"]
    assert best_first == sorted(best_first, key=lambda one: -one["probability"])
    return [one["probability"] for one in sorted(best_first, key=lambda one: one["label"])]


def test_a_predict_step_of_the_users_own_is_what_is_served(
    digits_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def predict_step(self: object, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return torch.eye(10)[batch[2] + 3]

    monkeypatch.setattr("project.tasks.ClassificationTask.predict_step", predict_step)
    model = TrainedModel(digits_run.path, digits_run.checkpoint("best"), "cpu")
    probs = model.predict(np.zeros((2, 1, 8, 8), np.uint8))
    assert probs.argmax(1).tolist() == [3, 4]


def test_a_run_is_named_without_saying_where_it_is_on_this_machine(
    digits_server: Server, digits_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = f"{digits_run.experiment}/{digits_run.path.name}"
    assert digits_server.ask("/info").json["model"]["run"] == named
    monkeypatch.chdir(digits_run.path.parents[2])
    model = TrainedModel(digits_run.path, digits_run.checkpoint("best"), "cpu")
    assert model.metadata["run"] == f"{digits_run.path.parents[1].name}/{named}"


def test_an_exported_file_answers_as_its_run_does(
    digits_server: Server, digits_run: Run, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    run = shutil.copytree(digits_run.path, tmp_path / "logs" / "digits" / "run")
    file = tmp_path / "model.onnx"
    assert main(["export", "--run", str(run), "--output", str(file)]) == 0
    args = ["-m", "project", "serve", "--model", str(file), "--port", "0", "--replicas", "1"]
    server = Server(args, tmp_path / "server")
    try:
        server.wait_ready()
        assert np.allclose(probs(server, digit()), probs(digits_server, digit()), atol=1e-3)
        assert server.ask("/info").json["model"]["model"] == "model.onnx"
        assert server.end() == 0
    finally:
        server.process.kill()
        server.process.wait()


def test_the_three_ways_to_send_an_image_get_the_same_answer(digits_server: Server) -> None:
    pixels = np.array(Image.open(io.BytesIO(digit()))).tolist()
    content = {"images": [base64.b64encode(digit()).decode(), pixels]}
    head = b'--x\r\nContent-Disposition: form-data; name="i"; filename="a.png"\r\n\r\n'
    form = head + digit() + b"\r\n--x--\r\n"
    raw = digits_server.ask("/predict", digit()).json["predictions"]
    texts = digits_server.ask("/predict", json.dumps(content).encode(), "application/json")
    parts = digits_server.ask("/predict", form, "multipart/form-data; boundary=x")
    assert texts.json["predictions"] == raw * 2
    assert parts.json["predictions"] == [{**raw[0], "name": "a.png"}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"garbage", "not an image"),
        (digit()[:60], "cut off"),
        (digit()[:50] + b"\xff" + digit()[51:], "damaged"),
        (b"", "empty"),
        (b"<!doctype html><p>404", "web page"),
    ],
    ids=["garbage", "truncated", "flipped", "empty", "html"],
)
def test_what_is_no_image_is_refused_with_the_reason(
    content: bytes, said: str, digits_server: Server
) -> None:
    reply = digits_server.ask("/predict", content)
    assert (reply.status, reply.headers["Content-Type"].split(";")[0]) == (
        400,
        "application/problem+json",
    )
    assert said in reply.json["detail"]
    assert digits_server.ask("/predict", digit()).status == 200


def test_huge_bodies_and_bombs_are_refused_and_leave_no_trace_in_memory(
    digits_server: Server,
) -> None:
    assert digits_server.ask("/predict", digit()).status == 200
    everybody = [digits_server.process.pid, *digits_server.replicas()]
    before = [peak_mb(pid) for pid in everybody]
    huge = b"\0" * (300 * 2**20)
    reply = digits_server.ask("/predict", huge)
    assert reply.status == 413
    pieces = iter([huge[: 2**20]] * 300)
    assert digits_server.ask("/predict", pieces, **{"Transfer-Encoding": "chunked"}).status == 413
    assert digits_server.ask("/predict", bomb()).status == 413
    assert digits_server.ask("/predict", b"").status == 400
    assert digits_server.ask("/predict", digit()).status == 200
    grown = [peak_mb(pid) - mb for pid, mb in zip(everybody, before, strict=True)]
    assert max(grown) < 30  # the bomb alone would have 400


def bomb() -> bytes:
    """A PNG of 20,000 x 20,000 grey pixels, 400 MB, in half a megabyte."""
    file = io.BytesIO()
    Image.new("L", (20_000, 20_000)).save(file, "PNG")
    return file.getvalue()


def test_200_clients_at_once_are_all_answered(digits_server: Server) -> None:
    assert many(f"{digits_server.url}/predict", 200, digit()) == [200] * 200


def test_clients_that_hang_up_or_dawdle_are_no_harm_to_others(digits_server: Server) -> None:
    async def everybody() -> None:
        head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n"
        held = []
        for number in range(40):
            _, writer = await asyncio.open_connection("127.0.0.1", digits_server.port)
            writer.write(head + b"Content-Length: 500\r\n\r\n" + digit()[:20])
            await writer.drain()
            if number % 2:
                writer.transport.abort()
            else:
                held.append(writer)
        async with aiohttp.ClientSession() as session:
            for _ in range(20):
                kind = {"Content-Type": "image/png"}
                url = f"{digits_server.url}/predict"
                async with session.post(url, data=digit(), headers=kind) as answer:
                    assert answer.status == 200
        for writer in held:
            writer.close()

    asyncio.run(everybody())
    end = time.monotonic() + 20
    while "in_flight 1\n" not in (text := digits_server.ask("/metrics").body.decode()):
        assert time.monotonic() < end, text
        time.sleep(0.05)


def test_a_request_may_come_in_pieces(digits_server: Server) -> None:
    body = digit()
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", digits_server.port)) as connection:
        for byte in f"{head}Content-Type: image/png\r\n\r\n".encode() + body:
            connection.sendall(bytes([byte]))
        assert b" 200 " in connection.recv(100)


def test_the_commands_of_the_readme_work(digits_server: Server, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    (tmp_path / "image.png").write_bytes(digit())
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^curl .*127\.0\.0\.1:8000.*$", readme, re.MULTILINE)
    assert commands
    for command in commands:
        line = command.replace("127.0.0.1:8000", f"127.0.0.1:{digits_server.port}")
        done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
        assert '"class": ' in done.stdout, (line, done)
