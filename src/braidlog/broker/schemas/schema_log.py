"""The log of the schema registry: one partition of a compacted topic. Only a writer that has read all of it may
append.

Does not handle: the content of records (the registry interprets them, in a separate process).
Invariants: a record is appended at the offset up to which its writer has read, or refused; so of two nodes that
decide on the same state, one must read again. A record is acknowledged only when all in-sync replicas have it. A
topic that was deleted and created again is a different topic: its readers start over.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

import msgspec

from braidlog.broker.forwarding import Forwarding, read_asked
from braidlog.broker.topics import Topics
from braidlog.codec.batch.records import encode_batch
from braidlog.model.errors import BrokerError, NotLeaderError, Reason
from braidlog.model.reporting.node_report import SchemaPage
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.fetch.fetch import Fetch
from braidlog.partition.partition import Partition
from braidlog.partition.partition_registry import PartitionRegistry
from braidlog.partition.produce.append import Acks, Append

CALL: Final = "schema-log"
TOPIC: Final = "_schemas"
SETTINGS: Final = {"compact": True, "delete": False, "flush": "ack"}
PAGE_BYTES_MAX: Final = 1024 * 1024
ACKS_MS: Final = 5_000
KNOWN_SECONDS_MAX: Final = 5.0
LOOK_SECONDS: Final = 0.02

Entry = tuple[bytes, bytes | None]
"""Key and value; None as value deletes the key."""


class Place(NamedTuple):
    """The position of a reader: the topic's id ("" if the topic does not exist), and the next offset."""

    topic_id: str = ""
    offset: int = 0


class _Asked(msgspec.Struct, frozen=True, array_like=True):
    """A request between nodes: append `entries`, or without them read a page."""

    place: Place
    entries: list[Entry] = []


class SchemaReader:
    """Reads the log on any node, from its leader."""

    def __init__(self, hosting: PartitionRegistry, fetch: Fetch, forwarding: Forwarding) -> None:
        self._hosting = hosting
        self._fetch = fetch
        self._forwarding = forwarding

    async def read(self, place: Place) -> SchemaPage:
        """Return the committed records after a place, about `PAGE_BYTES_MAX` at most."""
        if TOPIC not in self._hosting.topics:
            return SchemaPage("", 0, 0, 0, [])
        return await self.ask(_Asked(place), partial(self.read_here, place), changes=False)

    async def ask(self, asked: _Asked, here: Callable[[], Awaitable[SchemaPage]], *, changes: bool) -> SchemaPage:
        """Return the result of `here` if this node leads the log, else the leader's answer."""
        return await self._forwarding.at_owner(CALL, asked, SchemaPage, here, elsewhere=NotLeaderError, changes=changes)

    def leading(self) -> tuple[Partition, str]:
        """Return the partition and its topic's id; raise NOT_LEADER if another node leads it."""
        hosted = self._hosting.partition(TOPIC, 0)
        hosted.require_leader()
        return hosted, self._hosting.meta(TOPIC).topic_id

    async def read_here(self, place: Place) -> SchemaPage:
        """Return a page of the log, which this node leads."""
        hosted, topic_id = self.leading()
        is_there = place.topic_id == topic_id and hosted.start_offset <= place.offset <= hosted.high_watermark
        begin = place.offset if is_there else hosted.start_offset
        found = await self._fetch.records(TOPIC, 0, begin, bytes_max=PAGE_BYTES_MAX, leader_only=True)
        # Confluent's records always have keys; a foreign record without one has no meaning here.
        entries = [(bytes(each.key or b""), each.value) for each in found.records]
        return SchemaPage(topic_id, begin, found.next_offset, found.high_watermark, entries)


class SchemaLog:
    """Reads and appends to the log on any node, at its leader."""

    def __init__(
        self,
        reader: SchemaReader,
        hosting: PartitionRegistry,
        topics: Topics,
        append: Append,
        forwarding: Forwarding,
        runtime: Runtime,
    ) -> None:
        self.reader = reader
        self._hosting = hosting
        self._topics = topics
        self._append = append
        self._runtime = runtime
        self.read = reader.read
        forwarding.answers[CALL] = self.handle_call

    async def append(self, place: Place, entries: list[Entry]) -> SchemaPage:
        """Append at exactly this place. VERSION_CONFLICT if the log ends elsewhere: the caller reads on and decides
        again."""
        if TOPIC not in self._hosting.topics:
            await self._make()
        here = partial(self._append_here, place, entries)
        return await self.reader.ask(_Asked(place, entries), here, changes=True)

    async def _make(self) -> None:
        """Create the topic, and wait until this node knows it."""
        try:
            await self._topics.create(TOPIC, 1, settings=SETTINGS)
        except BrokerError as error:
            if error.reason is not Reason.TOPIC_EXISTS:
                raise
        until = self._runtime.monotonic() + KNOWN_SECONDS_MAX
        while TOPIC not in self._hosting.topics and self._runtime.monotonic() < until:
            await self._runtime.wakeup(owed=True).wait(LOOK_SECONDS)  # another node has just created it

    async def handle_call(self, body: bytes) -> bytes:
        """Read or append for another node."""
        asked = read_asked(body, _Asked)
        if asked.entries:
            return msgspec.msgpack.encode(await self._append_here(asked.place, asked.entries))
        return msgspec.msgpack.encode(await self.reader.read_here(asked.place))

    async def _append_here(self, place: Place, entries: list[Entry]) -> SchemaPage:
        self.reader.leading()
        await self._append.ready(TOPIC, 0)
        # No await from here to the write, so that the end offset cannot change.
        hosted, topic_id = self.reader.leading()
        settings = self._hosting.meta(TOPIC).settings
        if settings.delete or not settings.compact:
            raise BrokerError(
                Reason.INVALID_SETTING,
                f"topic {TOPIC!r} would forget schemas: set its cleanup.policy to compact",
            )
        # A reader of the missing topic has read all of a topic that was created since.
        offset = place.offset if place.topic_id in (topic_id, "") else -1
        if hosted.end_offset != offset:
            raise BrokerError(Reason.VERSION_CONFLICT, "the schemas have changed: read them again")
        keys, values = [key for key, _ in entries], [value for _, value in entries]
        batch = encode_batch(values, keys=keys, base_timestamp=self._runtime.now_ms())
        written = self._append.write(TOPIC, 0, batch, acks=Acks.ALL)
        appended = await self._append.acknowledge(written, acks=Acks.ALL, timeout_ms=ACKS_MS)
        return SchemaPage(topic_id, appended.base_offset, appended.next_offset, appended.next_offset, [])
