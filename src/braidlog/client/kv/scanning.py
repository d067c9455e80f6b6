"""The names of all keys of a store, wherever they are kept.

Knows: slots, pieces. Refuses to know: how names are matched.
"""

from collections.abc import Iterator

from braidlog.client.kv.blocking import KeyValue

PIECE = 1_000
ANEW_MAX = 3
"""So often a slot is begun anew because the last name of a piece is gone; then it goes on from where that was."""


def names_in(store: KeyValue, prefix: bytes = b"") -> Iterator[bytes]:
    """Each once, as long as it is there. A key that is made or deleted meanwhile may be among them or not."""
    slot = 0
    slots = 1
    while slot < slots:
        told: set[bytes] = set()
        position, after, anew = 0, b"", 0
        while True:
            found = store.scan(slot=slot, position=position, after=after, prefix=prefix, count=PIECE)
            slots = found.slots
            yield from (name for name in found.names if name not in told)
            told.update(found.names)
            if not found.position:
                break
            anew += found.position <= position
            position, after = found.position, found.after
            if anew > ANEW_MAX:
                after = b""
        slot += 1
