"""The nodes' port: each connection is handed to gossip or to keys, by its first bytes, before any of them is read.

Knows: sockets, and how the two begin. Refuses to know: what is said on either. Gossip is answered on a thread of its
own, keys on the node's loop: a socket belongs to one of them from its first byte on. Without certificates the type of
the first message tells them apart; with them the handshake does, which names what is to be spoken (ALPN): it is looked
at where it waits in the kernel, and carried out by who takes the connection. Invariants: what is not of a node fails
as soon as it is wrong; who says nothing for `FIRST_BYTES_SECONDS_MAX` is closed; of those who have not said enough
there are at most `UNDECIDED_MAX`.
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
"""Of a handshake's first message, which is shorter."""
LOOK_SECONDS: Final = 0.01
FIRST_BYTES_SECONDS_MAX: Final = 5.0
UNDECIDED_MAX: Final = 256
ACCEPT_AGAIN_SECONDS: Final = 1.0
ACCEPTED_AT_ONCE: Final = 64
_HANDSHAKE: Final = 0x16
_RECORD_HEAD_BYTES: Final = 5
_NAMED: Final = bytes([len(KEYS)]) + KEYS.encode()
"""As a handshake's first message has it, in the clear."""

Take = Callable[[socket.socket], None]


class FirstBytes:
    """`gossip` and `keys` take a connection, none of whose bytes is read. On the loop on which it is made."""

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
            except OSError as error:  # no descriptor is free: those who wait, wait in the kernel's line
                log.error("the nodes' port takes no connection: %s; trying again", error)  # noqa: TRY400
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
        """Whose it is, if enough has come."""
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
            # What is there stays readable: the loop would tell so without end.
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
    """None: it cannot be told yet. What is no node's is left to gossip, which closes upon it."""
    if len(begun) < 4 and b"\xbe\xe5\x01".startswith(begun):
        return None
    return begun.startswith(b"\xbe\xe5\x01") and begun[3] in m.ASKED


def _offers_keys(begun: bytes) -> bool | None:
    """What the first message of a handshake says, as far as it has come. Who says so falsely is found out by the
    handshake.
    """
    if begun[0] != _HANDSHAKE:
        return False
    if (
        len(begun) < min(_RECORD_HEAD_BYTES + int.from_bytes(begun[3:5], "big"), LOOK_BYTES)
        or len(begun) < _RECORD_HEAD_BYTES
    ):
        return None
    return _NAMED in begun
