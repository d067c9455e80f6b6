"""The memory budget of a node's connections: incomplete frames, long polls, unsent answers.

Client state (groups, transactions) uses part of the budget and cannot be freed.
Invariant: together they hold at most `bytes_max` plus one read or answer. At the limit the budget closes the largest
holders, and no request starts until memory is free. A client that sends complete requests and reads its answers holds
almost nothing, and is never closed.
"""

import logging
import time
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("braidlog.budget")

SMALL_BYTES = 16 * 1024
"""Connections with less are not counted: the usual request then costs one comparison."""
_COUNT_SECONDS = 0.01
_ROOM = 7 / 8


class Holder(Protocol):
    """Holds memory that `abort` frees."""

    @property
    def peer(self) -> str: ...

    def held_bytes(self) -> int: ...

    def abort(self) -> None: ...

    def room_again(self) -> None: ...


class Budget:
    """The budget of all listeners of a node."""

    def __init__(self, bytes_max: int, now: Callable[[], float] = time.monotonic) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.bytes_kept = 0
        """Bytes of client state, which its owner limits."""
        self.let_go = 0
        self._now = now
        self._counted_at = now()
        self._held: dict[Holder, int] = {}
        self._leaving: dict[Holder, int] = {}
        self._waiting: dict[Holder, None] = {}

    @property
    def is_full(self) -> bool:
        return self.bytes_held >= self.bytes_max - self.bytes_kept  # runs per request: inlined

    @property
    def is_short(self) -> bool:
        """Whether holders should free what they can, before connections have to be closed."""
        return self.bytes_held + self.bytes_kept >= self.bytes_max * _ROOM

    @property
    def _bytes_for_connections(self) -> int:
        return self.bytes_max - self.bytes_kept

    def note(self, holder: Holder, held: int) -> None:
        """Record how many bytes `holder` holds now."""
        before = self._held.get(holder, 0)
        if (held <= SMALL_BYTES and not before) or holder in self._leaving:
            return
        if held <= SMALL_BYTES:
            del self._held[holder]
            held = 0
        else:
            self._held[holder] = held
        self.bytes_held += held - before
        if self.is_full and held > before:
            self.settle()  # recount first: earlier reports may be out of date
        elif held < before:
            self._release()

    def wait(self, holder: Holder) -> None:
        """Call the holder's `room_again` once there is room."""
        self._waiting[holder] = None
        if self._now() - self._counted_at > _COUNT_SECONDS:
            self.settle()

    def forget(self, holder: Holder) -> None:
        """Remove a holder and its bytes."""
        self.bytes_held -= self._held.pop(holder, 0) + self._leaving.pop(holder, 0)
        self._waiting.pop(holder, None)
        self._release()

    def reserve(self, kept: int) -> None:
        """Set the bytes of client state."""
        self.bytes_kept = kept
        self.settle()

    def settle(self) -> None:
        """Recount all holders: sent answers are not reported. Called regularly, and when the budget seems full."""
        self._counted_at = self._now()
        self._held = {holder: held for holder in self._held if (held := holder.held_bytes()) > SMALL_BYTES}
        self.bytes_held = sum(self._held.values()) + sum(self._leaving.values())
        if self.is_full:
            self._make_room()
        self._release()

    def _make_room(self) -> None:
        """Close the largest holders. Their bytes count until they have ended: a busy loop frees nothing."""
        staying = sum(self._held.values())
        if staying < self._bytes_for_connections:
            return
        for holder in sorted(self._held, key=self._held.__getitem__, reverse=True):
            held = self._leaving[holder] = self._held.pop(holder)
            log.warning("closing %s: holds %d bytes, node memory limit exceeded", holder.peer, held)
            self.let_go += 1
            holder.abort()
            staying -= held
            if staying <= self._bytes_for_connections * _ROOM:
                return

    def _release(self) -> None:
        if self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for holder in waiting:
                holder.room_again()
