"""The replicas of the model as the server sees them, and the queue in front of them."""

import asyncio
import contextlib
import itertools
import logging
import os
import pickle
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from project.mistakes import RunFailed, UserError
from project.serve import replica as child
from project.serve.metrics import Metrics
from project.serve.problems import Problem, busy
from project.serve.replica import HEAD, Answer, Answers, Failed, Setup, pack

_log = logging.getLogger(__name__)
_AGAIN_S = 5  # until a replica that could not be replaced is tried again


@dataclass(eq=False)
class _Image:
    number: int
    data: bytes
    answer: "asyncio.Future[Answer]"


class _Replica:
    """A process that runs the model.

    Args:
        process: It.
        reader: From it.
        writer: To it.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process, self.reader, self.writer = process, reader, writer
        self.sent: dict[int, _Image] = {}
        self.heard = 0.0  # when it last showed that it is alive, or got its first image

    @classmethod
    async def launch(cls, setup: Setup) -> Self:
        """Start one; it then loads the model."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as on_failure:
            on_failure.callback(ours.close)
            environment = {
                **os.environ,
                "OMP_NUM_THREADS": str(setup.threads),
                "PYTHONPATH": os.pathsep.join(sys.path),  # classes are found as they are here
            }
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", child.__name__, str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=2,  # what somebody's network prints is not this command's output
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,  # a Ctrl-C is for the server, which drains
            )
            on_failure.pop_all()
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(pack(setup))
        return cls(process, reader, writer)

    async def receive(self) -> Any:  # noqa: ANN401
        """Return its next message, or None if it is dead."""
        try:
            size = HEAD.unpack(await self.reader.readexactly(HEAD.size))[0]
            return pickle.loads(await self.reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def send(self, image: _Image, now: float) -> None:
        """Hand over an image, without waiting: the pool never hands over many."""
        if not self.sent:
            self.heard = now
        self.sent[image.number] = image
        self.writer.write(pack((image.number, image.data)))

    async def end(self) -> int:
        """Let it go, and return its exit code."""
        self.writer.close()  # it leaves when it sees that
        self.kill()
        return await self.process.wait()

    def kill(self) -> None:
        """End it at once."""
        # Not process.kill(), which may take the exit code of a dead one from who waits for it.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)


class Pool:
    """Replicas, and the images that wait for one.

    Args:
        setup: What each replica is told.
        replicas: How many there are.
        limit: Images that wait or are worked on, at most.
        timeout_s: Seconds after which a replica that says nothing is taken for dead.
        metrics: Where batches are counted.
    """

    def __init__(
        self, setup: Setup, replicas: int, limit: int, timeout_s: float, metrics: Metrics
    ) -> None:
        self.setup, self.count, self.limit = setup, replicas, limit
        self.timeout_s, self.metrics = timeout_s, metrics
        self.ready = asyncio.Event()
        self.metadata: dict[str, Any] = {}
        self._numbers = itertools.count()
        self._waiting: deque[_Image] = deque()
        self._live: list[_Replica] = []  # those that have loaded the model
        self._all: set[_Replica] = set()

    @property
    def replicas(self) -> int:
        """Those that are ready."""
        return len(self._live)

    @property
    def load(self) -> int:
        """Images that wait or are worked on."""
        return len(self._waiting) + sum(len(replica.sent) for replica in self._live)

    async def run(self) -> None:
        """Keep the replicas alive until cancelled.

        Raises:
            UserError: If the model cannot be loaded, by a mistake of the user's.
            RunFailed: If a replica dies before it has loaded the model, and no other is left.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.count):
                    group.create_task(self._keep_one())
        except ExceptionGroup as errors:  # the replicas fail for the same reason
            raise errors.exceptions[0] from None
        finally:
            await self._end()

    def kill(self) -> None:
        """End all replicas at once."""
        for replica in self._all:
            replica.kill()

    async def predict(self, files: Sequence[bytes]) -> list[Answer]:
        """Have images classified.

        Args:
            files: Their bytes.

        Raises:
            Problem: If too many wait already, or the replica dies.
        """
        if self.load + len(files) > self.limit:
            raise busy(f"{self.load} images wait already, more than {self.limit} may not (--queue)")
        loop = asyncio.get_running_loop()
        images = [_Image(next(self._numbers), data, loop.create_future()) for data in files]
        self._waiting.extend(images)
        self._pump()
        try:
            return await asyncio.gather(*(image.answer for image in images))
        finally:
            for image in images:  # if the client has gone or has waited too long
                image.answer.cancel()
                with contextlib.suppress(ValueError):
                    self._waiting.remove(image)
            self._kill_stuck()

    def _pump(self) -> None:
        """Hand images over: to a replica, those of the batch it works on and of the next."""
        now = asyncio.get_running_loop().time()
        while self._waiting and self._live:
            replica = min(self._live, key=lambda replica: len(replica.sent))
            if len(replica.sent) >= 2 * self.setup.max_batch:
                return
            replica.send(self._waiting.popleft(), now)

    async def _keep_one(self) -> None:
        while True:
            replica = await _Replica.launch(self.setup)
            self._all.add(replica)
            try:
                await self._check(replica, await replica.receive())
            except (UserError, RunFailed) as error:
                await replica.end()
                self._all.remove(replica)
                if not (self.ready.is_set() and self._all):
                    raise
                _log.error("a replica cannot be started again: %s", error)
                await asyncio.sleep(_AGAIN_S)
                continue
            self._live.append(replica)
            if self.replicas == self.count:
                self.ready.set()
            self._pump()
            while (message := await replica.receive()) is not None:
                self._take(replica, message)
            self._live.remove(replica)
            self._refuse(replica.sent.values(), "the model's process died; try again")
            code = await replica.end()
            self._all.remove(replica)
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            _log.error("a replica died (%s) and is started again", how)
            self.metrics.restarts += 1

    async def _check(self, replica: _Replica, message: dict[str, Any] | Failed | None) -> None:
        if isinstance(message, dict):
            self.metadata = message
        elif message is None:
            code = await replica.end()
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended ({code})"
            hint = " (is there enough memory? --replicas 1)" if code == -signal.SIGKILL else ""
            raise RunFailed(f"The model's process {how} while it loaded the model{hint}.")
        else:
            raise UserError(message.message) if message.is_mistake else RunFailed(message.message)

    def _take(self, replica: _Replica, message: Answers) -> None:
        replica.heard = asyncio.get_running_loop().time()
        if message.error:
            _log.error("%s", message.error)
        if message.batch:
            self.metrics.batch.observe(message.batch)
        for answer in message.answers:
            image = replica.sent.pop(answer.number)
            if not image.answer.done():
                image.answer.set_result(answer)
        self._pump()

    def _refuse(self, images: Iterable[_Image], reason: str) -> None:
        for image in images:
            if not image.answer.done():
                image.answer.set_exception(busy(reason))

    def _kill_stuck(self) -> None:
        now = asyncio.get_running_loop().time()
        for replica in self._live:
            # The request that notices has waited for less: it was read first.
            if replica.sent and now - replica.heard > 0.9 * self.timeout_s:
                _log.error("a replica has said nothing for %.0f s", now - replica.heard)
                replica.kill()

    async def _end(self) -> None:
        self.ready.clear()
        self.kill()
        for images in (self._waiting, *(replica.sent.values() for replica in self._live)):
            self._refuse(images, "the server ends")
        await asyncio.gather(*(replica.end() for replica in self._all))


def failed(answers: Sequence[Answer], names: Sequence[str]) -> Problem | None:
    """Return what is wrong with a request's images, if there is something.

    Args:
        answers: One for each image.
        names: What the client calls them.
    """
    errors = [
        {"image": index, "name": name, "detail": answer.reason}
        for index, (answer, name) in enumerate(zip(answers, names, strict=True))
        if answer.probs is None
    ]
    if not errors:
        return None
    status = max(answer.status for answer in answers)
    first = errors[0]
    where = f"{first['name'] or 'image'}: " if len(answers) == 1 else f"image {first['image']}: "
    return Problem(status, f"{where}{first['detail']}", errors=errors)
