"""What the server answers, path by path."""

import asyncio
import heapq
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

import project
from project.serve import metrics, uploads
from project.serve.openapi import document
from project.serve.pool import Pool, failed
from project.serve.problems import Problem, busy

_log = logging.getLogger(__name__)
_PAGES = Path(__file__).with_name("pages")
# The pages bring all that they need; the browser is told to load nothing from elsewhere.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data: blob:",
    "X-Content-Type-Options": "nosniff",
}
# What the log says of the request that this task answers, besides what it says of each.
_noted: ContextVar[dict[str, Any]] = ContextVar("noted")
_CLIENT_GONE = 499  # nginx's word for it; nobody reads the answer
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Serving:
    """How requests are answered.

    Args:
        limits: Of one request.
        timeout_s: Seconds for a request to be read, and until it is answered.
        max_requests: Requests for predictions that are answered at once.
    """

    limits: uploads.Limits
    timeout_s: float
    max_requests: int


class Service:
    """The paths and their answers.

    Args:
        pool: Where the images go.
        serving: Limits.
        counts: What is counted.
    """

    def __init__(self, pool: Pool, serving: Serving, counts: metrics.Metrics) -> None:
        self.pool, self.serving, self.counts = pool, serving, counts
        self.draining = False
        self.predicting = 0

    def application(self) -> web.Application:
        """Return what aiohttp is to run."""
        app = web.Application(middlewares=[self._answer])
        # `100 Continue` is for bodies that will be read, which the handler decides.
        app.router.add_post("/predict", self.predict, expect_handler=_say_nothing)
        for path, handler in {
            "/health": self.health,
            "/info": self.info,
            "/metrics": self.metrics,
            "/openapi.json": self.openapi,
            "/docs": _page("docs.html"),
            "/": _page("index.html"),
        }.items():
            app.router.add_get(path, handler)
        return app

    async def predict(self, request: web.Request) -> web.Response:
        """Classify the images of the body."""
        if not self.pool.ready.is_set():
            raise busy("the model is being loaded", seconds=5)
        top_k = self._top_k(request)
        if self.predicting >= self.serving.max_requests:
            raise busy(f"{self.predicting} requests wait already, more may not (--queue)")
        self.predicting += 1
        try:
            return await self._predict(request, top_k)
        finally:
            self.predicting -= 1

    async def _predict(self, request: web.Request, top_k: int) -> web.Response:
        end = asyncio.get_running_loop().time() + self.serving.timeout_s
        seconds = f"{self.serving.timeout_s:g} s (--timeout_s)"
        try:
            async with asyncio.timeout_at(end):
                found = await uploads.read_uploads(request, self.serving.limits)
        except TimeoutError:
            raise Problem(408, f"the body has not arrived within {seconds}") from None
        _noted.get()["images"] = len(found)
        try:
            async with asyncio.timeout_at(end):
                answers = await self.pool.predict([upload.data for upload in found])
        except TimeoutError:
            raise Problem(504, f"no prediction within {seconds}") from None
        if problem := failed(answers, [upload.name for upload in found]):
            raise problem
        predictions = [
            {"name": upload.name or None, **self._prediction(answer.probs or [], top_k)}
            for upload, answer in zip(found, answers, strict=True)
        ]
        return _json({"predictions": predictions})

    def _prediction(self, probs: list[float], top_k: int) -> dict[str, Any]:
        names = self.pool.metadata["class_names"]
        best = heapq.nlargest(top_k, range(len(probs)), key=probs.__getitem__)
        top = [{"class": names[i], "label": i, "probability": round(probs[i], 6)} for i in best]
        return {**top[0], "top_k": top}

    def _top_k(self, request: web.Request) -> int:
        if others := sorted(request.query.keys() - {"top_k"}):
            raise Problem(400, f"/predict has no parameter {others[0][:40]!r}; it takes top_k")
        classes = len(self.pool.metadata["class_names"])
        text = request.query.get("top_k", str(min(5, classes)))
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= classes:
            raise Problem(400, f"top_k is a number from 1 to {classes}, got {text[:40]!r}")
        return int(text)

    async def health(self, request: web.Request) -> web.Response:
        """Say whether requests may be sent here."""
        if self.draining:
            raise busy("the server is about to end", seconds=5)
        if not self.pool.replicas or not self.pool.ready.is_set():
            raise busy("the model is being loaded", seconds=5)
        return _json({"status": "ready", "replicas": self.pool.replicas})

    async def info(self, request: web.Request) -> web.Response:
        """Say which model this is."""
        if not self.pool.metadata:
            raise busy("the model is being loaded", seconds=5)
        setup = self.pool.setup
        limits = {
            **asdict(self.serving.limits),
            "pixels": setup.max_pixels,
            "seconds": self.serving.timeout_s,
            "batch": setup.max_batch,
        }
        about = {"model": self.pool.metadata, "limits": limits, "replicas": self.pool.replicas}
        return _json({**about, "version": project.__version__})

    async def metrics(self, request: web.Request) -> web.Response:
        """Return the figures for Prometheus."""
        text = self.counts.text(self.pool.load, self.pool.replicas)
        return web.Response(body=text.encode(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def openapi(self, request: web.Request) -> web.Response:
        """Return the description of all this."""
        return _json(document(self.serving.limits.body_bytes))

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count and log a request; turn whatever goes wrong into an answer."""
        began, self.counts.in_flight = time.monotonic(), self.counts.in_flight + 1
        _noted.set({})
        status = _CLIENT_GONE
        try:
            response = await self._respond(request, handler)
            status = response.status
            if self.draining or status in (408, 413):
                response.force_close()
            return response
        finally:
            self.counts.in_flight -= 1
            self._note(request, status, time.monotonic() - began)

    async def _respond(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Problem as problem:
            _noted.get()["error"] = problem.detail
            return problem.response()
        except web.HTTPException as refusal:  # of the router
            allow = {"Allow": refusal.headers["Allow"]} if "Allow" in refusal.headers else {}
            detail = f"there is no {request.method} {request.path}; see /docs"
            return Problem(refusal.status, detail, allow).response()
        except (web.RequestPayloadError, ConnectionError) as broken:
            return Problem(400, f"the body cannot be read: {broken}").response()
        except Exception:
            _log.exception("a bug, or a broken installation")
            return Problem(500, "an error in the server; its log has more").response()

    def _note(self, request: web.Request, status: int, seconds: float) -> None:
        known = request.match_info.route.resource
        path = known.canonical if known is not None else "other"
        self.counts.requests[path, status] += 1
        if path == "/predict":
            self.counts.latency.observe(seconds)
        fields = {
            "method": request.method,
            "path": request.path,
            "status": status,
            "ms": round(seconds * 1000, 1),
            "bytes": request.content_length,
            "client": request.remote,
            **_noted.get(),
        }
        shown = {key: value for key, value in fields.items() if value is not None}
        level = logging.WARNING if status >= 500 else logging.INFO
        _log.log(level, "request", extra={"fields": shown})


async def _say_nothing(request: web.Request) -> None:
    return None


def _json(content: dict[str, Any]) -> web.Response:
    return web.json_response(content, dumps=lambda value: json.dumps(value, ensure_ascii=False))


def _page(name: str) -> Handler:
    text = (_PAGES / name).read_text("utf-8")

    async def show(request: web.Request) -> web.Response:
        return web.Response(text=text, content_type="text/html", headers=_PAGE_HEADERS)

    return show
