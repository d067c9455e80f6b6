"""A mutation as a record: what the change feed tells of it.

Knows: keys, values and headers of the records. Refuses to know: the topic, when they are written.
Invariant: the last record of a key in the feed tells what the key holds, or that it is gone (null): the feed may be compacted.

| part                | what it is                                                                                     |
|---------------------|------------------------------------------------------------------------------------------------|
| key                 | the key                                                                                        |
| value               | what the key holds since, as `kv.type` says; null: it is gone                                  |
| timestamp           | the wall part of the mutation's stamp                                                          |
| header `kv.seq`     | the mutation's number, in decimal digits; 0 in a record that tells a key's state and no mutation |
| header `kv.hlc`     | its stamp (kv/hlc.py), 28 bytes in 56 hexadecimal digits: they sort as the mutations do        |
| header `kv.op`      | set del lpush rpush lpop rpop incrby hset hdel expire expired evicted, or state                |
| header `kv.type`    | string, counter, list or hash: `value` is that, as kv/values.py writes it; or part             |
| header `kv.expires` | when the key goes by itself, ms since 1970; absent: never                                      |

`part`: the value is the argument of the operation, as in the log's entry (kv/entries.py). Lists and hashes that change often are
not written out for every change: a later record of the key, already durable in the store's log, has the whole.
"""

from typing import NamedTuple

from braidlog.kv.entries import Op
from braidlog.kv.keyspace import Image
from braidlog.kv.store import Mutation
from braidlog.kv.values import HashValue, ListValue, Value, kind_of, write_value
from braidlog.model.record import Header

SEQUENCE = "kv.seq"
STAMP = "kv.hlc"
OPERATION = "kv.op"
TYPE = "kv.type"
EXPIRES = "kv.expires"
PART = b"part"
STATE = b"state"
_OP_HEADERS: dict[int, Header] = {int(op): (OPERATION, op.name.lower().encode()) for op in Op}
_PART_HEADER: Header = (TYPE, PART)
_KIND_HEADERS: dict[type, Header] = {
    kind: (TYPE, kind_of(kind()).encode()) for kind in (bytes, int, ListValue, HashValue)
}
_SEQUENCE_DIGITS_MAX = 20


class FeedRecord(NamedTuple):
    key: bytes
    value: bytes | None
    timestamp_ms: int
    headers: tuple[Header, ...]


def feed_record(mutation: Mutation, node_hex: bytes, *, is_latest: bool) -> FeedRecord:
    """The record of a mutation. `is_latest`: no later one of the same key is known, so a collection is written out."""
    value = mutation.value
    wall_ms = mutation.wall_ms
    sequence: Header = (SEQUENCE, b"%d" % mutation.sequence)
    stamp: Header = (STAMP, b"%016x%08x%b" % (wall_ms, mutation.counter, node_hex))
    op = _OP_HEADERS[mutation.op]
    if value is None:
        return FeedRecord(mutation.key, None, wall_ms, (sequence, stamp, op))
    kind = _KIND_HEADERS[type(value)]
    if type(value) is bytes:
        written = value
    elif is_latest or type(value) is int:
        written = write_value(value)
    else:
        kind, written = _PART_HEADER, mutation.argument
    if mutation.deadline_ms:
        expires: Header = (EXPIRES, b"%d" % mutation.deadline_ms)
        return FeedRecord(mutation.key, written, wall_ms, (sequence, stamp, op, kind, expires))
    return FeedRecord(mutation.key, written, wall_ms, (sequence, stamp, op, kind))


def state_record(
    image: Image, key: bytes, value: Value | None, *, sequence: int, stamp: bytes, now_ms: int
) -> FeedRecord:
    """The record of a key that is there (or, with no value, gone), whatever made it so."""
    headers: tuple[Header, ...] = ((SEQUENCE, b"%d" % sequence), (STAMP, stamp.hex().encode()), (OPERATION, STATE))
    if value is None:
        return FeedRecord(key, None, now_ms, headers)
    headers += ((TYPE, kind_of(value).encode()),)
    if key in image.deadlines:
        headers += ((EXPIRES, b"%d" % image.deadlines[key]),)
    return FeedRecord(key, write_value(value), now_ms, headers)


def sequence_in(headers: tuple[Header, ...]) -> int | None:
    """The number of the mutation that a record tells of; None if it is no record of a feed."""
    for name, value in headers:
        if name == SEQUENCE and value is not None and value.isdigit() and len(value) <= _SEQUENCE_DIGITS_MAX:
            return int(value)
    return None
