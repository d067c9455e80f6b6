"""Metadata store of a single node: an internal topic in its own data folder.

Invariants: proposals run one at a time, and a proposal is durable before it is applied. A snapshot is durable before
the entries that it replaces are deleted.

Each batch is one record, in JSON (docs/formats/metadata.md):

    {"seq":17,"events":[{"event_type":1,"data":{…}}]}      an entry
    {"seq":17,"image":{…}}                                 the state after entries 1 to 17

The topic `__metadata` is a normal topic: recovery, checks and the offline tools treat it like any other.
"""

from collections.abc import Iterable, Sequence

import msgspec

from braidlog.cluster.metadata.events import (
    ChangeLeader,
    CreateTopic,
    Envelope,
    Event,
    FolderMade,
    PlaceTopic,
    pack,
    unpack,
)
from braidlog.cluster.metadata.history import History
from braidlog.cluster.metadata.image import Image, decode_image
from braidlog.cluster.metadata.metadata_store import Conflict, Entry
from braidlog.codec.batch.records import encode_batch
from braidlog.codec.compression import Compression
from braidlog.model.errors import StorageFault
from braidlog.model.limits import BATCH_BYTES_MAX
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import InternalLog, Runtime
from braidlog.model.settings import Flush, TopicSettings
from braidlog.storage.folder.data_folder import TopicMeta

