"""What the server answers, with a pool that needs no process."""

import asyncio
import base64
import gzip
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, ClassVar

import pytest

aiohttp = pytest.importorskip("aiohttp")
from aiohttp import FormData  # noqa: E402
from aiohttp.test_utils import TestClient, TestServer  # noqa: E402

from project.serve.app import Service, Serving  # noqa: E402
from project.serve.metrics import Metrics  # noqa: E402
from project.serve.openapi import document  # noqa: E402
from project.serve.problems import busy  # noqa: E402
from project.serve.replica import Answer, Setup  # noqa: E402
from project.serve.uploads import Limits  # noqa: E402

JSON = {"Content-Type": "application/json"}
BINARY = {"Content-Type": "application/octet-stream"}
LIMIT = 1000
Client = TestClient[Any, Any]


class Pool:
    """Answers with a probability that its images' first bytes say; ``S`` is slow, ``B`` is bad."""

    setup = Setup(lambda: None, 1, 4, 0.0, 10**6)
    metadata: ClassVar = {"class_names": ["dark", "bright"]}
    replicas = 1
    load = 0

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self.files: list[bytes] = []
        self.full = False

    async def predict(self, files: list[bytes]) -> list[Answer]:
        if self.full:
            raise busy("full")
        self.files = files
        if files[0][:1] == b"S":
            await asyncio.sleep(60)
        if files[0][:1] == b"?":
            raise RuntimeError("a bug")
        return [
            Answer(0, None, 400, "it is bad")
            if not data or data[:1] == b"B"
            else Answer(0, [1 - data[0] / 255, data[0] / 255])
            for data in files
        ]


def ask(steps: Callable[..., Awaitable[None]], timeout_s: float = 5) -> Service:
    """Run a conversation with a service; its steps may take the pool and the service, too."""

    async def run() -> Service:
        pool = Pool()
        service = Service(pool, Serving(Limits(LIMIT, 3), timeout_s, 2), Metrics())
        server = TestServer(service.application(), handler_cancellation=True)
        async with TestClient(server) as client:
            await steps(*(client, pool, service)[: steps.__code__.co_argcount])
        return service

    return asyncio.run(run())


def post(status: int, timeout_s: float = 5, **kwargs: Any) -> Any:
    """Return the answer to one request, whose status is to be this."""
    found: list[Any] = []

    async def steps(client: Client, pool: Pool) -> None:
        answer = await client.post(kwargs.pop("path", "/predict"), **kwargs)
        content = await answer.json(content_type=None)
        assert answer.status == status, content
        if status != 200:
            assert answer.content_type == "application/problem+json"
            assert content["status"] == status
            assert content["type"] == "about:blank"
            assert content["title"]
        found.append({**content, "headers": answer.headers, "files": pool.files})

    ask(steps, timeout_s)
    return found[0]


def form(*files: bytes) -> FormData:
    data = FormData()
    for index, content in enumerate(files):
        data.add_field("image", content, filename=f"{index}.png")
    return data


def images(*values: Any) -> dict[str, Any]:
    return {"data": json.dumps({"images": values}), "headers": JSON}


@pytest.mark.parametrize("kind", ["image/png", "image/jpeg", "application/octet-stream"])
def test_a_raw_image_gets_its_classes_best_first(kind: str) -> None:
    answer = post(200, data=b"\xcc", headers={"Content-Type": kind})
    bright = {"class": "bright", "label": 1, "probability": 0.8}
    dark = {"class": "dark", "label": 0, "probability": 0.2}
    assert answer["predictions"] == [{"name": None, **bright, "top_k": [bright, dark]}]


def test_top_k_says_how_many_classes_are_named() -> None:
    answer = post(200, data=b"\xcc", headers=BINARY, path="/predict?top_k=1")
    assert len(answer["predictions"][0]["top_k"]) == 1


@pytest.mark.parametrize("top_k", ["0", "3", "-1", "x", "", "²", "9" * 5000])
def test_a_wrong_top_k_is_refused(top_k: str) -> None:
    assert "from 1 to 2" in post(400, data=b"\xcc", path=f"/predict?top_k={top_k}")["detail"]


def test_another_parameter_is_refused_with_the_one_there_is() -> None:
    detail = post(400, data=b"\xcc", headers=BINARY, path="/predict?topk=1")["detail"]
    assert "'topk'" in detail
    assert "top_k" in detail


