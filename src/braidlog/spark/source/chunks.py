"""An executor's reads: whole batches of a range, prefetched for the decoder.

Does not handle: records, columns. At most `WINDOW` fetched chunks wait, so that memory does not depend on the speed
of the query. A range is returned completely, or an error says why not. Records that were deleted between planning and
reading are a loss like any other.
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
"""Chunks that wait to be decoded. One more is in flight, and one is being decoded."""
BARE_BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes of the log per request if only a small part of them is sent."""
_WAIT_MS = 500
_LOOKS_MAX = 20
_UNSEEN = (Reason.TOPIC_NOT_FOUND, Reason.PARTITION_NOT_FOUND)


class Chunk(msgspec.Struct, frozen=True):
    """Whole batches, the offset from which their records are needed, and the aborted transactions to hide."""

    data: Buffer
    start: int
    aborted: Sequence[AbortedRange]


class _Gone(Exception):  # noqa: N818 - a finding: the range begins later than it did
    def __init__(self, offset: int) -> None:
        self.offset = offset


def read_chunks(query: Query, span: Range, bare: Bare = Bare.NOTHING) -> Iterator[Chunk]:
    """Return the batches that contain the range; the first and the last may contain records outside it.

    `bare`: the fields that their records may omit.
    """
    if query.servers is None:
        yield from _from_folder(query, span)
        return
    with borrowed(query.servers, committed_only=query.committed_only) as connection:
        at = span.start
        while at < span.end:
            ahead = Ahead(connection, span.place, query.fetch_bytes, at, span.end, bare)
            try:
                yield from ahead
                at = span.end
            except _Gone:
                at = _after_loss(query, connection, span, ahead.read_upto)


def _after_loss(query: Query, connection: Connection, span: Range, at: int) -> int:
    earliest = connection.ask(lambda: connection.reader.offsets({span.place: EARLIEST}))[span.place] or 0
    first = min(max(earliest, at), span.end)
    if first == at:
        raise RefusedError(Refusal.OFFSET_OUT_OF_RANGE, "kafka", "", f"{span.topic}/{span.partition}: no offset {at}")
    Losses(query).handle([Lost(*span.place, at, first, DELETED)])
    return first


# -- from a server -----------------------------------------------------------------------------------------------------


class Ahead:
    """Fetches in the connection's thread while the caller decodes."""

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
        """The offset before which everything was returned."""
        self.waiting_max = 0
        """The highest number of chunks that were waiting."""

    def __iter__(self) -> Iterator[Chunk]:
        """Yield chunks. A range that fits one chunk, as in a small micro-batch, needs one request and no
        prefetching."""
        fetched = self._connection.run(self._fetch(self.read_upto))
        if fetched.next_offset >= self._end:
            yield self._given(fetched)
            return
        queue: asyncio.Queue[RawFetched | BaseException] = asyncio.Queue(WINDOW)
        tasks = Tasks()
        at = fetched.next_offset
        self._connection.make(lambda: tasks.spawn(self._pump(queue, at), f"fetch {self._place}"))
        try:
            yield self._given(fetched)
            del fetched  # a chunk may be large, and belongs to the reader now
            while self.read_upto < self._end:
                came = self._connection.run(queue.get())
                if isinstance(came, BaseException):
                    raise came
                yield self._given(came)
        finally:
            self._connection.run(tasks.stop())

    def _given(self, fetched: RawFetched) -> Chunk:
        start, self.read_upto = self.read_upto, fetched.next_offset
        return Chunk(fetched.data, start, fetched.aborted)

    async def _pump(self, queue: "asyncio.Queue[RawFetched | BaseException]", at: int) -> None:
        try:
            while at < self._end:
                fetched = await self._fetch(at)
                await queue.put(fetched)
                self.waiting_max = max(self.waiting_max, queue.qsize())
                at = fetched.next_offset
        except Exception as error:  # noqa: BLE001 - raised to the reader that waits for the next chunk
            await queue.put(error)

    async def _fetch(self, at: int) -> RawFetched:
        """Fetch the next batches. Planned records exist, although a new leader may need time to serve them."""
        reader: BulkReader = self._connection.reader
        backoff = Backoff(self._connection.policy)

        async def once() -> RawFetched:
            asked = self._asked_bytes
            fetched = await reader.fetch(self._place, at, bytes_max=asked, wait_ms=_WAIT_MS, bare=self._bare)
            if self._bare:
                self._asked_bytes = next_bytes(asked, len(fetched.data), self._fetch_bytes)
            return fetched

        while True:
            try:
                fetched = await retry(self._connection.policy, once)
            except RefusedError as error:
                if error.reason is not Refusal.OFFSET_OUT_OF_RANGE:
                    raise
                raise _Gone(at) from error
            if fetched.next_offset > at:
                return fetched
            if not await backoff.pause():
                topic, partition = self._place
                said = f"{topic}/{partition} has nothing at {at}, though it went to {self._end}; now to {fetched.readable_end}"
                raise RefusedError(Refusal.FAILED, "kafka", "", said)


def next_bytes(asked: int, came: int, fetch_bytes: int) -> int:
    """Return the request size: larger if the server sends only a part of the log's bytes; after a full answer the
    query's setting."""
    return min(asked * 2, max(BARE_BYTES_MAX, asked)) if came * 4 < asked else fetch_bytes


# -- from a folder -----------------------------------------------------------------------------------------------------

_folders: dict[tuple[str, bool], FolderLog] = {}
"""Folders that this process has opened: a stream of small batches does not read every segment header again."""


def _from_folder(query: Query, span: Range) -> Iterator[Chunk]:
    """Read the range from one view of the partition, unless that fails: an active node changes files all the time."""
    at, looks = span.start, 0
    partition: PartitionLog | None = None
    while at < span.end:
        try:
            if partition is None:
                partition = _folder(query, anew=looks > 0).partition(span.place)
                partition.forget_checks()  # this process may have opened it days ago
            first = min(partition.start_offset, span.end)
            if at < first:
                Losses(query).handle([Lost(*span.place, at, first, DELETED)])
                at = first
                continue
            piece, data = _slice(partition, at, query.fetch_bytes)
        except (StorageFault, BrokerError, RefusedError) as error:
            # The node may have replaced a segment or created a partition since we opened the folder: open it again.
            looks += 1
            if looks >= _LOOKS_MAX or (isinstance(error, BrokerError) and error.reason not in _UNSEEN):
                raise
            partition = None
            continue
        aborted = partition.aborted_in(piece.offset, piece.next_offset) if query.committed_only else []
        yield Chunk(data, at, ranges(aborted))
        at = piece.next_offset


def _folder(query: Query, *, anew: bool) -> FolderLog:
    assert query.path is not None
    key = query.path, query.committed_only
    if anew or key not in _folders:
        _folders[key] = FolderLog(query.path, committed_only=query.committed_only)
    return _folders[key]


def _slice(partition: PartitionLog, at: int, bytes_max: int) -> tuple[FileSlice, bytes]:
    piece = partition.slice_at(at, bytes_max)
    if piece is None:
        raise StorageFault(f"no record at offset {at}, which existed when the query was planned", partition.folder)
    data = piece.read()
    # A compaction may have reused the file's name since its batches were checked: the same position, another offset.
    begins = int.from_bytes(data[:8], "big")
    if (begins, whole(memoryview(data), begins)[1]) != (piece.offset, piece.next_offset):
        raise StorageFault(
            f"offset {at} is no longer at its position: the log has changed since it was opened", partition.folder
        )
    return piece, data
