"""What an executor reads: whole batches of a range, a few of them ahead of who decodes them.

Knows: fetching, windows, slices of files. Refuses to know: records, columns.
Invariants: at most `WINDOW` chunks are fetched and not yet asked for, so that memory does not depend on how slow the query is; a
range is given to its end, or an error says why not. What was deleted between planning and reading is a loss like any other.
"""

import asyncio
from collections.abc import Iterator, Sequence

import msgspec

from braidlog.client.drivers.kafka.bulk import EARLIEST, Bare, BulkReader, RawFetched, whole
from braidlog.client.engine.retry import Backoff, retry
from braidlog.client.errors import Refusal, RefusedError
from braidlog.codec.batch.header import Buffer
from braidlog.codec.batch.read_committed import AbortedRange
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.spark.connections import Connection, borrowed
from braidlog.spark.source.logs import FolderLog
from braidlog.spark.source.losses import DELETED, Losses, Lost
from braidlog.spark.source.options import Query
from braidlog.spark.source.planning import Range
from braidlog.spark.source.positions import Place
from braidlog.storage.log.partition_log import FileSlice, PartitionLog
from braidlog.storage.state.transaction_index import ranges
from braidlog.tasks import Tasks

WINDOW = 4
"""Chunks that wait to be decoded. One more is on its way, and one is in the decoder's hands."""
BARE_BYTES_MAX = 8 * 1024 * 1024
"""Of the log, asked for at a time where a small part of it comes."""
_WAIT_MS = 500
_LOOKS_MAX = 20
_UNSEEN = (Reason.TOPIC_NOT_FOUND, Reason.PARTITION_NOT_FOUND)


class Chunk(msgspec.Struct, frozen=True):
    """Whole batches, from which offset on they are to be given, and the transactions that a reader does not see."""

    data: Buffer
    start: int
    aborted: Sequence[AbortedRange]


class _Gone(Exception):  # noqa: N818 - a finding: the range begins later than it did
    def __init__(self, offset: int) -> None:
        self.offset = offset


def read_chunks(query: Query, wanted: Range, bare: Bare = Bare.NOTHING) -> Iterator[Chunk]:
    """The batches that hold the range, with what stands before and after it in the first and the last of them.

    `bare` is what their records may come without.
    """
    if query.servers is None:
        yield from _from_folder(query, wanted)
        return
    with borrowed(query.servers, committed_only=query.committed_only) as connection:
        at = wanted.start
        while at < wanted.end:
            ahead = Ahead(connection, wanted.place, query.fetch_bytes, at, wanted.end, bare)
            try:
                yield from ahead
                at = wanted.end
            except _Gone:
                at = _after_loss(query, connection, wanted, ahead.read_upto)


def _after_loss(query: Query, connection: Connection, wanted: Range, at: int) -> int:
    earliest = connection.ask(lambda: connection.reader.offsets({wanted.place: EARLIEST}))[wanted.place] or 0
    first = min(max(earliest, at), wanted.end)
    if first == at:
        raise RefusedError(
            Refusal.OFFSET_OUT_OF_RANGE, "kafka", "", f"{wanted.topic}/{wanted.partition}: no offset {at}"
        )
    Losses(query).handle([Lost(*wanted.place, at, first, DELETED)])
    return first


# -- from a server -----------------------------------------------------------------------------------------------------


