"""Interfaces between the server and an adapter. Does not handle: any dialect, any event loop."""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from types import CoroutineType
from typing import Any, Protocol

import msgspec

from braidlog.wire.contract import NeedData, Output, Refused


class Connection(Protocol):
    """A dialect's server connection: the methods of wire/contract.py."""

    def receive(self, data: bytes) -> None: ...

    def next_event(self) -> Any | Refused | NeedData: ...  # noqa: ANN401 - each dialect has its own messages

    def respond(self, request: Any, answer: Any) -> Output: ...  # noqa: ANN401

    def single_frame(self, data: bytes) -> Any | None:  # noqa: ANN401
        """Return the request if `data` is exactly one; None: call `receive`. A dialect may omit this method."""
        ...

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an incomplete frame."""
        ...

    frame_bytes_max: int
    """Maximum frame of the peer, smaller before authentication. May be changed at any time."""

    def turn_away(self, reason: str) -> Refused:
        """Return the error for a client that is not admitted; then the connection closes."""
        ...


class Relayed(msgspec.Struct, frozen=True):
    """An encoded answer of another node, sent unchanged."""

    data: bytes


class Stream(msgspec.Struct, frozen=True):
    """An answer of many frames. `run` pushes them; it starts after all earlier requests are answered and sent.

    It is cancelled when the connection ends. An error is sent in place of its next frame.
    """

    run: Callable[[], Coroutine[Any, Any, None]]
    holds_turn: bool
    """True: later requests are answered after its end. False: later answers may be sent between its frames, and an
    error of the stream closes the connection.
    """


class Conversation(Protocol):
    """One client, as seen by a handler."""

    @property
    def principal(self) -> str:
        """The authenticated user, or "anonymous"."""
        ...

    @principal.setter
    def principal(self, name: str) -> None: ...

    client_id: str
    """The client's software name, for quotas, in dialects that send it; empty until then."""

    @property
    def address(self) -> tuple[str, int]:
        """The address a client should connect to for this listener: as configured, else the one it connected to."""
        ...

    @property
    def peer(self) -> str: ...

    @property
    def is_closing(self) -> bool: ...

    @property
    def connection(self) -> Any:  # noqa: ANN401
        """The dialect's connection, for pushed frames."""
        ...

    is_forwarded: bool
    """Whether another node forwards requests of its client: a request that this node cannot serve fails and is not
    forwarded again.
    """

    last_words: Callable[[], bytes] | None
    """The last message for the client if the server stops during a wait: set by a stream while it runs."""

    def prove(self, principal: str, token: bytes) -> Coroutine[Any, Any, bool]:
        """Return whether the token is that principal's. During the check no other request of this client is served. A
        failure is answered late, then the connection closes. After success the frame limit is raised; the handler
        sets `principal`.
        """
        ...

    def verify_proof(self, holds: Callable[[], Coroutine[Any, Any, bool]]) -> Coroutine[Any, Any, bool]:
        """As `prove`, for a proof that is not a token: `holds` checks it when its turn comes."""
        ...

    def push(self, data: bytes) -> Awaitable[None]:
        """Send a frame outside the order of answers; returns when the client can receive the next one.

        Other clients are served between two pushes. A loop of pushes must end when `is_closing`.
        """
        ...

    def hold(self, more_bytes: int) -> None:
        """Add bytes that a waiting request holds beside its frame to the node's memory count; negative to release
        them.
        """
        ...

    def alone(self) -> AbstractContextManager[None]:
        """Do not start later requests of this client inside the block: for handlers that yield to the loop before
        they write.
        """
        ...

    def respond_in_any_order(self) -> None:
        """Allow answers in any order from this request on, the first that waits: the client matches them by id."""
        ...

    def end_waits(self, is_wanted: Callable[[Any], bool]) -> None:
        """End the long polls of these open requests: they answer with what they have."""
        ...

    def on_other_responses(self) -> Awaitable[None]:
        """Wait until no other request of this client is open."""
        ...

    def close(self) -> None:
        """Close after all answers were sent."""
        ...


async def answer_of(serve: Callable[..., Any], *asked: Any) -> Any:  # noqa: ANN401
    """Return the answer of `serve` (a `handle`, or a route's handler), awaiting it if needed."""
    served = serve(*asked)
    return await served if type(served) is CoroutineType else served


class Adapter(Protocol):
    """A dialect's adapter behind a listener."""

    dialect: str
    ordered: bool
    """Whether answers must be sent in the order of the requests."""

    def open(self) -> Connection: ...

    def operation(self, request: Any) -> str:  # noqa: ANN401
        """Return the request's name in metrics."""
        ...

    def handle(self, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
        """Serve one request: return its answer, or a coroutine if it may have to wait or works in slices.

        None: the request has no answer. A `Stream`: it has many.
        """
        ...

    def throttled(self, answer: Any, milliseconds: int) -> Any:  # noqa: ANN401
        """Add the throttle time of a client over its quota to an answer, if the dialect has a field for it."""
        ...

    def failure(self, request: Any, error: Exception) -> Any:  # noqa: ANN401
        """Return the dialect's answer for an error of the services (`BrokerError`, `StorageFault`, `ProtocolError`)."""
        ...
