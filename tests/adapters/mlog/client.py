"""A client over a real socket, as plain as can be, and a data folder prepared before a node opens it."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from tests.adapters.connected import Connected

from braidlog.broker.services import Services, lone_node, open_services
from braidlog.model.clock import SystemClock
from braidlog.model.settings import TopicSettings
from braidlog.security.authorization import Authorize
from braidlog.server.event_loop_runtime import EventLoopRuntime
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.group_commit import Flusher
from braidlog.tasks import Tasks
from braidlog.testing.server import ServerProcess
from braidlog.wire.contract import Refused
from braidlog.wire.mlog import messages as m
from braidlog.wire.mlog.connection import ClientConnection
from braidlog.wire.mlog.errors import RPCErrorResponse


class MlogClient(Connected):
    """One connection. Every wait has a deadline."""

    def __init__(self, server: ServerProcess | tuple[str, int]) -> None:
        address = server if isinstance(server, tuple) else server.address("mlog")
        super().__init__(address)
        self.connection = ClientConnection()

    def send(self, *messages: m.Request) -> None:
        self.socket.sendall(b"".join([self.connection.request(message) for message in messages]))

    def receive(self) -> Any:
        """The next message; EOFError where the server has closed."""
        event = self.next_event()
        assert not isinstance(event, Refused), event.error
        return event

    def ask(self, message: m.Request) -> Any:
        """The answer; an RPC error as it is."""
        self.send(message)
        return self.receive()

    def code(self, message: m.Request) -> int:
        answer = self.ask(message)
        assert isinstance(answer, RPCErrorResponse), answer
        assert answer.message
        return answer.code

    def create(self, topic: str) -> None:
        assert self.ask(m.CreateTopicRequest(topic)) == m.CreateTopicResponse(topic)

    def produce(self, topic: str, *values: bytes, acks: int = m.AckMode.LEADER) -> int:
        answer = self.ask(m.ProduceBatchRequest(topic, values, acks))
        assert isinstance(answer, m.ProduceBatchResponse), answer
        assert answer.count == len(values)
        return answer.base_offset

    def values(self, topic: str, offset: int = 0, count: int = 1000, consumer: str = "") -> list[bytes | None]:
        answer = self.ask(m.FetchBatchRequest(topic, consumer, offset, count))
        assert isinstance(answer, m.FetchBatchResponse), answer
        return [entry.value for entry in answer.entries or () if entry is not None]

    is_closed = Connected.is_closed_silently


def receive_all(connected: socket.socket) -> bytes:
    """Every byte until the server closes."""
    pieces = []
    with contextlib.suppress(ConnectionError):
        while piece := connected.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


def prepare(folder: Path, work: Callable[[Services], Awaitable[None]]) -> None:
    """Open the services over a folder, let `work` change things as another door would, and close them."""

    async def run() -> None:
        clock = SystemClock()
        data, flusher = DataFolder(OsDisk(), str(folder), clock), Flusher(clock)
        runtime, tasks = EventLoopRuntime(clock, flusher), Tasks()
        services = open_services(
            data,
            runtime,
            lone_node(data, runtime, "0", tasks.spawn),
            defaults=TopicSettings(),
            authorize=Authorize({}, []),
        )
        try:
            await work(services)
        finally:
            await tasks.stop()
            flusher.stop()
            services.hosting.close()
            services.metadata.close()
            data.release()

    asyncio.run(run())


@contextlib.contextmanager
def prepared_server(
    folder: Path, work: Callable[[Services], Awaitable[None]], *arguments: str
) -> Iterator[ServerProcess]:
    prepare(folder, work)
    with ServerProcess(folder, *arguments) as server:
        yield server