class Ahead:
    """Fetches in the connection's own thread while the caller decodes."""

    def __init__(
        self,
        connection: Connection,
        place: Place,
        fetch_bytes: int,
        start: int,
        end: int,
        bare: Bare = Bare.NOTHING,
    ) -> None:
        self._connection = connection
        self._place = place
        self._fetch_bytes = fetch_bytes
        self._asked_bytes = fetch_bytes
        self._bare = bare
        self._end = end
        self.read_upto = start
        """Everything below was given."""
        self.waiting_max = 0
        """Chunks that were fetched and not yet asked for, at most."""

    def __iter__(self) -> Iterator[Chunk]:
        """Who wants no more than one chunk holds, as a small micro-batch does, waits for one answer and nothing else."""
        found = self._connection.run(self._fetch(self.read_upto))
        if found.next_offset >= self._end:
            yield self._given(found)
            return
        queue: asyncio.Queue[RawFetched | BaseException] = asyncio.Queue(WINDOW)
        tasks = Tasks()
        at = found.next_offset
        self._connection.make(lambda: tasks.spawn(self._pump(queue, at), f"fetch {self._place}"))
        try:
            yield self._given(found)
            del found  # a chunk may be large, and is the reader's now
            while self.read_upto < self._end:
                came = self._connection.run(queue.get())
                if isinstance(came, BaseException):
                    raise came
                yield self._given(came)
        finally:
            self._connection.run(tasks.stop())

    def _given(self, found: RawFetched) -> Chunk:
        start, self.read_upto = self.read_upto, found.next_offset
        return Chunk(found.data, start, found.aborted)

    async def _pump(self, queue: "asyncio.Queue[RawFetched | BaseException]", at: int) -> None:
        try:
            while at < self._end:
                found = await self._fetch(at)
                await queue.put(found)
                self.waiting_max = max(self.waiting_max, queue.qsize())
                at = found.next_offset
        except Exception as error:  # noqa: BLE001 - raised where somebody waits for the next chunk
            await queue.put(error)

    async def _fetch(self, at: int) -> RawFetched:
        """The next batches: what was planned is there, though a new leader may need a while to say so."""
        reader: BulkReader = self._connection.reader
        backoff = Backoff(self._connection.policy)

        async def once() -> RawFetched:
            asked = self._asked_bytes
            found = await reader.fetch(self._place, at, bytes_max=asked, wait_ms=_WAIT_MS, bare=self._bare)
            if self._bare:
                self._asked_bytes = next_bytes(asked, len(found.data), self._fetch_bytes)
            return found

        while True:
            try:
                found = await retry(self._connection.policy, once)
            except RefusedError as error:
                if error.reason is not Refusal.OFFSET_OUT_OF_RANGE:
                    raise
                raise _Gone(at) from error
            if found.next_offset > at:
                return found
            if not await backoff.pause():
                topic, partition = self._place
                said = f"{topic}/{partition} has nothing at {at}, though it went to {self._end}; now to {found.readable_end}"
                raise RefusedError(Refusal.FAILED, "kafka", "", said)


def next_bytes(asked: int, came: int, fetch_bytes: int) -> int:
    """More of the log at a time while little of it comes, so that as many bytes come as where all do; after a whole answer, what
    the query set."""
    return min(asked * 2, max(BARE_BYTES_MAX, asked)) if came * 4 < asked else fetch_bytes


# -- from a folder -----------------------------------------------------------------------------------------------------

_folders: dict[tuple[str, bool], FolderLog] = {}
"""Looks at folders that this process keeps: a stream of small batches does not read every head again."""


def _from_folder(query: Query, wanted: Range) -> Iterator[Chunk]:
    """One look at the partition serves the whole range, unless it fails: a node that writes changes files all the time."""
    at, looks = wanted.start, 0
    partition: PartitionLog | None = None
    while at < wanted.end:
        try:
            if partition is None:
                partition = _folder(query, anew=looks > 0).partition(wanted.place)
                partition.forget_checks()  # this process may have looked at it days ago
            first = min(partition.start_offset, wanted.end)
            if at < first:
                Losses(query).handle([Lost(*wanted.place, at, first, DELETED)])
                at = first
                continue
            found, data = _slice(partition, at, query.fetch_bytes)
        except (StorageFault, BrokerError, RefusedError) as error:
            # The node may have exchanged a segment or made a partition since we looked: then another look finds it.
            looks += 1
            if looks >= _LOOKS_MAX or (isinstance(error, BrokerError) and error.reason not in _UNSEEN):
                raise
            partition = None
            continue
        aborted = partition.aborted_in(found.offset, found.next_offset) if query.committed_only else []
        yield Chunk(data, at, ranges(aborted))
        at = found.next_offset


def _folder(query: Query, *, anew: bool) -> FolderLog:
    assert query.path is not None
    key = query.path, query.committed_only
    if anew or key not in _folders:
        _folders[key] = FolderLog(query.path, committed_only=query.committed_only)
    return _folders[key]


def _slice(partition: PartitionLog, at: int, bytes_max: int) -> tuple[FileSlice, bytes]:
    found = partition.slice_at(at, bytes_max)
    if found is None:
        raise StorageFault(f"nothing is at offset {at}, which was there when the query was planned", partition.folder)
    data = found.read()
    # A rewrite may have taken the file's name since its batches were checked: bytes of the right place, of another offset.
    begins = int.from_bytes(data[:8], "big")
    if (begins, whole(memoryview(data), begins)[1]) != (found.offset, found.next_offset):
        raise StorageFault(f"offset {at} is not where it was when the log was looked at", partition.folder)
    return found, data
