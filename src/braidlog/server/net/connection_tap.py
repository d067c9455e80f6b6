"""One connection, watched for a while from beside it.

Knows: how to stand between a socket and its session, and how to go away again. Refuses to know: dialects, who watches.
Invariants: a connection that nobody watches has nothing of this in its way; watching begins between two requests, when nothing is
under way, or nobody could say where a message begins; who watches and does not keep up loses pieces, and is told how many bytes.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from braidlog.model.reporting.node_report import WATCHED_BYTES_MAX, WatchedPiece
from braidlog.server.net.session import Session
from braidlog.wire.observer import Side

Report = Callable[[WatchedPiece], bool]
"""report(piece) → whether there was room for it."""
_CLIENT: Final = Side.CLIENT.value
_SERVER: Final = Side.SERVER.value


class ConnectionTap(asyncio.Protocol):
    """Stands in for a session at its transport: passes everything on, and tells what it was."""

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
        """Go away; the connection stays."""
        if not self._is_over:
            self._is_over = True
            self._transport.set_protocol(self.session)
            if self.session.outbox.transport is not None:
                self.session.outbox.speak_through(self._transport)

    def _tell(self, side: str, data: bytes) -> None:
        if not self._has_begun or self._is_over:
            return
        if self._lost or len(data) > WATCHED_BYTES_MAX:
            # After a gap nobody can say where a message begins: from here on only bytes are counted.
            self._lost += len(data)
            self._report(WatchedPiece(self._now_ns(), side, lost=self._lost))
        elif not self._report(WatchedPiece(self._now_ns(), side, data)):
            self._lost += len(data)

    def _wrote(self, data: bytes) -> None:
        self._tell(_SERVER, data)

    # -- the loop calls --------------------------------------------------------------------------------------

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
    """A transport that tells what is written to it; everything else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, wrote: Callable[[bytes], None]) -> None:
        self._transport = transport
        self._wrote = wrote

    def write(self, data: bytes) -> None:
        self._wrote(bytes(data))
        self._transport.write(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self._wrote(b"".join(pieces))
        self._transport.writelines(pieces)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the transport has
        return getattr(self._transport, name)
