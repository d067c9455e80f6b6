"""Converts records of the change feed to columns.

Parses the feed's headers and the encoded values (docs/formats/kv.md). Does not handle: reading records, Spark's
readers. Each record gives one row, in order; a record that the store did not write is an error that names its offset.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from braidlog.kv.engine.values import HashValue, ListValue, read_value
from braidlog.kv.feed.feed_records import EXPIRES, OPERATION, SEQUENCE, STAMP, TYPE
from braidlog.model.errors import ProtocolError

STATE_ROWS = 16 * 1024
"""Rows per batch of a snapshot."""
_GONE_TYPES = ("list", "hash")


class FeedError(ValueError):
    """The topic contains a record that the store did not write."""


def change_columns(records: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return all columns of the format, from a batch with key, value, timestamp, offset and headers."""
    headers = _Headers(records.column("headers"), records.num_rows)
    operations = headers.column(OPERATION)
    if operations.null_count:
        at = operations.is_null().to_pylist().index(True)
        raise FeedError(
            f"offset {records.column('offset')[at].as_py()}: not a store's record, it has no header {OPERATION}"
        )
    types = headers.text(TYPE)
    values = records.column("value")
    is_plain = pc.fill_null(pc.invert(pc.is_in(types, pa.array(_GONE_TYPES))), pa.scalar(value=True))
    return {
        "key": records.column("key"),
        "op": operations.cast(pa.string()),
        "type": types,
        "value": pc.if_else(is_plain, values, pa.scalar(None, pa.binary())),
        "number": _numbers(types, values),
        "list": _collections(types, values, "list", _LIST, _items),
        "hash": _collections(types, values, "hash", _HASH, _pairs),
        "expires": _moments(headers.text(EXPIRES)),
        "timestamp": records.column("timestamp"),
        "offset": records.column("offset"),
        "sequence": headers.text(SEQUENCE).cast(pa.int64()),
        "stamp": headers.text(STAMP),
    }


class _Headers:
    """The headers of many records, by name: extracted in one pass, not record by record."""

    def __init__(self, column: pa.ListArray, rows: int) -> None:
        self._rows = rows
        flat = column.flatten()
        self._parents = pc.list_parent_indices(column)
        self._names = flat.field(0) if len(flat) else pa.array([], pa.string())
        self._values = flat.field(1) if len(flat) else pa.array([], pa.binary())

    def column(self, name: str) -> pa.Array:
        """Return the header's bytes per record; null if a record lacks the header."""
        mask = pc.equal(self._names, name)
        places = np.full(self._rows, -1, np.int64)
        places[self._parents.filter(mask).to_numpy(zero_copy_only=False)] = np.arange(pc.sum(mask).as_py() or 0)
        return self._values.filter(mask).take(pa.array(places, mask=places < 0))

    def text(self, name: str) -> pa.Array:
        return self.column(name).cast(pa.string())


def _numbers(types: pa.Array, values: pa.Array) -> pa.Array:
    """Parse counters, which are encoded as digits; other values become null."""
    is_counter = pc.fill_null(pc.equal(types, "counter"), pa.scalar(value=False))
    return pc.if_else(is_counter, values, pa.scalar(None, pa.binary())).cast(pa.string()).cast(pa.int64())


def _moments(digits: pa.Array) -> pa.Array:
    return digits.cast(pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


_LIST = pa.list_(pa.field("element", pa.binary()))
_HASH = pa.map_(pa.binary(), pa.binary())


def _collections(
    types: pa.Array, values: pa.Array, kind: str, arrow: pa.DataType, unfold: Callable[[bytes], Any]
) -> pa.Array:
    """Decode lists and hashes one at a time: they are rare, and Arrow cannot decode them."""
    is_kind = pc.fill_null(pc.equal(types, kind), pa.scalar(value=False))
    if not pc.any(is_kind).as_py():
        return pa.nulls(len(types), arrow)
    collections = [
        unfold(value) if matches else None
        for matches, value in zip(is_kind.to_pylist(), values.to_pylist(), strict=True)
    ]
    return pa.array(collections, arrow)


def _items(data: bytes) -> list[bytes]:
    return list(_read("list", data, ListValue).items)


def _pairs(data: bytes) -> list[tuple[bytes, bytes]]:
    return list(_read("hash", data, HashValue).fields.items())


def _read(kind: str, data: bytes, expected: type[Any]) -> Any:  # noqa: ANN401 - one of the two
    try:
        value = read_value(kind, data)
    except ProtocolError as error:
        raise FeedError(f"invalid {kind}: {error}") from error
    assert isinstance(value, expected)
    return value


def live_rows(batches: Iterable[pa.RecordBatch], now_ms: int) -> Iterator[pa.RecordBatch]:
    """Return the last record of each key that exists at `now_ms`. Records of kind `part` carry no state, and are
    skipped.

    Keeps the last record of each key in memory, as the store does: a snapshot has one task.
    """
    last: dict[bytes, tuple[int, int]] = {}
    kept: list[pa.RecordBatch] = []
    rows = live = 0
    for batch in batches:
        types = _Headers(batch.column("headers"), batch.num_rows).text(TYPE)
        whole = pc.fill_null(pc.not_equal(types, "part"), pa.scalar(value=True)).to_pylist()
        for at, key in enumerate(batch.column("key").to_pylist()):
            if whole[at]:
                last[key] = (len(kept), at)
        kept.append(batch)
        rows += batch.num_rows
        if rows > 2 * max(len(last), STATE_ROWS):
            # Most kept records are outdated: keep only the last per key, so that memory is proportional to keys, not
            # to changes.
            live = len(last)
            kept = [_taken(kept, last)]
            last = {key: (0, at) for at, key in enumerate(kept[0].column("key").to_pylist())}
            rows = live
    if kept:
        whole_batch = _taken(kept, last)
        expires = _moments(_Headers(whole_batch.column("headers"), whole_batch.num_rows).text(EXPIRES))
        now = pa.scalar(now_ms * 1000, pa.int64()).cast(pa.timestamp("us", "UTC"))
        there = pc.and_(
            pc.is_valid(whole_batch.column("value")),
            pc.fill_null(pc.greater(expires, now), pa.scalar(value=True)),
        )
        live = whole_batch.filter(there)
        for at in range(0, live.num_rows, STATE_ROWS):
            yield live.slice(at, STATE_ROWS)


def _taken(kept: list[pa.RecordBatch], last: dict[bytes, tuple[int, int]]) -> pa.RecordBatch:
    """Return these rows of these batches, in their original order."""
    starts = np.cumsum([0, *(batch.num_rows for batch in kept)])
    places = np.sort(np.array([starts[batch] + at for batch, at in last.values()], np.int64))
    table = pa.Table.from_batches(kept).take(pa.array(places)).combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else kept[0].slice(0, 0)
