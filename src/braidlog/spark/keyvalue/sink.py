"""Writes rows of a query as keys: sets or deletes them.

Does not handle: Mayfly's encoding. When a task succeeds, all its rows are acknowledged. A repeated batch sets the
same keys to the same values, so that a replay changes nothing if no key occurs twice in the batch. Each task, and the
driver over all tasks, checks for duplicates.

Not guaranteed: tasks write while they run, and a failed batch is not rolled back (its replay writes the keys again).
A task that Spark considers lost but that still runs can set a key after a later batch did: the store has no batches.
Keys have no order among each other, and other clients see them change one by one.
"""

import hashlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from braidlog.client.errors import ClientError, UnknownOutcomeError
from braidlog.client.kv import commands as c
from braidlog.client.kv.blocking import KeyValue, connect
from braidlog.client.kv.commands import Command
from braidlog.model.clock import SystemClock
from braidlog.model.limits import KV_KEY_BYTES_MAX, KV_VALUE_BYTES_MAX
from braidlog.spark.keyvalue.options import FORMAT, Target
from braidlog.spark.writers import Messages

_PAUSE_SECONDS = 0.2
_SHOWN_MAX = 60


class KeyValueSinkError(Exception):
    """A row that cannot be written, or a duplicate key."""


class Row(NamedTuple):
    key: bytes
    value: bytes | None
    ttl_ms: int | None
    order: Any = None

    def command(self) -> Command[Any]:
        if self.value is None:
            return c.delete(self.key)
        # The store counts in seconds: round up, so that no key expires early.
        return c.set_(self.key, self.value, ttl_seconds=-(-(self.ttl_ms or 0) // 1000))


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task wrote: eight bytes per key, so that the driver can detect keys that another task wrote too."""

    marks: bytes


def write_rows(batches: Iterable[pa.RecordBatch], target: Target) -> Written:
    """Write all rows of a task; return when all are acknowledged."""
    rows: Iterator[Row] = (row for batch in batches for row in rows_of(batch, target.order_by))
    seen: set[bytes] = set()
    if target.duplicates == "refuse":
        rows = _once_each(rows, seen)
    elif target.duplicates == "last":
        rows = _last_of_each(rows, seen)
    with connect(target.servers, retries="at-least-once", retry_timeout=target.retry_seconds) as store:
        window: list[Row] = []
        for row in rows:
            window.append(row)
            if len(window) == target.window:
                _send(store, window, target.retry_seconds)
                window = []
        if window:
            _send(store, window, target.retry_seconds)
    return Written(b"".join(hashlib.blake2b(key, digest_size=8).digest() for key in seen))


def _send(store: KeyValue, rows: Sequence[Row], retry_seconds: float) -> None:
    """Send one window in one piece and wait for all answers. Unanswered rows are sent again, because setting a key is
    idempotent."""
    clock = SystemClock()
    deadline = clock.monotonic() + retry_seconds
    while rows:
        rows, error = _unanswered(store, rows)
        if error is not None:
            if clock.monotonic() > deadline:
                raise KeyValueSinkError(f"key {_shown(rows[0].key)}: {error}") from error
            threading.Event().wait(_PAUSE_SECONDS)


def _unanswered(store: KeyValue, rows: Sequence[Row]) -> tuple[Sequence[Row], ClientError | None]:
    """Send rows; return those without an answer, and the error. `KeyValueSinkError` for a row that the store
    refuses."""
    try:
        answers = store.run([row.command() for row in rows])
    except ClientError as error:
        if not error.retriable:
            raise
        return rows, error
    left: list[Row] = []
    last: ClientError | None = None
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, UnknownOutcomeError) or (isinstance(answer, ClientError) and answer.retriable):
            left.append(row)
            last = answer
        elif isinstance(answer, ClientError):
            raise KeyValueSinkError(f"key {_shown(row.key)}: {answer}") from answer
    return left, last


# -- rows ----------------------------------------------------------------------------------------------------------------

_DELETES = {None: None, "set": False, "delete": True}


def rows_of(batch: pa.RecordBatch, order_by: str | None = None) -> Iterator[Row]:
    """Yield the rows of a batch; `KeyValueSinkError` for an invalid row."""
    none: list[Any] = [None] * batch.num_rows
    columns = {name: batch.column(at) for at, name in enumerate(batch.schema.names)}
    keys, values = (columns[name].cast(pa.binary()).to_pylist() for name in ("key", "value"))
    ops, ttls, orders = (columns[name].to_pylist() if name in columns else none for name in ("op", "ttl_ms", order_by))
    for key, value, op, ttl_ms, order in zip(keys, values, ops, ttls, orders, strict=True):
        if key is None:
            raise KeyValueSinkError("a row without a key")
        if not 1 <= len(key) <= KV_KEY_BYTES_MAX:
            raise KeyValueSinkError(f"key {_shown(key)} has {len(key)} bytes; a key must have 1 to {KV_KEY_BYTES_MAX}")
        if value is not None and len(value) > KV_VALUE_BYTES_MAX:
            raise KeyValueSinkError(
                f"key {_shown(key)}: the value has {len(value)} bytes; the maximum is {KV_VALUE_BYTES_MAX}"
            )
        if op not in _DELETES:
            raise KeyValueSinkError(f"key {_shown(key)}: op is {op!r}; it must be set, delete or null")
        if op == "set" and value is None:
            raise KeyValueSinkError(f"key {_shown(key)}: op is set, but the value is null")
        if ttl_ms is not None and ttl_ms < 0:
            raise KeyValueSinkError(f"key {_shown(key)}: invalid ttl_ms {ttl_ms}")
        yield Row(key, None if _DELETES[op] else value, ttl_ms, order)


def _once_each(rows: Iterable[Row], seen: set[bytes]) -> Iterator[Row]:
    for row in rows:
        if row.key in seen:
            raise KeyValueSinkError(
                f"key {_shown(row.key)} occurs twice in one batch, and an arbitrary row would stay: make keys unique, "
                "or set duplicates = last and orderBy"
            )
        seen.add(row.key)
        yield row


def _last_of_each(rows: Iterable[Row], seen: set[bytes]) -> Iterator[Row]:
    last: dict[bytes, Row] = {}
    for row in rows:
        before = last.get(row.key)
        if before is None or before.order is None or (row.order is not None and row.order >= before.order):
            last[row.key] = row
    seen.update(last)
    yield from last.values()


def _shown(key: bytes) -> str:
    return repr(key if len(key) <= _SHOWN_MAX else key[:_SHOWN_MAX] + b"...")


# -- Spark ---------------------------------------------------------------------------------------------------------------


def check_disjoint(messages: Messages) -> None:
    """Fail the batch if two tasks wrote the same key: its value is arbitrary now."""
    marks = [np.frombuffer(message.marks, np.uint64) for message in messages if isinstance(message, Written)]
    every = np.concatenate(marks) if marks else np.array([], np.uint64)
    if len(np.unique(every)) < len(every):
        raise KeyValueSinkError(
            f"{FORMAT}: two tasks of one batch wrote the same key, and an arbitrary row has stayed: "
            "repartition('key') before, or set duplicates = any"
        )


class KeyValueSink(msgspec.Struct, frozen=True):
    """A sink that sets and deletes keys while tasks run; the driver only checks for keys that two tasks wrote."""

    target: Target

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(batches, self.target)

    def commit(self, messages: Messages, batch: int | None) -> None:  # noqa: ARG002 - a sink's signature
        check_disjoint(messages)

    def abort(self, messages: Messages, batch: int | None) -> None:
        """Do nothing: keys that were set stay, and a replay sets them again; their previous values are unknown."""
