"""What the server offers an adapter, and what it asks of one.

Knows: shapes. Refuses to know: any dialect, any event loop.
"""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from types import CoroutineType
from typing import Any, Protocol

import msgspec

from braidlog.wire.contract import NeedData, Output, Refused


class Connection(Protocol):
    """A dialect's server connection: the three verbs of wire/contract.py."""

    def receive(self, data: bytes) -> None: ...

    def next_event(self) -> Any | Refused | NeedData: ...  # noqa: ANN401 - each dialect has its own messages

    def respond(self, request: Any, answer: Any) -> Output: ...  # noqa: ANN401

    def lone_request(self, data: bytes) -> Any | None:  # noqa: ANN401
        """The request that a read is, if it is a whole one and nothing else; None: then `receive` it. A dialect may lack it."""
        ...

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that is not whole yet."""
        ...

    frame_bytes_max: int
    """What a frame of the peer may have; less for one that has not said who it is. May be changed at any time."""

    def turn_away(self, reason: str) -> Refused:
        """What the dialect says to a client that is not let in, although it asked nothing; then the connection ends."""
        ...


class Relayed(msgspec.Struct, frozen=True):
    """An answer in bytes, as another node gave it: it leaves as it is."""

    data: bytes


class Stream(msgspec.Struct, frozen=True):
    """An answer in many frames. `run` pushes them; it begins when everything that was asked before is answered and sent.

    It is ended where it waits when the connection ends. An error takes the place of its next frame.
    """

    run: Callable[[], Coroutine[Any, Any, None]]
    holds_turn: bool
    """True: answers to later requests wait for its end. False: they leave between its frames, and an error of the stream is the
    last thing that the connection says."""


class Conversation(Protocol):
    """One client, as a handler sees it."""

    @property
    def principal(self) -> str:
        """Who this is: "anonymous" until it has said so."""
        ...

    @principal.setter
    def principal(self, name: str) -> None: ...

    client_id: str
    """What its program calls itself, in dialects that have a word for it: for quotas. Empty until it has said so."""

    @property
    def address(self) -> tuple[str, int]:
        """The address a client should dial to reach this listener: as configured, else the one it dialled itself."""
        ...

    @property
    def peer(self) -> str: ...

    @property
    def is_closing(self) -> bool: ...

    @property
    def connection(self) -> Any:  # noqa: ANN401
        """The dialect's own connection, for frames that are pushed."""
        ...

    is_forwarded: bool
    """Whether another node asks this for a client of its own: what is not served here is refused, and never handed on again."""

    last_words: Callable[[], bytes] | None
    """What the client is told if the server stops while it waits: set by a stream, for as long as it runs."""

    def prove(self, principal: str, token: bytes) -> Coroutine[Any, Any, bool]:
        """Whether the token is that principal's. Meanwhile nothing else of this client is served; who fails is told late, and
        then its connection ends. Who passes may send frames as large as anyone's; `principal` is for the handler to set."""
        ...

    def judge(self, holds: Callable[[], Coroutine[Any, Any, bool]]) -> Coroutine[Any, Any, bool]:
        """As `prove`, for a proof that is no token: `holds` looks at it, when its turn has come."""
        ...

    def push(self, data: bytes) -> Awaitable[None]:
        """Send a frame outside the order of answers; done when the client has room for the next one.

        Others are served between two pushes. Whoever pushes in a loop ends it when `is_closing`.
        """
        ...

    def hold(self, more_bytes: int) -> None:
        """A request that waits keeps so many bytes beside its frame, which count in the node's memory; less than zero when it
        does no more."""
        ...

    def alone(self) -> AbstractContextManager[None]:
        """While in it, no later request of this client is begun: for who lets others have their turns before it has written."""
        ...

    def answer_in_any_order(self) -> None:
        """From this request on, which is the first that waits: the client matches answers by their ids."""
        ...

    def end_waits(self, is_wanted: Callable[[Any], bool]) -> None:
        """Answer the long polls of these requests under way with what they have."""
        ...

    def others_answered(self) -> Awaitable[None]:
        """Done when no other request of this client is under way."""
        ...

    def close(self) -> None:
        """Close once everything that was answered is sent."""
        ...


async def answer_of(serve: Callable[..., Any], *asked: Any) -> Any:  # noqa: ANN401
    """What `serve` (a `handle`, or a route's handler) answers, at once or after a wait."""
    served = serve(*asked)
    return await served if type(served) is CoroutineType else served


class Adapter(Protocol):
    """A dialect behind a listener."""

    dialect: str
    ordered: bool
    """Whether answers must leave in the order of the requests."""

    def open(self) -> Connection: ...

    def operation(self, request: Any) -> str:  # noqa: ANN401
        """What a request is called where requests are counted."""
        ...

    def handle(self, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
        """Serve one request: its answer, or the coroutine that gives it where it may have to wait, or for what it does in steps.

        None means that the dialect gives no answer to it, a `Stream` that it gives many.
        """
        ...

    def throttled(self, answer: Any, milliseconds: int) -> Any:  # noqa: ANN401
        """The same answer to a client that is over its quota and not read from for so long, where the dialect can say so."""
        ...

    def failure(self, request: Any, error: Exception) -> Any:  # noqa: ANN401
        """The dialect's answer for an error of the services (`BrokerError`, `StorageFault`, `ProtocolError`)."""
        ...
