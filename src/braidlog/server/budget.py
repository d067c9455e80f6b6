"""What all connections of a node hold in memory together: frames that are not whole yet, answers that were not taken yet.

Knows: who holds how much. Refuses to know: why. Invariant: together they hold no more than `bytes_max` and what one read or one
answer adds; whoever holds most is let go first, so a client that sends and takes what it asks for never pays for the others.
"""

import logging
from typing import Protocol

log = logging.getLogger("braidlog.budget")

SMALL_BYTES = 16 * 1024
"""What a connection may hold without anyone counting: so the usual request costs one comparison."""
_ROOM = 7 / 8


class Holder(Protocol):
    """Whoever holds memory and can be made to give it back."""

    @property
    def peer(self) -> str: ...

    def held_bytes(self) -> int: ...

    def abort(self) -> None: ...


class Budget:
    """One for all listeners of a node."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.let_go = 0
        self._held: dict[Holder, int] = {}

    def note(self, holder: Holder, held: int) -> None:
        """`holder` holds so much now."""
        before = self._held.get(holder, 0)
        if held <= SMALL_BYTES:
            if before:
                self.forget(holder)
            return
        self._held[holder] = held
        self.bytes_held += held - before
        if held > before and self.bytes_held > self.bytes_max:
            self._make_room()

    def forget(self, holder: Holder) -> None:
        self.bytes_held -= self._held.pop(holder, 0)

    def _make_room(self) -> None:
        """Count anew (answers leave without anyone saying so), then let the largest go until there is some room again."""
        for holder in list(self._held):
            self._held[holder] = holder.held_bytes()
        self.bytes_held = sum(self._held.values())
        if self.bytes_held <= self.bytes_max:
            return
        for holder in sorted(self._held, key=self._held.__getitem__, reverse=True):
            log.warning(
                "%s is cut off: it holds %d bytes, and together they are too many", holder.peer, self._held[holder]
            )
            self.let_go += 1
            self.forget(holder)
            holder.abort()
            if self.bytes_held <= self.bytes_max * _ROOM:
                return
