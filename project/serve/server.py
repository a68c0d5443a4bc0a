"""The server from its first to its last moment: port, signals, log, the end."""

import asyncio
import errno
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

# aiohttp and not a framework on top of another server: it is well kept, has no dependency that
# installs a `lightning` script over ours, and brings multipart, bodies that are read piece by piece
# and a shutdown that waits for requests.
from aiohttp import web
from aiohttp.http import HttpProcessingError

from project.mistakes import UserError
from project.serve.app import Service, Serving
from project.serve.metrics import Metrics
from project.serve.pool import Pool
from project.serve.replica import Setup

_LINGER_S = 0.3  # after a signal: for connections that the system has accepted already
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Place:
    """Where to listen, and with how many replicas.

    Args:
        host: A name or an address of this machine.
        port: 0 takes any that is free.
        replicas: Copies of the model.
        log_level: Of what goes to stderr.
    """

    host: str
    port: int
    replicas: int
    log_level: str


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _is_ours(record: logging.LogRecord) -> bool:
    """Make a line of what is no HTTP, which aiohttp takes for an error of the server."""
    error = record.exc_info and record.exc_info[1]
    if isinstance(error, HttpProcessingError | web.RequestPayloadError):
        record.msg, record.args, record.exc_info = f"no HTTP: {error}", (), None
        record.levelno, record.levelname = logging.INFO, "INFO"
    return record.levelno >= logging.getLogger().level


def serve(place: Place, setup: Setup, serving: Serving) -> None:
    """Answer requests until a signal comes, then finish those that are running.

    Args:
        place: Where to listen.
        setup: What the replicas do.
        serving: What a request may ask for.

    Raises:
        UserError: If it cannot listen there, or the model cannot be loaded.
        RunFailed: If replicas die before they have loaded the model.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json())
    handler.addFilter(_is_ours)
    logging.basicConfig(level=place.log_level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    asyncio.run(_Server(place, setup, serving).run())
    print("Stopped", flush=True)


class _Server:
    def __init__(self, place: Place, setup: Setup, serving: Serving) -> None:
        counts = Metrics()
        limit = serving.limits.images
        self.place, self.serving = place, serving
        self.pool = Pool(setup, place.replicas, limit, serving.timeout_s, counts)
        self.service = Service(self.pool, serving, counts)
        self.told: asyncio.Event = asyncio.Event()

    async def run(self) -> None:
        """Serve from start to end."""
        runner = web.AppRunner(
            self.service.application(),
            access_log=None,  # the middleware's has what is sent to whom
            handler_cancellation=True,  # nobody computes for a client that has gone
            shutdown_timeout=self.serving.timeout_s + 5,
            # Seconds until a connection that says nothing or half a request is closed; longer
            # than the usual proxy's 60.
            keepalive_timeout=75,
        )
        await runner.setup()
        try:
            address = await self._listen(runner)
            self._take_signals()
            print("Loading  the model", flush=True)
            keeping = asyncio.create_task(self.pool.run())
            try:
                await self._until_told(keeping, address)
                await self._drain(runner.sites)
            finally:
                keeping.cancel()
                await asyncio.wait({keeping})
        finally:
            await runner.cleanup()

    async def _listen(self, runner: web.AppRunner) -> str:
        """Listen before the model is loaded: a port that is taken is known at once."""
        host, port = self.place.host, self.place.port
        try:
            await web.TCPSite(runner, host, port).start()
        except socket.gaierror as error:
            raise UserError(
                f"--host {host}: there is no such address ({error.strerror})."
            ) from None
        except PermissionError:
            raise UserError(
                f"--port {port} needs the rights of root; above 1023 none does."
            ) from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UserError(f"--host {host} --port {port}: {error.strerror}.") from None
            raise UserError(
                f"Port {port} of {host} is taken by another program.\n"
                f"Take another: --port {port % 65535 + 1}, or --port 0 for any that is free."
            ) from None
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{runner.addresses[0][1]}"

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)

    def _stop(self, number: signal.Signals) -> None:
        if self.told.is_set():
            self.pool.kill()
            print(f"Stopped at once by {number.name}.", file=sys.stderr, flush=True)
            os._exit(128 + number)
        self.told.set()

    async def _until_told(self, keeping: "asyncio.Task[None]", address: str) -> None:
        told = asyncio.create_task(self.told.wait())
        ready = asyncio.create_task(self.pool.ready.wait())
        try:
            await asyncio.wait({keeping, told, ready}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                self._greet(address)
                await asyncio.wait({keeping, told}, return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()  # it only ends with an error
        finally:
            told.cancel()
            ready.cancel()

    def _greet(self, address: str) -> None:
        about = self.pool.metadata
        whose = " ".join(
            str(about[key]) for key in ("model", "run", "checkpoint") if about.get(key)
        )
        print(f"Model    {whose}, {len(about['class_names'])} classes")
        print(f"Serving  {address}  (the API: {address}/docs)")
        if self.place.host not in _LOOPBACK:
            print("         to everybody who can reach this machine: there is no password")
        print("Stop     Ctrl-C", flush=True)

    async def _drain(self, sites: Collection[web.BaseSite]) -> None:
        """Answer what has been accepted, and take no more."""
        self.service.draining = True
        logging.getLogger(__name__).info("draining")
        await asyncio.sleep(_LINGER_S)
        for site in sites:
            await site.stop()
        # Connections that came last have not said yet what they want, and aiohttp would not listen
        # to the rest of a body once it is told to end.
        end = time.monotonic() + self.serving.timeout_s
        await asyncio.sleep(_LINGER_S)
        while self.service.counts.in_flight and time.monotonic() < end:
            await asyncio.sleep(_LINGER_S / 10)
