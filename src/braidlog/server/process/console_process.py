"""Runs the console's process: starts it, answers its requests, restarts it if it dies.

Invariants: the node renders nothing: it sends snapshots and captured bytes as they are. The child holds the other end
of a socketpair: when this process ends in any way, the child reads end of file and exits. The admin port is bound here,
so it is known at the start and survives a restart of the child. Does not handle: HTTP, pages.

    node                                      console (python -m braidlog.console)
      listening sockets ──── inherited ────▶    HTTP: the admin port, and that of the schema registry
      socketpair        ◀── requests ──────▶    snapshots, watched connections
      private listeners ◀── Kafka, Mayfly ──    an ordinary client, with a token created at the start
       │ one for each node of the cluster: requests for other nodes are relayed over the nodes' port
"""

import asyncio
import contextlib
import logging
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from braidlog.model.actor import Actor
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.reporting.node_report import LINE_BYTES_MAX, NOBODY, Question, Reply, WatchedPiece, Welcome
from braidlog.server.config import ServerConfig
from braidlog.server.net.connection_tap import ConnectionTap
from braidlog.server.net.ports import close, listen
from braidlog.server.node_reporter import Reporter
from braidlog.server.schema_requests import SchemaQuestions
from braidlog.tasks import Tasks

log = logging.getLogger("braidlog.admin")

MODULE: Final = "braidlog.console"
AGAIN_SECONDS_MIN: Final = 0.5
AGAIN_SECONDS_MAX: Final = 30.0
GOODBYE_SECONDS_MAX: Final = 5.0
BIND_SECONDS_MAX: Final = 5.0
BIND_AGAIN_SECONDS: Final = 0.1
WATCHES_MAX: Final = 16
WAITING_MAX: Final = 256
"""Maximum requests that wait at a time."""
UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum captured bytes that the console has not read; further pieces are dropped."""

_encode = msgspec.json.Encoder().encode
_questions = msgspec.json.Decoder(Question)


async def bind(host: str, port: int) -> socket.socket:
    """Bind the admin port; clients wait in the backlog until the console serves it. Retries for a few seconds: the
    console of a node that was just killed may still hold it."""
    loop = asyncio.get_running_loop()
    until = loop.time() + BIND_SECONDS_MAX
    while True:
        try:
            bound, *others = listen(host, port, "the admin port")
        except BrokerError as error:
            if loop.time() >= until:
                raise BrokerError(error.reason, f"{error} (admin.port, admin.enabled)") from error
            await asyncio.sleep(BIND_AGAIN_SECONDS)
        else:
            close(others)
            return bound


def bind_registry(host: str, port: int) -> socket.socket | None:
    """Bind the schema registry's port; None if it is in use: the node then runs without a registry.

    Call it after `bind`: by then the console of a node that was just killed holds neither port.
    """
    try:
        bound, *others = listen(host, port, "the schema registry")
    except BrokerError as error:
        log.warning("there is no schema registry: %s (registry.port, registry.enabled)", error)
        return None
    close(others)
    return bound


def welcome_of(
    config: ServerConfig, version: str, urls: Mapping[str, str], secret: str, *, listeners: dict[str, str], now_ms: int
) -> Welcome:
    """Return a console's first message. `urls` and `secret`: of its private listeners; `listeners`: the public ones."""
    admin = config.admin
    return Welcome(
        node=config.node,
        version=version,
        data_dir=config.data_dir,
        started_ms=now_ms,
        topics_url=urls["kafka"],
        keys_url=urls["mayfly"],
        token_hash=admin.token.lower(),
        hosts=admin.hosts,
        secret=secrets.token_hex(32),
        disk_free_bytes_min=admin.disk_free_bytes_min,
        log_format=config.log.format,
        log_level=config.log.level,
        listeners=listeners,
        has_pages=admin.pages,
        door_secret=secret,
        sign_in=admin.sign_in,
        has_principals=config.knows_principals,
        read_only=admin.read_only,
        tls_cert=admin.tls.cert,
        tls_key=admin.tls.key or admin.tls.cert,
    )


def _audit(question: Question) -> bool:
    Actor(question.principal, question.address, question.door).write(question.words)
    return True


