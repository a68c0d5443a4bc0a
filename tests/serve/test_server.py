"""Servers as processes: signals, deaths, ports, crowds. Their model is a stub."""

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

aiohttp = pytest.importorskip("aiohttp")

from serve_process import Server, gone, many  # noqa: E402

pytestmark = pytest.mark.slow
Start = Callable[..., Server]
BINARY = "application/octet-stream"


def in_background(server: Server, count: int, body: bytes = b"\x01") -> Callable[[], list[int]]:
    """Send requests while the test goes on; call the result for their statuses."""
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.extend(many(f"{server.url}/predict", count, body))
    )
    thread.start()

    def wait() -> list[int]:
        thread.join(60)
        return found

    return wait


def wait_for(server: Server, text: str) -> None:
    end = time.monotonic() + 30
    while text not in server.ask("/metrics").body.decode():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_a_signal_ends_it_when_all_that_was_asked_is_answered(
    stub_server: Start, number: signal.Signals
) -> None:
    server = stub_server(seconds=0.4, max_batch=4)
    replicas = server.replicas()
    statuses = in_background(server, 16)
    wait_for(server, "lightning_serve_queue_images 16")
    server.process.send_signal(number)
    time.sleep(0.1)
    reply = server.ask("/health")
    assert (reply.status, reply.headers["Connection"]) == (503, "close")
    assert server.process.wait(30) == 0
    assert statuses() == [200] * 16
    with pytest.raises(ConnectionRefusedError):
        server.ask("/health")
    assert gone(replicas)
    assert server.log()  # every line is JSON
    assert server.out.startswith("Loading  the model\nModel ")
    assert server.out.endswith("\nStop     Ctrl-C\nStopped\n")


def test_a_signal_in_the_midst_of_a_crowd_loses_no_request(stub_server: Start) -> None:
    """Clients ask again and again, on connections that are kept, until they are told to go."""
    server = stub_server(seconds=0.01, replicas=2)
    outcomes: Counter[str] = Counter()

    async def client(session: aiohttp.ClientSession) -> None:
        while True:
            try:
                async with session.post(f"{server.url}/predict", data=b"\x01") as answer:
                    await answer.read()
                    outcomes[str(answer.status)] += 1
                    if answer.headers.get("Connection") == "close":
                        return
            except aiohttp.ClientConnectorError:  # nobody listens any more
                outcomes["refused"] += 1
                return
            except aiohttp.ClientError as error:
                outcomes[f"lost: {error!r}"] += 1
                return

    async def crowd() -> None:
        headers = {"Content-Type": BINARY}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
            clients = [asyncio.create_task(client(session)) for _ in range(40)]
            await asyncio.sleep(1)
            server.process.send_signal(signal.SIGTERM)
            await asyncio.gather(*clients)

    asyncio.run(crowd())
    assert server.process.wait(30) == 0
    assert set(outcomes) <= {"200", "refused"}, outcomes
    assert outcomes["200"] > 40


def test_a_second_signal_ends_it_at_once(stub_server: Start) -> None:
    server = stub_server(seconds=0)
    replicas = server.replicas()
    statuses = in_background(server, 1, b"H")
    wait_for(server, "lightning_serve_queue_images 1")
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert server.process.poll() is None
    began = time.monotonic()
    assert server.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert time.monotonic() - began < 10  # and not the 20 s that the request may take
    assert gone(replicas)
    assert statuses() == [0]


def test_a_body_on_its_way_when_the_signal_comes_is_answered(stub_server: Start) -> None:
    server = stub_server()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: {BINARY}\r\n"
        connection.sendall(f"{head}Content-Length: 4\r\n\r\n".encode() + b"\x01")
        wait_for(server, "lightning_serve_in_flight 2")
        server.process.send_signal(signal.SIGTERM)
        for _ in range(3):
            time.sleep(0.5)
            connection.sendall(b"x")
        assert b"HTTP/1.1 200" in connection.recv(1000)
    assert server.process.wait(30) == 0


def test_no_replica_outlives_a_server_that_is_killed(stub_server: Start) -> None:
    server = stub_server(replicas=2)
    replicas = server.replicas()
    assert len(replicas) == 2
    server.process.kill()
    server.process.wait()
    assert gone(replicas)


def test_a_dead_replica_is_replaced_and_its_requests_are_answered(stub_server: Start) -> None:
    server = stub_server(seconds=0.3, replicas=2, max_batch=2)
    first = server.replicas()
    statuses = in_background(server, 12)
    wait_for(server, "lightning_serve_queue_images 12")
    victim = subprocess.run(["kill", "-KILL", str(first[0])], check=True)
    assert victim.returncode == 0
    assert set(statuses()) == {200, 503}
    assert 1 <= statuses().count(503) <= 4  # one batch and the next
    wait_for(server, "lightning_serve_replicas 2")
    wait_for(server, "lightning_serve_replica_restarts_total 1")
    assert server.ask("/predict", b"\x01").status == 200
    assert "a replica died (SIGKILL)" in server.err
    assert server.end() == 0