def test_a_form_may_have_several_files() -> None:
    answer = post(200, data=form(b"\xff", b"\x00"))
    found = [(one["name"], one["class"]) for one in answer["predictions"]]
    assert found == [("0.png", "bright"), ("1.png", "dark")]


def test_json_has_files_in_base64_or_pixels() -> None:
    text = base64.b64encode(b"\xfftext").decode()
    answer = post(200, **images(text, f"data:image/png;base64,{text[:4]}\n{text[4:]}"))
    assert answer["files"] == [b"\xfftext"] * 2
    grey, colour = [[0, 1, 2], [3, 4, 255]], [[[0, 1, 2], [3, 4, 255]]]
    answer = post(200, **images(grey, [[[0], [1]]], colour))
    pixels = [b"P5 3 2 255\n\0\1\2\3\4\xff", b"P5 2 1 255\n\0\1", b"P6 2 1 255\n\0\1\2\3\4\xff"]
    assert answer["files"] == pixels


@pytest.mark.parametrize(
    ("image", "pointer"),
    [
        (1, "/images/0"),
        (None, "/images/0"),
        ("no base64!", "/images/0"),
        ([[0, 256]], "/images/0"),
        ([[0, -1]], "/images/0"),
        ([[0.5]], "/images/0"),
        ([[10**30]], "/images/0"),
        ([[True]], "/images/0"),
        ([["a"]], "/images/0"),
        ([[0, 1], [2]], "/images/0"),
        ([], "/images/0"),
        ([1, 2], "/images/0"),
        ([[[1, 2]]], "/images/0"),
        ([[]], "/images/0"),
    ],
)
def test_json_with_a_wrong_image_says_which(image: Any, pointer: str) -> None:
    assert post(422, **images(image))["pointer"] == pointer


@pytest.mark.parametrize("body", ["[]", "{}", '{"images": []}', '{"images": "a"}', "3", "null"])
def test_json_without_images_is_refused(body: str) -> None:
    assert '{"images"' in post(422, data=body, headers=JSON)["detail"]


@pytest.mark.parametrize("body", [b"{", b"\xff", b"", b"[" * 900])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    post(400, data=body, headers=JSON)


def test_an_empty_body_is_refused() -> None:
    for data in ({"data": b"", "headers": BINARY}, {"data": form(b"")}):
        assert "-F image=@FILE" in post(400, **data)["detail"]


def test_a_form_with_a_name_instead_of_a_file_is_told_how_to_send_one() -> None:
    data = FormData({"photo": "größe.png"}, default_to_multipart=True)
    detail = post(400, data=data)["detail"]
    assert "'photo' is text" in detail
    assert "-F image=@FILE" in detail


def test_a_file_in_a_form_needs_no_name() -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="i"\r\n\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = post(200, data=head + b"\x89PNG\r\n\r\n--x--\r\n", headers=kind)
    assert answer["files"] == [b"\x89PNG\r\n"]


@pytest.mark.parametrize("body", [b"", b"--x", b"--x\r\n\r\n", b"--x\r\nContent-Dis"])
def test_a_form_that_is_cut_off_is_refused(body: bytes) -> None:
    post(400, data=body, headers={"Content-Type": "multipart/form-data; boundary=x"})


def test_a_form_without_a_boundary_is_refused() -> None:
    answer = post(400, data=b"x", headers={"Content-Type": "multipart/form-data"})
    assert "-F image=@FILE" in answer["detail"]


def test_a_bad_image_is_named() -> None:
    answer = post(400, data=form(b"\xff", b"B"))
    assert answer["errors"] == [{"image": 1, "name": "1.png", "detail": "it is bad"}]
    assert "it is bad" in answer["detail"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "video/mp4"])
def test_another_type_is_refused_with_those_there_are(kind: str) -> None:
    answer = post(415, data=b"x", headers={"Content-Type": kind})
    assert "image/*" in answer["headers"]["Accept-Post"]


def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    async def steps(client: Client, pool: Pool) -> None:
        for kind in ("application/octet-stream", "application/json"):
            answer = await client.post("/predict", data=b"x" * 1001, headers={"Content-Type": kind})
            assert answer.status == 413
        answer = await client.post("/predict", data=form(b"x" * 600, b"x" * 600))
        assert answer.status == 413
        answer = await client.post("/predict", data=b"x" * 1000, headers=BINARY)
        assert answer.status == 200

    ask(steps)


