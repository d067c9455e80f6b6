"""Lists the names of all keys of a store, on all nodes.

Does not handle: pattern matching.
"""

from collections.abc import Iterator

from braidlog.client.kv.blocking import KeyValue

PIECE = 1_000
ANEW_MAX = 3
"""How often a slot's scan restarts because the last name of a piece was deleted; then it continues from there."""


def names_in(store: KeyValue, prefix: bytes = b"") -> Iterator[bytes]:
    """Yield each key name once. A key that is created or deleted during the scan may be included or not."""
    slot = 0
    slots = 1
    while slot < slots:
        seen: set[bytes] = set()
        position, after, anew = 0, b"", 0
        while True:
            page = store.scan(slot=slot, position=position, after=after, prefix=prefix, count=PIECE)
            slots = page.slots
            yield from (name for name in page.names if name not in seen)
            seen.update(page.names)
            if not page.position:
                break
            anew += page.position <= position
            position, after = page.position, page.after
            if anew > ANEW_MAX:
                after = b""
        slot += 1