@pytest.mark.parametrize("poison", [b"D", b"K"], ids=["decoding", "predicting"])
def test_an_image_that_kills_a_replica_does_not_kill_the_server(
    stub_server: Start, poison: bytes
) -> None:
    server = stub_server()
    reply = server.ask("/predict", poison)
    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
    assert server.ask("/predict", b"\x01").status == 200  # waits for the new one
    assert server.end() == 0


def test_a_replica_that_hangs_is_replaced(stub_server: Start) -> None:
    server = stub_server(timeout_s=2)
    assert server.ask("/predict", b"H").status == 504
    wait_for(server, "lightning_serve_replica_restarts_total 1")
    wait_for(server, "lightning_serve_replicas 1")
    assert server.ask("/predict", b"\x01").status == 200
    assert server.end() == 0


def test_while_there_are_other_replicas_one_that_cannot_be_replaced_is_tried_again(
    stub_server: Start, tmp_path: Path
) -> None:
    server = stub_server(only=str(tmp_path / "lost"), replicas=2)
    (tmp_path / "lost").touch()
    subprocess.run(["kill", "-KILL", str(server.replicas()[0])], check=True)
    end = time.monotonic() + 30
    while "cannot be started again" not in server.err:
        assert time.monotonic() < end
        assert server.ask("/predict", b"\x01").status in (200, 503)
    assert "FileExistsError" in server.err
    assert server.ask("/predict", b"\x01").status == 200
    (tmp_path / "lost").unlink()
    wait_for(server, "lightning_serve_replicas 2")
    assert server.end() == 0


def test_if_no_replica_can_be_replaced_the_server_ends_and_answers_what_waits(
    stub_server: Start, tmp_path: Path
) -> None:
    server = stub_server(only=str(tmp_path / "lost"), seconds=0.5, max_batch=1)
    (tmp_path / "lost").touch()
    statuses = in_background(server, 6)
    wait_for(server, "lightning_serve_queue_images 6")
    subprocess.run(["kill", "-KILL", str(server.replicas()[0])], check=True)
    assert server.process.wait(60) == 1
    assert "FileExistsError" in server.err
    assert set(statuses()) <= {200, 503}
    assert len(statuses()) == 6


def test_a_model_that_kills_its_process_while_it_is_loaded_ends_the_server(
    stub_server: Start,
) -> None:
    server = stub_server(only="broken", wait=False)
    assert server.process.wait(60) == 1
    assert "was killed by SIGKILL while it loaded the model" in server.err
    assert "Traceback" not in server.err


def test_a_signal_while_the_model_is_loaded_ends_it(stub_server: Start) -> None:
    server = stub_server(wait=False)
    end = time.monotonic() + 60
    while not server.replicas() and time.monotonic() < end:
        time.sleep(0.05)
    replicas = server.replicas()
    assert server.end(signal.SIGINT) == 0
    assert gone(replicas)
    assert server.out == "Loading  the model\nStopped\n"


def test_a_model_that_fails_is_answered_with_500_and_logged(stub_server: Start) -> None:
    server = stub_server()
    assert server.ask("/predict", b"E").status == 500
    assert any("RuntimeError: the stub fails" in line["message"] for line in server.log())
    assert server.ask("/predict", b"\x01").status == 200
    assert server.ask("/predict", b"B").json["detail"] == "image: it is bad"
    reply = server.ask("/predict", b"N")
    assert (reply.status, "NaN" in reply.json["detail"]) == (500, True)


def test_what_is_no_http_is_refused_and_a_line_of_the_log(stub_server: Start) -> None:
    server = stub_server()
    for sent in (b"\x16\x03\x01 hello\r\n\r\n", b"GET / HTTP/1.1\r\nHost : x\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), 10) as client:
            client.sendall(sent)
            assert b" 400 " in client.recv(100)
    reply = server.ask("/predict", b"no gzip", **{"Content-Encoding": "gzip"})
    assert reply.status == 400
    assert server.end() == 0
    assert "Traceback" not in server.err
    assert {line["level"] for line in server.log()} == {"info"}


def test_what_has_queued_up_goes_through_the_model_together(stub_server: Start) -> None:
    server = stub_server(seconds=0.2, max_batch=8)
    assert many(f"{server.url}/predict", 33, b"\x01") == [200] * 33
    text = server.ask("/metrics").body.decode()
    assert 'batch_images_bucket{le="8"} ' in text
    batches = int(text.split("batch_images_count ")[1].split()[0])
    assert batches <= 33 / 8 + 3  # the first may be small, and those whose images come late


def test_a_full_queue_is_answered_with_503(stub_server: Start) -> None:
    server = stub_server(seconds=0.3, queue=8, max_batch=2)
    counts = Counter(many(f"{server.url}/predict", 30, b"\x01"))
    assert set(counts) == {200, 503}
    assert counts[200] >= 8


@pytest.mark.parametrize("taken", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("wanted", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_is_taken_is_told_with_the_option(
    taken: str, wanted: str, tmp_path: Path, digits_run: object
) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as http.server has it
        other.bind((taken, 0))
        other.listen()
        port = str(other.getsockname()[1])
        run = str(getattr(digits_run, "path"))  # noqa: B009
        args = ["-m", "project", "serve", "--run", run, "--port", port, "--host", wanted]
        done = subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"Port {port} of {wanted} is taken" in done.stderr
    assert "--port" in done.stderr
    assert len(done.stderr.splitlines()) <= 3
