"""A record independent of any dialect: what every listener writes and reads."""

import msgspec

Header = tuple[str, bytes | None]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One stored record. `key` and `value` may be None; in a compacted topic a None value deletes its key."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class NewRecord(msgspec.Struct, frozen=True, gc=False):
    """A record to be written: it has no offset yet, and no time unless the producer set one."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None
