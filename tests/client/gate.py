"""A gate in front of Kafka's door: it lets messages through one by one, and stops at the one that was chosen.

A test says at which request, or at which answer, everything stops; waits until it is there; does what it came for (kills a
driver, a worker, a node) and opens the gate again, or closes it on the connection. What was stopped at its request has not
reached the server; what was stopped at its answer has, and nobody else knows it.
"""

import contextlib
import socket
import struct
import threading
from collections import deque
from typing import Literal, Self

from braidlog.wire.kafka.apis import Key

WAIT_SECONDS_MAX = 240

Side = Literal["request", "answer"]


class Stop:
    """One place to stop at: the `nth` message of an API from now on."""

    def __init__(self, key: Key, nth: int, side: Side) -> None:
        self.key = key
        self.side = side
        self._left = nth
        self._reached = threading.Event()
        self._open = threading.Event()

    def counts(self, key: int, side: Side) -> bool:
        """Whether this message is the one."""
        if key != self.key or side != self.side or self._left == 0:
            return False
        self._left -= 1
        return self._left == 0

    def hold(self) -> None:
        self._reached.set()
        assert self._open.wait(WAIT_SECONDS_MAX), f"the gate was left closed at {self.key!r}"

    def wait(self) -> None:
        """Until the message has come, and stands at the gate."""
        assert self._reached.wait(WAIT_SECONDS_MAX), f"no {self.key!r} has come to the gate"

    @property
    def is_reached(self) -> bool:
        return self._reached.is_set()

    def open(self) -> None:
        self._open.set()


class PartitionLocks:
    """Listens on a free port before there is a server; `server_port` says where to go on to."""

    def __init__(self, server_port: int = 0) -> None:
        self.server_port = server_port
        self.seen: dict[int, int] = {}
        """API → requests that came."""
        self._stops: list[Stop] = []
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._closed = False
        self._start(self._accept)

    @property
    def settings(self) -> tuple[str, ...]:
        """Arguments of a node that sends its clients through here."""
        told = {"advertised_host": "127.0.0.1", "advertised_port": self.port}
        return tuple(word for name, value in told.items() for word in ("--set", f"listeners.kafka.{name}={value}"))

    def stop_at(self, key: Key, nth: int = 1, side: Side = "request") -> Stop:
        stop = Stop(key, nth, side)
        with self._lock:
            self._stops.append(stop)
        return stop

    def told(self, key: int, frame: bytes) -> bytes:
        """What a client is told of an answer."""
        return frame

    def cut(self) -> None:
        """Close on everyone who is connected."""
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        for stop in self._stops:
            stop.open()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(WAIT_SECONDS_MAX)
            assert not thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                client.close()
                continue
            asked: deque[int] = deque()
            with self._lock:
                self._sockets |= {client, server}
            self._start(self._serve, client, server, asked)

    def _serve(self, client: socket.socket, server: socket.socket, asked: deque[int]) -> None:
        back = threading.Thread(target=self._back, args=(server, client, asked), daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            self._forward(client, server, asked)
        for each in (client, server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        back.join(WAIT_SECONDS_MAX)
        with self._lock:
            self._sockets -= {client, server}
        client.close()
        server.close()

    def _forward(self, client: socket.socket, server: socket.socket, asked: deque[int]) -> None:
        while (frame := _frame(client)) is not None:
            (key,) = struct.unpack_from(">h", frame, 4)
            with self._lock:
                self.seen[key] = self.seen.get(key, 0) + 1
            self._hold(key, "request")
            asked.append(key)
            server.sendall(frame)

    def _back(self, server: socket.socket, client: socket.socket, asked: deque[int]) -> None:
        with contextlib.suppress(OSError):
            while (frame := _frame(server)) is not None:
                key = asked.popleft()
                self._hold(key, "answer")
                client.sendall(self.told(key, frame))
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _hold(self, key: int, side: Side) -> None:
        with self._lock:
            found = [stop for stop in self._stops if stop.counts(key, side)]
        for stop in found:
            stop.hold()


def _frame(end: socket.socket) -> bytes | None:
    head = _exactly(end, 4)
    if head is None:
        return None
    body = _exactly(end, int.from_bytes(head, "big"))
    return None if body is None else head + body


def _exactly(end: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        data = end.recv(min(size - len(found), 1 << 16))
        if not data:
            return None
        found += data
    return bytes(found)