@pytest.mark.parametrize("kind", ["application/octet-stream", "multipart/form-data; boundary=x"])
def test_a_chunked_body_is_counted_while_it_is_read(kind: str) -> None:
    async def talk(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n"
        writer.write(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        for chunk in [b"--x\r\n\r\n", *([b"x" * 500] * 6)]:  # and there might be more
            writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            await asyncio.sleep(0.01)  # else all are read at once, and the answer waits for more
        line = await reader.readline()
        writer.close()
        return line

    async def steps(client: Client, pool: Pool) -> None:
        assert b" 413 " in await talk(client.port)

    ask(steps)


def test_what_is_small_only_while_packed_is_refused() -> None:
    packed = gzip.compress(b"x" * 10**5)
    assert len(packed) < LIMIT
    post(413, data=packed, headers={**BINARY, "Content-Encoding": "gzip"})


def test_too_many_images_are_refused() -> None:
    post(413, data=form(*[b"x"] * 4))
    post(413, **images(*["eA=="] * 4))


def test_an_expected_continue_comes_only_if_the_body_is_wanted() -> None:
    async def talk(port: int, size: int, version: str = "1.1") -> list[bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /predict HTTP/{version}\r\nHost: x\r\nContent-Length: {size}\r\n"
        writer.write(head.encode() + b"Content-Type: image/png\r\nExpect: 100-continue\r\n\r\n")
        if version == "1.0":  # does not know what it means
            writer.write(b"x" * size)
        lines = [await reader.readline()]
        if b" 100 " in lines[0]:
            await reader.readline()
            writer.write(b"x" * size)
            lines.append(await reader.readline())
        writer.close()
        return [line.split()[1] for line in lines]

    async def steps(client: Client, pool: Pool) -> None:
        assert await talk(client.port, 1001) == [b"413"]
        assert await talk(client.port, 1000) == [b"100", b"200"]
        assert await talk(client.port, 1000, "1.0") == [b"200"]

    ask(steps)


@pytest.mark.slow  # it waits
def test_a_body_that_comes_too_slowly_is_answered_with_408() -> None:
    async def steps(client: Client, pool: Pool) -> None:
        async def slow() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x"
                await asyncio.sleep(0.02)

        answer = await client.post("/predict", data=slow(), headers=BINARY)
        assert answer.status == 408
        assert answer.headers["Connection"] == "close"

    ask(steps, timeout_s=0.2)


def test_a_prediction_that_takes_too_long_is_answered_with_504() -> None:
    assert "0.05 s" in post(504, timeout_s=0.05, data=b"S", headers=BINARY)["detail"]


def test_a_full_queue_is_answered_with_503_and_when_to_try_again() -> None:
    async def steps(client: Client, pool: Pool) -> None:
        pool.full = True
        answer = await client.post("/predict", data=b"x", headers=BINARY)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")

    ask(steps)


def test_more_requests_than_may_wait_are_refused_unread() -> None:
    async def steps(client: Client, pool: Pool, service: Service) -> None:
        send = partial(client.post, "/predict", headers=BINARY)
        waiting = [asyncio.create_task(send(data=b"S")) for _ in range(2)]
        while service.predicting < 2:
            await asyncio.sleep(0.005)
        answer = await send(data=b"x")
        assert (answer.status, "Retry-After" in answer.headers) == (503, True)
        assert pool.files == [b"S"]
        for task in waiting:
            task.cancel()

    ask(steps)


def test_a_client_that_has_gone_makes_room_for_others() -> None:
    async def steps(client: Client, pool: Pool) -> None:
        for _ in range(3):  # one more than are served at once
            with pytest.raises(asyncio.TimeoutError):
                await client.post(
                    "/predict", data=b"S", headers=BINARY, timeout=aiohttp.ClientTimeout(0.05)
                )
            await asyncio.sleep(0.01)
        answer = await client.post("/predict", data=b"x", headers=BINARY)
        assert answer.status == 200

    service = ask(steps)
    assert service.counts.requests["/predict", 499] == 3
    assert service.counts.in_flight == service.predicting == 0


def test_a_bug_is_answered_with_500_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    detail = post(500, data=b"?", headers=BINARY)["detail"]
    assert "a bug" not in detail
    assert "RuntimeError: a bug" in caplog.text


def test_wrong_paths_and_methods_are_told_as_problems() -> None:
    async def steps(client: Client, pool: Pool) -> None:
        answer = await client.get("/nothing")
        assert (answer.status, answer.content_type) == (404, "application/problem+json")
        answer = await client.get("/predict")
        assert (answer.status, answer.content_type) == (405, "application/problem+json")
        assert answer.headers["Allow"] == "POST"

    ask(steps)


def test_health_tells_starting_and_draining() -> None:
    async def steps(client: Client, pool: Pool) -> None:
        assert (await client.get("/health")).status == 200
        pool.ready.clear()
        assert (await client.get("/health")).status == 503
        answer = await client.post("/predict", data=b"x", headers=BINARY)
        assert (answer.status, "Retry-After" in answer.headers) == (503, True)

    ask(steps)


def test_what_comes_while_draining_is_answered_and_its_connection_closed() -> None:
    async def steps(client: Client, pool: Pool, service: Service) -> None:
        service.draining = True
        answer = await client.get("/health")
        assert (answer.status, answer.headers["Connection"]) == (503, "close")
        answer = await client.post("/predict", data=b"x", headers=BINARY)
        assert (answer.status, answer.headers["Connection"]) == (200, "close")

    ask(steps)


def test_info_names_model_and_limits() -> None:
    async def steps(client: Client, pool: Pool) -> None:
        content = await (await client.get("/info")).json()
        assert content["model"]["class_names"] == ["dark", "bright"]
        assert content["limits"]["body_bytes"] == LIMIT

    ask(steps)


def test_metrics_are_in_prometheus_format() -> None:
    async def steps(client: Client, pool: Pool) -> None:
        await client.post("/predict", data=b"x", headers=BINARY)
        await client.post("/predict", data=b"B", headers=BINARY)
        answer = await client.get("/metrics")
        text = await answer.text()
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        name = "lightning_serve"
        for line in (
            f'{name}_requests_total{{path="/predict",status="200"}} 1',
            f'{name}_requests_total{{path="/predict",status="400"}} 1',
            f'{name}_predict_seconds_bucket{{le="+Inf"}} 2',
            f"{name}_predict_seconds_count 2",
            f"{name}_in_flight 1",
            f"{name}_queue_images 0",
        ):
            assert line in text.splitlines()
        assert text.endswith("\n")

    ask(steps)


def test_histograms_count_up_to_their_bounds() -> None:
    counts = Metrics()
    for size in (1, 2, 3, 5000):
        counts.batch.observe(size)
    lines = list(counts.batch.lines())
    assert 'lightning_serve_batch_images_bucket{le="1"} 1' in lines
    assert 'lightning_serve_batch_images_bucket{le="2"} 2' in lines
    assert 'lightning_serve_batch_images_bucket{le="4"} 3' in lines
    assert 'lightning_serve_batch_images_bucket{le="1024"} 3' in lines
    assert 'lightning_serve_batch_images_bucket{le="+Inf"} 4' in lines


def test_the_document_has_every_path_and_the_answers_fit_it() -> None:
    described = document(LIMIT)
    schemas = described["components"]["schemas"]

    async def steps(client: Client, pool: Pool) -> None:
        paths = {route.resource.canonical for route in client.app.router.routes()}
        assert paths == set(described["paths"])
        assert await (await client.get("/openapi.json")).json() == described

    ask(steps)
    answer = post(200, data=b"\xcc", headers=BINARY)
    assert set(schemas["Predictions"]["required"]) <= set(answer)
    one = schemas["Predictions"]["properties"]["predictions"]["items"]
    assert set(answer["predictions"][0]) == set(one["required"]) == set(one["properties"])
    assert set(schemas["Problem"]["required"]) <= set(post(422, **images(1)))


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_need_nothing_from_elsewhere(path: str) -> None:
    async def steps(client: Client, pool: Pool) -> None:
        answer = await client.get(path)
        text = await answer.text()
        assert answer.content_type == "text/html"
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "https://" not in text
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]

    ask(steps)


def test_every_request_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "project.serve.app"):
        post(200, data=form(b"x", b"y"))
    (record,) = [r for r in caplog.records if r.name == "project.serve.app"]
    fields = record.__dict__["fields"]
    assert {"method": "POST", "path": "/predict", "status": 200, "images": 2}.items() <= (
        fields.items()
    )
    assert fields["ms"] >= 0
