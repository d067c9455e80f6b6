"""Demultiplexes the peer port: peeks at the first bytes of a connection and assigns it to gossip or the key service.

Does not handle: the protocols themselves.
A socket belongs to gossip's thread or to the node's event loop from its first byte on. Without certificates the type of
the first message decides. With certificates the TLS handshake names
the protocol (ALPN): it is peeked at in the kernel buffer, and performed by the chosen service.
Invariants: invalid bytes fail as soon as they are recognizable. A silent connection is closed after
`FIRST_BYTES_SECONDS_MAX`. At most `UNDECIDED_MAX` connections are undecided.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final

from braidlog.server.peers.certificates import KEYS
from braidlog.wire.peer import messages as m

log = logging.getLogger("braidlog.peers")

LOOK_BYTES: Final = 16 * 1024
"""Peek limit; a handshake's first message is shorter."""
LOOK_SECONDS: Final = 0.01
FIRST_BYTES_SECONDS_MAX: Final = 5.0
UNDECIDED_MAX: Final = 256
ACCEPT_AGAIN_SECONDS: Final = 1.0
ACCEPTED_AT_ONCE: Final = 64
_HANDSHAKE: Final = 0x16
_RECORD_HEAD_BYTES: Final = 5
_NAMED: Final = bytes([len(KEYS)]) + KEYS.encode()
"""The ALPN name as it appears in clear text in a handshake's first message."""

Take = Callable[[socket.socket], None]


class PortDemux:
    """`gossip` and `keys` each take a connection with all bytes unread. Runs on the event loop that creates it."""

    def __init__(self, listening: Sequence[socket.socket], gossip: Take, keys: Take, *, is_tls: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._gossip = gossip
        self._keys = keys
        self._is_tls = is_tls
        self._undecided: dict[socket.socket, asyncio.TimerHandle] = {}
        self._is_closed = False
        for each in listening:
            self._loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        self._is_closed = True
        for each in self._listening:
            self._loop.remove_reader(each)
            each.close()
        for connected in list(self._undecided):
            self._drop(connected)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connected, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no free descriptor: new connections wait in the kernel's backlog
                log.error("peer port cannot accept connections: %s; retrying", error)  # noqa: TRY400
                self._loop.remove_reader(listening)
                self._loop.call_later(ACCEPT_AGAIN_SECONDS, self._listen_again, listening)
                return
            connected.setblocking(False)  # noqa: FBT003 - the name says what
            if len(self._undecided) >= UNDECIDED_MAX:
                connected.close()
                continue
            overdue = self._loop.call_later(FIRST_BYTES_SECONDS_MAX, self._drop, connected)
            self._undecided[connected] = overdue
            self._look(connected)

    def _listen_again(self, listening: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening)

    def _look(self, connected: socket.socket) -> None:
        """Assign a connection once enough bytes have arrived."""
        if connected not in self._undecided:
            return
        self._loop.remove_reader(connected)
        try:
            begun = connected.recv(LOOK_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            self._loop.add_reader(connected, self._look, connected)
            return
        except OSError:
            begun = b""
        if not begun:
            self._drop(connected)
            return
        is_keys = _offers_keys(begun) if self._is_tls else _is_keys(begun)
        if is_keys is None:
            # Peeked bytes stay readable, so a reader callback would fire continuously.
            self._loop.call_later(LOOK_SECONDS, self._look, connected)
            return
        self._undecided.pop(connected).cancel()
        (self._keys if is_keys else self._gossip)(connected)

    def _drop(self, connected: socket.socket) -> None:
        overdue = self._undecided.pop(connected, None)
        if overdue is not None:
            overdue.cancel()
            self._loop.remove_reader(connected)
            connected.close()


def _is_keys(begun: bytes) -> bool | None:
    """Whether the message belongs to the key service; None if undecided. Gossip gets unknown bytes and closes the
    connection.
    """
    if len(begun) < 4 and b"\xbe\xe5\x01".startswith(begun):
        return None
    return begun.startswith(b"\xbe\xe5\x01") and begun[3] in m.ASKED


def _offers_keys(begun: bytes) -> bool | None:
    """Whether the handshake's first message names the key protocol; None if incomplete. The handshake itself detects
    false claims.
    """
    if begun[0] != _HANDSHAKE:
        return False
    if (
        len(begun) < min(_RECORD_HEAD_BYTES + int.from_bytes(begun[3:5], "big"), LOOK_BYTES)
        or len(begun) < _RECORD_HEAD_BYTES
    ):
        return None
    return _NAMED in begun