class Channel:
    """The connection to one run of the child: its requests and their answers."""

    def __init__(
        self, reporter: Reporter, schemas: SchemaQuestions, writer: asyncio.StreamWriter, now_ns: Callable[[], int]
    ) -> None:
        self._reporter = reporter
        self._schemas = schemas
        self._tasks = Tasks()
        self._waiting = 0
        self._writer = writer
        self._now_ns = now_ns
        self._watches: dict[int, ConnectionTap] = {}
        self._answers: dict[str, Callable[[Question], object]] = {
            "settings": lambda _: reporter.settings(),
            "connections": lambda _: reporter.connections({watch.session for watch in self._watches.values()}),
            "keys": lambda question: reporter.keys(question.prefix, question.position),
            "events": lambda question: reporter.events(question.topic, question.partition),
            "roles": lambda question: reporter.roles(question.principal),
            "audit": _audit,
            "unwatch": self._unwatch,
        }

    async def answer(self, line: bytes) -> None:
        question = _questions.decode(line)
        if question.ask == "watch":
            self._watch(question)
            return
        if question.ask in self._schemas.answers or question.node != NOBODY:
            self._answer_later(question)
            return
        try:
            if question.ask == "snapshot":
                found: object = await self._reporter.snapshot()
            else:
                found = self._answers[question.ask](question)
            self._send(Reply(question.id, found))
        except (BrokerError, StorageFault) as error:
            self._refuse(question, error)

    def _answer_later(self, question: Question) -> None:
        """Answer in a task: requests that wait for replicas or password checks must not delay others."""
        if self._waiting >= WAITING_MAX:
            self._send(Reply(question.id, error=f"{WAITING_MAX} questions are waited for; ask again"))
            return
        self._waiting += 1
        self._tasks.spawn(self._answer_slowly(question), question.ask)

    async def _answer_slowly(self, question: Question) -> None:
        answer = self._schemas.answers.get(question.ask, self._reporter.ask_node)
        try:
            self._send(Reply(question.id, await answer(question)))
        except (BrokerError, StorageFault) as error:
            self._refuse(question, error)
        finally:
            self._waiting -= 1

    def _refuse(self, question: Question, error: BrokerError | StorageFault) -> None:
        reason = error.reason.name if isinstance(error, BrokerError) else ""
        self._send(Reply(question.id, error=str(error), reason=reason))

    def _send(self, reply: Reply) -> None:
        if not self._writer.is_closing():
            self._writer.write(_encode(reply) + b"\n")

    def _watch(self, question: Question) -> None:
        session = self._reporter.find(question.connection)
        if session is None or session.outbox.transport is None:
            self._send(Reply(question.id, error=f"connection {question.connection} no longer exists"))
            return
        if any(watch.session is session for watch in self._watches.values()):
            self._send(Reply(question.id, error=f"connection {question.connection} is watched already"))
            return
        if len(self._watches) >= WATCHES_MAX:
            self._send(Reply(question.id, error=f"{WATCHES_MAX} connections are watched, that is the limit"))
            return

        def report(piece: WatchedPiece) -> bool:
            if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX and not piece.is_closed:
                return False
            self._send(Reply(question.id, event=piece))
            if piece.is_closed:
                self._watches.pop(question.id, None)
            return True

        watch = self._watches[question.id] = ConnectionTap(session, report, self._now_ns)
        watch.attach()

    def _unwatch(self, question: Question) -> bool:
        watch = self._watches.pop(question.connection, None)
        if watch is not None:
            watch.detach()
        return watch is not None

    async def close(self) -> None:
        await self._tasks.stop()
        for watch in self._watches.values():
            watch.detach()
        self._watches.clear()
        self._writer.close()


class ConsoleProcess:
    """Keeps the console's process running."""

    def __init__(
        self,
        bound: socket.socket,
        reporter: Reporter,
        schemas: SchemaQuestions,
        welcome: Welcome,
        now_ns: Callable[[], int],
        *,
        registry: socket.socket | None,
        doors: Callable[[], Awaitable[None]],
    ) -> None:
        self._bound = bound
        self._registry = registry
        self._reporter = reporter
        self._schemas = schemas
        self._welcome = welcome
        self._now_ns = now_ns
        self._close_doors = doors
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False
        self.starts = 0

    @property
    def port(self) -> int:
        return int(self._bound.getsockname()[1])

    @property
    def registry_port(self) -> int | None:
        """Port of the schema registry; None if it was in use or is disabled."""
        return None if self._registry is None else int(self._registry.getsockname()[1])

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def run(self) -> None:
        """Start the child, answer it, and restart it when it dies; the delay doubles unless it ran for a while."""
        pause = AGAIN_SECONDS_MIN
        loop = asyncio.get_running_loop()
        while not self._is_stopping:
            began = loop.time()
            code = await self._one_life()
            if self._is_stopping:
                return
            pause = AGAIN_SECONDS_MIN if loop.time() - began > AGAIN_SECONDS_MAX else min(pause * 2, AGAIN_SECONDS_MAX)
            log.error("the console has ended (exit code %s); it is started again in %.1f s", code, pause)
            await asyncio.sleep(pause)

    async def _one_life(self) -> int | None:
        ours, theirs = socket.socketpair()
        try:
            passed = [each.fileno() for each in (theirs, self._bound, self._registry) if each is not None]
            command = (sys.executable, "-m", MODULE, *map(str, passed))
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,  # the node's own output is one line, for its caller
                pass_fds=passed,
                start_new_session=True,  # Ctrl-C is for the node, which ends the child last
            )
        except OSError as error:
            ours.close()
            log.error("the console cannot be started: %s", error)  # noqa: TRY400 - the error is enough
            return None
        finally:
            theirs.close()
        self.starts += 1
        try:
            await self._converse(ours)
        finally:
            code = await self._end_child()
        return code

    async def _converse(self, ours: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES_MAX)
        channel = Channel(self._reporter, self._schemas, writer, self._now_ns)
        try:
            writer.write(_encode(self._welcome) + b"\n")
            with contextlib.suppress(ConnectionError):
                while line := await reader.readline():
                    await channel.answer(line)
                    await writer.drain()
        finally:
            await channel.close()

    async def _end_child(self) -> int | None:
        """Wait until the child exits, as its socket is closed; kill it if it hangs."""
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            async with asyncio.timeout(GOODBYE_SECONDS_MAX):
                return await process.wait()
        except (TimeoutError, asyncio.CancelledError):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            return await process.wait()

    async def stop(self) -> None:
        """Close the admin port and the private listeners, before the node's own. Cancelling `run` ends the child."""
        self._is_stopping = True
        self._bound.close()
        if self._registry is not None:
            self._registry.close()
        await self._close_doors()
