"""Use topics in a data folder from a script, without a server.

The API has topics and records, no dialects or networks. Invariants: a record that `append` acknowledged is as
durable as the topic's `flush` setting says. A record that `read` returned stays readable.

    with Log("data") as log:
        topic = log.create_topic("clicks")
        topic.append(b"hello")
        for record in topic: ...
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import msgspec

from braidlog.codec.batch.header import BatchHeader, iter_batches
from braidlog.codec.batch.read_committed import visible
from braidlog.codec.batch.records import decode_batch, encode_batch
from braidlog.codec.compression import Compression
from braidlog.codec.murmur import partition_for_key
from braidlog.model.clock import Clock, SystemClock
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.model.record import Header, NewRecord, Record
from braidlog.model.settings import Flush, TopicSettings, settings_from
from braidlog.storage.compaction.compaction import Compacted, Compaction
from braidlog.storage.compaction.retention import retain
from braidlog.storage.files import Disk, OsDisk
from braidlog.storage.folder.data_folder import DataFolder, TopicMeta
from braidlog.storage.group_commit import Flusher, GroupCommit
from braidlog.storage.log.partition_log import Appended, FileSlice, PartitionLog
from braidlog.storage.open_files import OPEN_FILES_MAX
from braidlog.storage.state.transaction_index import ranges

READ_BYTES = 1024 * 1024


class Topic:
    """One topic of an open log."""

    def __init__(self, log: "Log", meta: TopicMeta) -> None:
        self._log = log
        self._meta = meta
        self._partitions: dict[int, PartitionLog] = {}
        self._commits: dict[int, GroupCommit] = {}
        self._round = 0
        self._closed = False

    # -- state -----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._meta.name

    @property
    def partitions(self) -> int:
        return self._meta.partitions

    @property
    def settings(self) -> TopicSettings:
        return self._meta.settings

    def partition(self, number: int = 0) -> PartitionLog:
        """Return the log of one partition; opens it on first use."""
        partition = self._partitions.get(number)
        if partition is None:
            with self._log.lock:
                # A closed topic must not open its partitions again: another process may use the folder, or a new topic
                # the name.
                if self._closed:
                    raise BrokerError(Reason.LOG_CLOSED, f"topic {self.name!r} in {self._log.path} is closed")
                partition = self._partitions.get(number)
                if partition is None:
                    partition = self._log.folder.open_partition(self.name, number)
                    self._commits[number] = GroupCommit(partition)
                    self._partitions[number] = partition
        return partition

    def close_partition(self, number: int) -> None:
        """Close a partition; the next use opens it again."""
        with self._log.lock:
            partition = self._partitions.pop(number, None)
            if partition is not None:
                partition.close()

    def start_offset(self, partition: int = 0) -> int:
        return self.partition(partition).start_offset

    def end_offset(self, partition: int = 0) -> int:
        """Return the end of the readable records: with `flush = ack`, the durable offset."""
        return self._readable_end(self.partition(partition))

    def _readable_end(self, partition: PartitionLog) -> int:
        # A record that was read must not vanish: where an acknowledgement means "on the disk", so does a read.
        return partition.durable_offset if self.settings.flush is Flush.ACK else partition.end_offset

    # -- appending -------------------------------------------------------------------------------------------

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> int:
        """Append one record and return its offset once it is as durable as the topic's `flush` setting says.

        A record with a key goes to the partition that Kafka's clients choose; others are distributed round-robin.
        """
        record = NewRecord(value, key, tuple(headers), timestamp_ms)
        return self.append_many([record], partition=self._choose(key) if partition is None else partition).base_offset

    def append_many(
        self,
        records: Sequence[NewRecord],
        *,
        partition: int = 0,
        compression: Compression = Compression.NONE,
    ) -> Appended:
        """Append records to one partition as one batch, all or none."""
        if not records:
            raise BrokerError(Reason.INVALID_RECORD, "an append needs at least one record")
        return self.append_batch(self._encode(records, compression), partition=partition)

    def append_batch(self, batch: bytes, *, partition: int = 0) -> Appended:
        """Append a batch as encoded by a Kafka client (RecordBatch v2)."""
        target = self.partition(partition)
        appended = target.append(batch, now_ms=self._log.clock.now_ms())
        if self.settings.flush is Flush.ACK:
            self._commits[partition].wait(appended.next_offset)
        else:
            self._log.flusher.appended(target)
        return appended

    def _choose(self, key: bytes | None) -> int:
        if key is not None:
            return partition_for_key(key, self.partitions)
        self._round += 1
        return self._round % self.partitions

    def _encode(self, records: Sequence[NewRecord], compression: Compression) -> bytes:
        now_ms = self._log.clock.now_ms()
        timestamps = [now_ms if record.timestamp_ms is None else record.timestamp_ms for record in records]
        return encode_batch(
            [record.value for record in records],
            keys=[record.key for record in records],
            timestamps=timestamps,
            headers=[record.headers for record in records],
            base_timestamp=timestamps[0],
            compression=compression,
        )

    # -- reading ---------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int | None = None,
        *,
        partition: int = 0,
        records_max: int = 1000,
        committed_only: bool = True,
    ) -> list[Record]:
        """Return up to `records_max` records from `offset` (default: the log start); empty at the end of the log."""
        found: list[Record] = []
        for record in self.iterate(offset, partition=partition, committed_only=committed_only):
            found.append(record)
            if len(found) >= records_max:
                break
        return found

    def __iter__(self) -> Iterator[Record]:
        """Yield every record, partition by partition."""
        for number in range(self.partitions):
            yield from self.iterate(partition=number)

    def iterate(
        self, offset: int | None = None, *, partition: int = 0, committed_only: bool = True
    ) -> Iterator[Record]:
        """Yield the records from `offset` to the log end. Buffers about one megabyte of the log."""
        source = self.partition(partition)
        position = source.start_offset if offset is None else offset
        while found := self._next_slice(source, position, committed_only=committed_only):
            yield from self._records(source, found.read(), position, found.next_offset, committed_only=committed_only)
            position = found.next_offset

    def _next_slice(self, source: PartitionLog, position: int, *, committed_only: bool) -> FileSlice | None:
        end = self._readable_end(source)
        upto = source.stable_below(end) if committed_only else end
        return source.slice_at(position, READ_BYTES, upto=upto)

    def follow(
        self,
        offset: int | None = None,
        *,
        partition: int = 0,
        timeout: float | None = None,
        committed_only: bool = True,
    ) -> Iterator[Record]:
        """Iterate, and wait for new records at the end; stop when none arrives for `timeout` seconds (None: never).

        Ends when the log or the topic closes; raises the fault of a failed partition.
        """
        source = self.partition(partition)
        position = source.start_offset if offset is None else offset
        durable = self.settings.flush is Flush.ACK
        while not source.is_closed:
            seen = self._readable_end(source)  # before the read: the wait then notices records that arrive after it
            while found := self._next_slice(source, position, committed_only=committed_only):
                data = found.read()
                yield from self._records(source, data, position, found.next_offset, committed_only=committed_only)
                position = found.next_offset
            if not source.wait_beyond(seen, timeout, durable=durable):
                return

    def _records(
        self, source: PartitionLog, data: bytes, start: int, end: int, *, committed_only: bool
    ) -> Iterator[Record]:
        aborted = source.aborted_in(start, end) if committed_only else []
        batches = ((data, position, header) for position, header in self._checked(source, data, end))
        for _, position, header in visible(batches, ranges(aborted)):
            if header.next_offset <= start:
                continue
            for row in decode_batch(data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
                if row[0] >= start:
                    yield Record(*row)

    def _checked(self, source: PartitionLog, data: bytes, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the batches of a slice, verified again: the disk may have changed since the first verification."""
        batches = iter_batches(data)
        expected: int | None = None
        while True:
            try:
                found = next(batches, None)
            except ProtocolError as error:
                raise _changed(source, str(error)) from error
            if found is None:
                break
            if expected not in (None, found[1].base_offset):
                raise _changed(source, f"offset {found[1].base_offset} follows, not {expected}")
            yield found
            expected = found[1].next_offset
        if expected != end:
            raise _changed(source, f"the batches end at offset {expected}, not {end}")

    def offset_at(self, timestamp_ms: int, *, partition: int = 0) -> int | None:
        """Return the offset of the first record written at or after `timestamp_ms`, or None."""
        source = self.partition(partition)
        for batch in source.find_batch_by_time(timestamp_ms):
            for row in decode_batch(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
                if row[1] >= timestamp_ms and row[0] >= source.start_offset:
                    return row[0]
        return None

    # -- maintenance -----------------------------------------------------------------------------------------

    def delete_before(self, offset: int, *, partition: int = 0) -> int:
        """Delete the records below `offset`; return the new log start."""
        return self.partition(partition).advance_start(offset)

    def retain(self) -> None:
        """Apply the topic's retention by age and size now, and remove idle producers."""
        for number in range(self.partitions):
            self.partition(number).expire_producers(self._log.clock.now_ms())
            retain(self.partition(number), self._log.clock.now_ms())

    def compact(self) -> list[Compacted]:
        """Compact the sealed segments to the last record of each key; appends may continue during this."""
        return [self._compact(self.partition(number)) for number in range(self.partitions)]

    def _compact(self, partition: PartitionLog) -> Compacted:
        now_ms = self._log.clock.now_ms()
        return Compaction(self._log.disk, self._log.folder.pool, partition, now_ms=now_ms).run()

    def flush(self) -> None:
        """Make everything durable now, regardless of the topic's `flush` setting."""
        for partition in list(self._partitions.values()):
            partition.sync()

    def close(self) -> None:
        """Close every partition even if one fails; the first fault is raised at the end."""
        with self._log.lock:
            self._closed = True
            partitions, self._partitions = list(self._partitions.values()), {}
        with contextlib.ExitStack() as stack:
            for partition in partitions:
                stack.callback(partition.close)

    def renew(self, meta: TopicMeta) -> None:
        """Apply changed settings."""
        self._meta = meta
        for partition in self._partitions.values():
            partition.settings = meta.settings


def _changed(source: PartitionLog, why: str) -> StorageFault:
    return StorageFault(f"batches changed on the disk after they were checked: {why}", source.folder)


class Log:
    """A data folder that this process alone has open. Use it in a `with` block, or call `close`."""

    def __init__(
        self,
        path: str,
        *,
        create: bool = True,
        disk: Disk | None = None,
        clock: Clock | None = None,
        open_files_max: int = OPEN_FILES_MAX,
    ) -> None:
        self.clock = clock or SystemClock()
        self.disk = disk or OsDisk()
        self.lock = threading.RLock()
        self.folder = DataFolder(self.disk, str(path), self.clock, create=create, open_files_max=open_files_max)
        self._topics: dict[str, Topic] = {}
        self._flusher: Flusher | None = None
        self.is_closed = False

    @property
    def path(self) -> str:
        return self.folder.path

    @property
    def flusher(self) -> Flusher:
        """The thread that syncs partitions without a waiting caller; starts on first use."""
        if self._flusher is None:
            with self.lock:
                if self._flusher is None:
                    self._flusher = Flusher(self.clock)
        return self._flusher

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _locked(self, change: Callable[[], Any]) -> Any:  # noqa: ANN401 - passes through what the change returns
        with self.lock:
            if self.is_closed:
                raise BrokerError(Reason.LOG_CLOSED, f"the log in {self.path} is closed")
            return change()

    # -- topics ----------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        return [meta.name for meta in self.folder.topics()]

    def topic(self, name: str) -> Topic:
        with self.lock:  # two objects for one topic would open its partitions twice
            topic = self._topics.get(name)
            if topic is None:
                topic = self._topics[name] = Topic(self, self.folder.topic(name))
            return topic

    def create_topic(self, name: str, *, partitions: int = 1, **settings: Any) -> Topic:  # noqa: ANN401
        """Create a topic; `settings` are fields of `TopicSettings` by name."""
        wanted = settings_from(settings)
        self._locked(lambda: self.folder.create_topic(name, partitions, wanted))
        return self.topic(name)

    def ensure_topic(self, name: str, *, partitions: int = 1, **settings: Any) -> Topic:  # noqa: ANN401
        """Return the topic; create it if it does not exist."""
        if name in self.topics():
            return self.topic(name)
        return self.create_topic(name, partitions=partitions, **settings)

    def alter_topic(self, name: str, *, partitions: int | None = None, **settings: Any) -> Topic:  # noqa: ANN401
        topic = self.topic(name)

        def change() -> None:
            meta = self.folder.topic(name)
            if settings:
                meta = self.folder.alter_topic(name, meta.settings.altered(settings))
            if partitions is not None and partitions != meta.partitions:
                meta = self.folder.grow_topic(name, partitions)
            topic.renew(meta)

        self._locked(change)
        return topic

    def delete_topic(self, name: str) -> None:
        def change() -> None:
            self.folder.topic(name)
            topic = self._topics.pop(name, None)
            if topic is not None:
                with contextlib.suppress(StorageFault):  # data that cannot be made durable is deleted next
                    topic.close()
            self.folder.delete_topic(name)

        self._locked(change)

    def describe(self, name: str) -> dict[str, Any]:
        """Return a topic's partitions and settings as plain values, for display."""
        topic = self.topic(name)
        logs = [topic.partition(number) for number in range(topic.partitions)]
        return {
            "name": name,
            "partitions": [
                {
                    "start": p.start_offset,
                    "end": p.end_offset,
                    "durable": p.durable_offset,
                    "bytes": p.size_bytes,
                }
                for p in logs
            ],
            "settings": msgspec.to_builtins(topic.settings),
        }

    def close(self) -> None:
        """Make everything durable, save the clean stop, and release the folder."""
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
        with contextlib.ExitStack() as stack:
            stack.callback(self.folder.release)
            for topic in self._topics.values():
                stack.callback(topic.close)
            if self._flusher is not None:
                self._flusher.stop()
