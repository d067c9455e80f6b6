"""Converts the keys of a single node to records of its cluster's key logs, when its folder moves into a cluster.

Invariants: the store is only read until the move is done, and no node serves the logs before that. So each attempt
rewrites the same topic with all keys. A key keeps its value and its deadline, to the millisecond.

A record's deadline is a number of whole seconds after its stamp. So the keys of a log are sorted by the milliseconds
of their deadlines, and have stamps within the last whole second before the migration.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from braidlog.broker.keys.clustered_keys import log_settings
from braidlog.cluster.metadata.events import CreateTopic, DeleteTopic, Event, FolderMade
from braidlog.cluster.metadata.image import Image
from braidlog.codec.batch.records import encode_batch
from braidlog.kv.engine.hybrid_clock import HybridClock
from braidlog.kv.engine.keyspace import Keyspace
from braidlog.kv.engine.operations import Level
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.engine.values import HashValue, ListValue, Value, pack_strings
from braidlog.kv.replicated.log_records import SlotRecord
from braidlog.kv.replicated.slots import FEED_TOPIC, KEY_LOGS, LOG_TOPIC, log_of, slot_of
from braidlog.kv.wal.wal_entries import Op
from braidlog.model.errors import StorageFault
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.internal.system_topic import write_topic
from braidlog.storage.files import join, remove_tree
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.tools.keyvalue.inspect import STORE_FOLDER, open_dry

BATCH_BYTES: Final = 1024 * 1024
BATCH_RECORDS: Final = 5_000
SECOND_MS: Final = 1000


class KeyMigration:
    """Migration of one folder: call `prepare`, then `write` in each attempt of the move, and `finish` after it."""

    def __init__(
        self, folder: DataFolder, runtime: Runtime, node: str, settings: KeyValueSettings, report: Callable[[int], None]
    ) -> None:
        """`report` is called with the number of keys written so far."""
        self._folder = folder
        self._runtime = runtime
        self._node = node
        self._settings = settings
        self._report = report
        self._id = bytes.fromhex(folder.identity.folder_id)
        self._keyspace = Keyspace()
        self._feed_id: str | None = None
        self.keys = 0
        """Number of keys written."""

    def prepare(self, image: Image) -> None:
        """Read the store before anything changes. Raises its `StorageFault`."""
        disk, path = self._folder.disk, self._folder.path
        if disk.exists(join(path, STORE_FOLDER)):
            try:
                self._keyspace = open_dry(disk, path, self._id).keyspace
            except StorageFault as fault:
                text = f"keys cannot be moved: {fault}; `braid kv verify {path}` lists the damage"
                raise StorageFault(text) from fault
        feed = image.topics.get(FEED_TOPIC)
        self._feed_id = None if feed is None else feed.topic_id

    def write(self) -> Sequence[Event]:
        """Write the logs durably; returns the metadata events for them.

        The store's change feed ends. The feed of the logs, which the cluster creates, repeats each key.
        """
        now_ms, events = self._runtime.now_ms(), list[Event]()
        if self._feed_id is not None:
            events.append(DeleteTopic(topic=FEED_TOPIC, topic_id=self._feed_id, deleted_ms=now_ms))
        if not self._keyspace.data:
            return events  # the cluster creates the topic on first use, on all nodes of that time
        self.keys, logs = 0, self._keys_of_logs(now_ms)
        topic_id = uuid.uuid5(uuid.UUID(bytes=self._id), LOG_TOPIC).hex  # equal in each attempt
        created = CreateTopic(
            topic=LOG_TOPIC,
            topic_id=topic_id,
            partitions=KEY_LOGS,
            settings=log_settings(self._settings),
            created_ms=now_ms,
            replicas=(self._node,),
        )
        write_topic(
            self._folder, created, {number: self._batches(keys, now_ms) for number, keys in enumerate(logs)}, now_ms
        )
        made = FolderMade(topic=LOG_TOPIC, topic_id=topic_id, node_id=self._node, partitions=KEY_LOGS)
        return [*events, created, made]

    def finish(self) -> None:
        """Remove the store, because the cluster has its keys. The next attempt removes what a killed one left."""
        disk, path = self._folder.disk, self._folder.path
        if disk.exists(store := join(path, STORE_FOLDER)):
            remove_tree(disk, store)
            disk.sync_folder(path)

    def _keys_of_logs(self, now_ms: int) -> list[list[bytes]]:
        """Keys by log, without expired ones."""
        logs = [list[bytes]() for _ in range(KEY_LOGS)]
        deadlines = self._keyspace.deadlines
        for key in self._keyspace.data:
            if not 0 < deadlines.get(key, 0) <= now_ms:
                logs[log_of(slot_of(key), KEY_LOGS)].append(key)
        for keys in logs:
            keys.sort(key=lambda key: deadlines.get(key, 0) % SECOND_MS)
        return logs

    def _batches(self, keys: Sequence[bytes], now_ms: int) -> Iterator[bytes]:
        begin_ms = (now_ms // SECOND_MS - 1) * SECOND_MS
        clock, records, size = HybridClock(self._id), list[SlotRecord](), 0
        for key in keys:
            deadline_ms = self._keyspace.deadlines.get(key, 0)
            wall_ms = begin_ms + deadline_ms % SECOND_MS
            ttl_seconds = (deadline_ms - wall_ms) // SECOND_MS if deadline_ms else 0
            for op, argument, ttl in _mutations(self._keyspace.data[key], ttl_seconds):
                clock.tick(wall_ms)
                records.append(SlotRecord(op, key, argument, ttl, Level.QUORUM, clock.stamp))
                size += len(key) + len(argument)
                if size >= BATCH_BYTES or len(records) >= BATCH_RECORDS:
                    yield _batch(records)
                    records, size = [], 0
            self.keys += 1
            self._report(self.keys)
        if records:
            yield _batch(records)


def _batch(records: Sequence[SlotRecord]) -> bytes:
    keys = [record.key for record in records]
    return encode_batch([record.pack() for record in records], keys=keys, base_timestamp=records[0].stamp.wall_ms)


def _mutations(value: Value, ttl_seconds: int) -> Iterator[tuple[Op, bytes, int]]:
    """The operations that create a key with this value."""
    if isinstance(value, bytes):
        yield Op.SET, value, ttl_seconds
        return
    if isinstance(value, ListValue):
        yield from ((Op.RPUSH, each, 0) for each in _pieces((item,) for item in value.items))
    elif isinstance(value, HashValue):
        yield from ((Op.HSET, each, 0) for each in _pieces(value.fields.items()))
    else:
        yield Op.INCRBY, value.to_bytes(8, "big", signed=True), 0
    if ttl_seconds:
        yield Op.EXPIRE, b"", ttl_seconds


def _pieces(parts: Iterable[tuple[bytes, ...]]) -> Iterator[bytes]:
    """Pack the strings of all parts into pieces of about `BATCH_BYTES`; a part is not split."""
    piece, size = list[tuple[bytes, ...]](), 0
    for part in parts:
        piece.append(part)
        size += sum(map(len, part))
        if size >= BATCH_BYTES:
            yield pack_strings(chain.from_iterable(piece))
            piece, size = [], 0
    if piece:
        yield pack_strings(chain.from_iterable(piece))
