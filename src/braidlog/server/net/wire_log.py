"""Sessions whose bytes are written down (`braid serve --wire-log`).

Knows: where a session's bytes come in and go out. Refuses to know: dialects, formats, files (the recorder does).
Invariant: a listener without a wire log makes plain sessions, which know nothing of it; with one, a session hands over what it
received and sent, and never waits for it to be written.
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
    """The recorder that the settings ask for, None if they ask for none."""
    if not config.path and not config.pcapng:
        return None
    settings = RecorderSettings(config.path, config.format, config.hex, config.pcapng)
    try:
        return Recorder(settings, clock.now_ns)
    except OSError as error:
        raise BrokerError(Reason.INVALID_SETTING, f"wire_log: {error.filename}: {error.strerror}") from error


def session_of(recorder: Recorder | None) -> Callable[..., Session]:
    """The class of a listener's sessions."""
    return Session if recorder is None else partial(WatchedSession, recorder)


def incoming_of(recorder: Recorder | None) -> Callable[[Owner], Incoming]:
    """The class of gossip's incoming connections."""
    return Incoming if recorder is None else partial(WatchedIncoming, recorder)


class _Watched(asyncio.Protocol):
    """Reports the bytes of the connection whose class is the next base."""

    def __init__(self, recorder: Recorder, *arguments: Any) -> None:  # noqa: ANN401 - the next base's own
        super().__init__(*arguments)
        self._recorder = recorder
        self._number = 0

    def spoken(self) -> str:
        """The dialect, as the wire tools call it."""
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
    """A session that reports."""

    def spoken(self) -> str:
        return self._adapter.dialect


class WatchedIncoming(_Watched, Incoming):
    """A connection of gossip that reports, from gossip's own thread."""

    def spoken(self) -> str:
        return BETWEEN_NODES.name


def _address(name: Any) -> Address:  # noqa: ANN401 - what a socket calls its ends
    return Address(name[0], name[1]) if isinstance(name, tuple) else Address("127.0.0.1", 0)
