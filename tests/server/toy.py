"""A toy dialect of lines, and a transport that does what a test says."""

import asyncio
from collections.abc import Callable
from typing import Any

from braidlog.codec.errors import ProtocolError
from braidlog.server.net.connection_limits import SessionLimits
from braidlog.server.net.memory_budget import Budget
from braidlog.server.net.scheduler import Cancellable, Deferrable, FairScheduler, MustFinish, Parked
from braidlog.server.net.session import Session
from braidlog.server.net.session_owner import SessionOwner
from braidlog.wire.contract import NEED_DATA, NeedData, Refused


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for knows of no event
            await asyncio.sleep(0.001)


class ToyConnection:
    """Requests are lines. `!text` is refused, `!!text` is refused and ends the connection."""

    def __init__(self) -> None:
        self._buffer = b""
        self.frame_bytes_max = 1024 * 1024

    def receive(self, data: bytes) -> None:
        if data == b"break":
            raise AssertionError("receive is broken")
        self._buffer += data

    def single_frame(self, data: bytes) -> str | None:
        assert not self._buffer, "asked while something is held"
        if data == b"lone\n":
            raise AssertionError("single_frame is broken")
        is_plain = data.find(b"\n") == len(data) - 1 and data[:1] != b"!" and data != b"explode\n"
        return data[:-1].decode() if is_plain else None

    def next_event(self) -> str | Refused | NeedData:
        line, end, rest = self._buffer.partition(b"\n")
        if len(line) > self.frame_bytes_max:
            return self.turn_away("a line is too long")
        if not end:
            return NEED_DATA
        self._buffer = rest
        text = line.decode()
        if text == "explode":
            raise AssertionError("next_event is broken")
        if text.startswith("!"):
            return Refused(ProtocolError("not a request"), f"refused {text.lstrip('!')}", close=text.startswith("!!"))
        return text

    def respond(self, request: Any, answer: str) -> bytes | tuple[bytes, ...]:
        if answer == "unspeakable":
            raise AssertionError("respond is broken")
        if answer.startswith("pieces "):
            return answer[:7].encode(), answer[7:].encode(), b"\n"
        return answer.encode() + b"\n"

    def turn_away(self, reason: str) -> Refused:
        self._buffer = b""
        return Refused(ProtocolError(reason), f"turned away: {reason}", close=True)

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)


KINDS: dict[str, Callable[..., asyncio.Future[Any]]] = {
    "wait": asyncio.Future,
    "poll": Cancellable,
    "long": Deferrable,
    "owe": MustFinish,
    "park": Parked,
}


class ToyAdapter:
    """`wait x` is answered when the test says `adapter.release("x")`; `poll x` too, but may be ended while it waits, and so may
    `owe x`, whose client a node that stops answers first, `park x`, which ends when its client has closed, and `long x`, which
    answers "nothing" when its time is up.
    `soon x` is a coroutine that ends at once, `push x` one that pushes;
    what is asked otherwise is answered by a plain function."""

    dialect = "toy"

    def __init__(self, *, ordered: bool = True) -> None:
        self.ordered = ordered
        self.waiting: dict[str, asyncio.Future[Any]] = {}
        self.begun: list[str] = []
        self.ended: list[str] = []

    def open(self) -> ToyConnection:
        return ToyConnection()

    def operation(self, request: str) -> str:
        return request.partition(" ")[0]

    def throttled(self, answer: str, milliseconds: int) -> str:
        return f"{answer} after {milliseconds} ms" if milliseconds else answer

    def handle(self, conversation: Any, request: str) -> Any:
        if request == "no route":
            raise KeyError(request)
        verb = self.operation(request)
        if verb in KINDS or verb in ("soon", "push"):
            return self._serve(conversation, request)
        self.begun.append(request)
        try:
            return self._answer(request)
        finally:
            self.ended.append(request)

    async def _serve(self, conversation: Any, request: str) -> str | None:
        self.begun.append(request)
        verb, _, rest = request.partition(" ")
        try:
            if kind := KINDS.get(verb):
                self.waiting[rest] = kind(loop=asyncio.get_running_loop())
                return await self.waiting[rest] or "nothing"
            if verb == "push":
                await conversation.push(f"pushed {rest}\n".encode())
                return None
            return self._answer(rest)
        finally:
            self.ended.append(request)

    def _answer(self, request: str) -> str | None:
        verb, _, rest = request.partition(" ")
        if verb == "crash":
            raise AssertionError("a handler is broken")
        if verb == "fail":
            raise ProtocolError(rest)
        if verb == "silent":
            return None
        if verb == "large":
            return "x" * int(rest)
        if verb == "pieces":
            return f"pieces {'x' * int(rest)}"
        return "unspeakable" if verb == "unspeakable" else f"ok {request}"

    def failure(self, request: Any, error: Exception) -> str:
        return f"error {error}"

    def release(self, name: str, answer: str | None = None) -> None:
        self.waiting.pop(name).set_result(answer or f"ok {name}")


class ToyTransport(asyncio.Transport):
    """Takes everything at once, unless `stuck`: then it buffers, and calls back as asyncio's do."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Session | None = None
        self.writes: list[bytes] = []
        self.buffered = 0
        self.stuck = False
        self.high = 64 * 1024
        self.reading = True
        self.closed = self.aborted = False
        self.ended = False
        """It writes no more, and may still be read from."""

    @property
    def sent(self) -> str:
        return b"".join(self.writes).decode()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.1", 4242) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        assert not self.ended
        self.writes.append(bytes(data))
        if self.stuck:
            before, self.buffered = self.buffered, self.buffered + len(data)
            if before <= self.high < self.buffered and self.protocol is not None:
                self.protocol.pause_writing()

    def write_eof(self) -> None:
        self.ended = True

    def drain(self) -> None:
        was_full = self.buffered > self.high
        self.stuck, self.buffered = False, 0
        if was_full and self.protocol is not None:
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self._lose()

    def abort(self) -> None:
        self.aborted = True
        self._lose()

    def _lose(self) -> None:
        if not self.closed:
            self.closed = True
            assert self.protocol is not None
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Account(SessionOwner):
    def __init__(self) -> None:
        self.open: list[Session] = []

    def opened(self, session: Session) -> None:
        self.open.append(session)

    def closed(self, session: Session) -> None:
        self.open.remove(session)

    def address_for(self, session: Session) -> tuple[str, int]:
        return ("toy.example", 1)


class Scene:
    """One connection to play with."""

    def __init__(
        self,
        limits: SessionLimits | None = None,
        *,
        ordered: bool = True,
        fair_turns: FairScheduler | None = None,
        budget: Budget | None = None,
        **more: Any,
    ) -> None:
        self.adapter = ToyAdapter(ordered=ordered)
        self.account = Account()
        # By a clock that stands still: how fast this machine is changes nothing.
        self.account.fair_turns = fair_turns or FairScheduler(lambda: 0.0)
        self.session = Session(self.adapter, self.account, limits or SessionLimits(), budget or Budget(2**30), **more)
        self.transport = ToyTransport()
        self.transport.protocol = self.session
        self.session.connection_made(self.transport)

    def send(self, *lines: str) -> None:
        self.session.data_received("".join(f"{line}\n" for line in lines).encode())

    @property
    def sent(self) -> list[str]:
        return self.transport.sent.splitlines()
