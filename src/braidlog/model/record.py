"""A record as people think of it: what every door writes and reads.

Knows: the fields. Refuses to know: how they are packed (codec does), where they are kept (storage does).
"""

import msgspec

Header = tuple[str, bytes | None]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One stored record. `key` and `value` may be None; a None value in a compacted topic deletes its key."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class NewRecord(msgspec.Struct, frozen=True, gc=False):
    """A record on its way in: it has no offset yet, and no time unless its writer gave one."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None
