"""Sessions that record their traffic in the wire log (`braid serve --wire-log`).

Invariant: without a wire log, a listener creates plain sessions. With one, a session passes received and sent bytes to
the recorder, and never waits for it. Does not handle: dialects, formats, files (the recorder does).
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError, Reason
from braidlog.server.config import WireLogConfig
from braidlog.server.net.connection_tap import TappedTransport
from braidlog.server.net.session import Session
from braidlog.server.peers.gossip_connections import Incoming, Owner
from braidlog.tools.wire.capture.pcapng import Address
from braidlog.tools.wire.capture.recorder import Recorder, RecorderSettings
from braidlog.wire.observer import Side
from braidlog.wire.peer import BETWEEN_NODES


def open_wire_log(config: WireLogConfig, clock: SystemClock) -> Recorder | None:
    """Return the configured recorder, or None without a wire log."""
    if not config.path and not config.pcapng:
        return None
    settings = RecorderSettings(config.path, config.format, config.hex, config.pcapng)
    try:
        return Recorder(settings, clock.now_ns)
    except OSError as error:
        raise BrokerError(Reason.INVALID_SETTING, f"wire_log: {error.filename}: {error.strerror}") from error


def session_of(recorder: Recorder | None) -> Callable[..., Session]:
    """Return the class of a listener's sessions."""
    return Session if recorder is None else partial(WatchedSession, recorder)


def incoming_of(recorder: Recorder | None) -> Callable[[Owner], Incoming]:
    """Return the class of gossip's incoming connections."""
    return Incoming if recorder is None else partial(WatchedIncoming, recorder)


class _Watched(asyncio.Protocol):
    """A mixin that records the bytes of the connection class after it."""

    def __init__(self, recorder: Recorder, *arguments: Any) -> None:  # noqa: ANN401 - the next base's own
        super().__init__(*arguments)
        self._recorder = recorder
        self._number = 0

    def spoken(self) -> str:
        """Return the dialect's name in the wire tools."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        client, server = (_address(transport.get_extra_info(name)) for name in ("peername", "sockname"))
        self._number = self._recorder.opened(self.spoken(), client, server)
        wrote = partial(self._recorder.spoke, self._number, Side.SERVER)
        tapped = TappedTransport(cast("asyncio.Transport", transport), wrote)
        super().connection_made(cast("asyncio.BaseTransport", tapped))

    def data_received(self, data: bytes) -> None:
        self._recorder.spoke(self._number, Side.CLIENT, bytes(data))
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._recorder.closed(self._number)


class WatchedSession(_Watched, Session):
    """A session that records its traffic."""

    def spoken(self) -> str:
        return self._adapter.dialect


class WatchedIncoming(_Watched, Incoming):
    """A gossip connection that records its traffic, on gossip's own thread."""

    def spoken(self) -> str:
        return BETWEEN_NODES.name


def _address(name: Any) -> Address:  # noqa: ANN401 - a socket's address
    return Address(name[0], name[1]) if isinstance(name, tuple) else Address("127.0.0.1", 0)