INTERNAL_PREFIX = "__"
METADATA_TOPIC = f"{INTERNAL_PREFIX}metadata"
SNAPSHOT_EVERY = 5_000
METADATA_SETTINGS = TopicSettings(flush=Flush.ACK, segment_bytes=16 * 1024 * 1024, batch_bytes_max=BATCH_BYTES_MAX)
_TURN = "the metadata log"


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record: an entry or a snapshot."""

    seq: int
    events: list[Envelope] | None = None
    image: msgspec.Raw = msgspec.Raw()


class LocalStore:
    """A `MetadataStore` over a log in the node's own folder."""

    is_alone = True

    def __init__(self, log: InternalLog, runtime: Runtime, *, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        self._log = log
        self._runtime = runtime
        self._turns = KeyedLock(runtime)
        self._snapshot_every = snapshot_every
        self._since_snapshot = 0
        self._recent: list[Entry] = []
        self._seq = 0
        self.history = History()
        self._in_doubt: tuple[int, Sequence[Event]] | None = None
        """An appended entry that is not known to be durable: the log end after it, and its events."""

    def load(self) -> tuple[Image, int]:
        image, seq = Image(), 0
        self._since_snapshot = 0
        for row in self._log.rows():
            try:
                line = msgspec.json.decode(row[3] or b"", type=Line)
                events = unpack(line.events or [])
                loaded = decode_image(line.image) if line.image else None
            except msgspec.MsgspecError as error:
                raise StorageFault(f"entry {seq + 1} of the metadata log does not decode: {error}") from error
            if loaded is not None:
                image, seq = loaded, line.seq
                self._since_snapshot = 0
                continue
            if line.seq != seq + 1:
                raise StorageFault(f"metadata log: entry {line.seq} follows entry {seq}")
            for event in events:
                self.history.apply(image, event, line.seq, row[1])
            self.history.finish(line.seq)
            seq = line.seq
            self._since_snapshot += 1
        self._seq = seq
        self._recent.clear()
        return image, seq

    async def propose(self, events: Sequence[Event], after: int) -> int | Conflict:
        async with self._turns.acquire(_TURN):
            if after != await self._settle():
                return Conflict(self._seq)
            self._in_doubt = self.write(events), events
            return await self._settle()

    async def _settle(self) -> int:
        """Number of the last entry, once it is durable.

        An entry whose sync failed on a full disk stays in the log. It takes effect with the next successful sync, and
        no other proposal is decided before.
        """
        if self._in_doubt is not None:
            next_offset, events = self._in_doubt
            await self._log.durable(next_offset)
            self._in_doubt = None
            self._took(events)
        return self._seq

    def write(self, events: Sequence[Event]) -> int:
        """Append the next entry; returns the offset up to which the log must be durable."""
        return self._log.append(self._batch(Line(self._seq + 1, events=pack(events))))

    def write_durably(self, events: Sequence[Event]) -> None:
        """Append events durably. For callers with exclusive access: before the node serves, and in tests."""
        self.write(events)
        self._log.sync()
        self._took(events)

    def _took(self, events: Sequence[Event]) -> int:
        self._seq += 1
        self._since_snapshot += 1
        self._recent.append(Entry(self._seq, events, self._runtime.now_ms()))
        return self._seq

    def _batch(self, line: Line) -> bytes:
        compression = Compression.ZSTD if line.image else Compression.NONE
        return encode_batch([msgspec.json.encode(line)], base_timestamp=self._runtime.now_ms(), compression=compression)

    def follow(self, after: int) -> Sequence[Entry]:
        self._recent = [entry for entry in self._recent if entry.seq > after]
        return list(self._recent)

    async def save(self, image: Image, seq: int) -> None:
        if self._since_snapshot < self._snapshot_every:
            return
        copy = image.copy()  # copied now: the image may change before the lock is acquired
        async with self._turns.acquire(_TURN):
            if seq == await self._settle():  # otherwise the writer of the later entry saves a later image
                await self._runtime.blocking(lambda: self._log.replace(self._batch(_snapshot(copy, seq))))
                self._since_snapshot = 0

    def close(self) -> None:
        self._log.close()


def _snapshot(image: Image, seq: int) -> Line:
    return Line(seq, image=msgspec.Raw(msgspec.json.encode(image)))


def open_local_store(
    log: InternalLog,
    runtime: Runtime,
    *,
    node: str,
    topics: Iterable[TopicMeta] = (),
    snapshot_every: int = SNAPSHOT_EVERY,
) -> LocalStore:
    """Open the store over a folder's metadata log. `topics` are those in the folder, see `_unadopted_topic_events`."""
    store = LocalStore(log, runtime, snapshot_every=snapshot_every)
    image, seq = store.load()
    events = [*_rename_events(image, node), *_unadopted_topic_events(image, topics, node, all_of_them=seq == 0)]
    if events:
        store.write_durably(events)
    return store


def _unadopted_topic_events(image: Image, topics: Iterable[TopicMeta], node: str, *, all_of_them: bool) -> list[Event]:
    """Events that add topics created without a node, with their ids. Unknown topics that a node created are not added.

    With an empty log all topics are added: it is the node's first start, or its owner continues without a lost log.
    """
    return [
        event
        for meta in topics
        if (all_of_them or not meta.by_metadata)
        and meta.name not in image.topics
        and meta.topic_id not in image.deleted
        for event in _adoption_events(meta, node)
    ]


def _adoption_events(meta: TopicMeta, node: str) -> list[Event]:
    created = CreateTopic(
        topic=meta.name,
        topic_id=meta.topic_id,
        partitions=meta.partitions,
        settings=meta.settings,
        created_ms=meta.created_ms,
        replicas=(node,),
    )
    if meta.name.startswith(INTERNAL_PREFIX):  # the folder itself records internal topics
        return [created]
    return [created, FolderMade(topic=meta.name, topic_id=meta.topic_id, node_id=node, partitions=meta.partitions)]


def _rename_events(image: Image, node: str) -> list[Event]:
    """Events that move everything to the node's new name, as a local log has exactly one node."""
    events: list[Event] = []
    for topic in image.topics.values():
        former = topic.holder
        if former in ("", node):
            continue
        replicas = (node, *(other for other in topic.observers if other != node))
        events.append(
            PlaceTopic(topic=topic.name, topic_id=topic.topic_id, replicas=replicas, min_in_sync=topic.min_in_sync)
        )
        events += [
            ChangeLeader(topic=topic.name, partition=number, leader_id=node, leader_epoch=each.leader_epoch + 1)
            for number, each in enumerate(topic.assignments)
            if each.leader is not None
        ]
        if made := image.made_by(former, topic):
            events.append(FolderMade(topic=topic.name, topic_id=topic.topic_id, node_id=node, partitions=made))
    return events
