"""Captures the traffic of one open connection for a while.

Invariants: a connection without a tap pays nothing. Capture starts between two requests, when nothing is in progress:
otherwise no observer could find the start of a message. A slow observer loses pieces, and learns how many bytes were
lost.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from braidlog.model.reporting.node_report import WATCHED_BYTES_MAX, WatchedPiece
from braidlog.server.net.session import Session
from braidlog.wire.observer import Side

Report = Callable[[WatchedPiece], bool]
"""Called with each piece; returns whether there was room for it."""
_CLIENT: Final = Side.CLIENT.value
_SERVER: Final = Side.SERVER.value


class ConnectionTap(asyncio.Protocol):
    """Replaces a session at its transport: forwards every call, and reports the bytes."""

    def __init__(self, session: Session, report: Report, now_ns: Callable[[], int]) -> None:
        assert session.outbox.transport is not None
        self.session = session
        self._transport = session.outbox.transport
        self._report = report
        self._now_ns = now_ns
        self._has_begun = False
        self._lost = 0
        self._is_over = False

    def attach(self) -> None:
        self._transport.set_protocol(self)
        self.session.outbox.speak_through(cast("asyncio.Transport", TappedTransport(self._transport, self._wrote)))

    def detach(self) -> None:
        """Remove the tap; the connection stays open."""
        if not self._is_over:
            self._is_over = True
            self._transport.set_protocol(self.session)
            if self.session.outbox.transport is not None:
                self.session.outbox.speak_through(self._transport)

    def _tell(self, side: str, data: bytes) -> None:
        if not self._has_begun or self._is_over:
            return
        if self._lost or len(data) > WATCHED_BYTES_MAX:
            # After a gap the start of a message is unknown: from here on only bytes are counted.
            self._lost += len(data)
            self._report(WatchedPiece(self._now_ns(), side, lost=self._lost))
        elif not self._report(WatchedPiece(self._now_ns(), side, data)):
            self._lost += len(data)

    def _wrote(self, data: bytes) -> None:
        self._tell(_SERVER, data)

    # -- callbacks of the event loop -------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if not self._has_begun:
            self._has_begun = self.session.is_quiet
        self._tell(_CLIENT, bytes(data))
        self.session.data_received(data)

    def eof_received(self) -> bool:
        return self.session.eof_received()

    def pause_writing(self) -> None:
        self.session.pause_writing()

    def resume_writing(self) -> None:
        self.session.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.connection_lost(exc)
        if not self._is_over:
            self._is_over = True
            self._report(WatchedPiece(self._now_ns(), is_closed=True))


class TappedTransport:
    """A transport that reports written bytes and delegates everything else."""

    def __init__(self, transport: asyncio.Transport, wrote: Callable[[bytes], None]) -> None:
        self._transport = transport
        self._wrote = wrote

    def write(self, data: bytes) -> None:
        self._wrote(bytes(data))
        self._transport.write(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self._wrote(b"".join(pieces))
        self._transport.writelines(pieces)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the transport
        return getattr(self._transport, name)
