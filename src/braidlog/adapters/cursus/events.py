"""Cursus's event store: streams of versions, and snapshots of them."""

from braidlog.adapters.contract import Conversation
from braidlog.adapters.cursus.reading import fit
from braidlog.adapters.cursus.records import headers_of
from braidlog.adapters.cursus.services import Services
from braidlog.coordinator.event_streams import VersionConflict
from braidlog.coordinator.snapshot_store import Snapshot
from braidlog.model.errors import BrokerError, Reason
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.batch import BatchRecord
from braidlog.wire.cursus.messages import Request

EVENTS_MAX = 100_000
"""Maximum bytes of a stream: it is read in one answer."""


async def _stream_key(services: Services, topic: str, key: str) -> bytes:
    if not services.hosting.meta(topic).settings.event_streams:
        raise BrokerError(Reason.STREAM_NOT_FOUND, f"topic {topic!r} was created without event_sourcing=true")
    encoded = key.encode()
    services.hosting.partition(topic, await services.streams.partition_of(topic, encoded)).require_leader()
    return encoded


async def append_stream(message: r.AppendStream, services: Services, _: Conversation) -> a.Appended:
    key = await _stream_key(services, message.topic, message.key)
    if message.version == 0:
        # Versions begin at 1. Lower numbers mean "any version" to the services, which this client did not request.
        current = await services.streams.version(message.topic, key)
        raise VersionConflict(message.topic, key, current=current, expected=0)
    event = BatchRecord(
        message.message,
        producer_id=message.producer_id,
        event_type=message.event_type,
        schema_version=message.schema_version or 0,
        metadata=message.metadata,
    )
    placed = await services.streams.append(message.topic, key, message.version - 1, message.message, headers_of(event))
    return a.Appended(placed.version, placed.offset, placed.partition)


async def read_stream(request: Request, services: Services, conversation: Conversation) -> a.StreamContents:
    """Without `from_version`: return the snapshot, and the events after it. With it: events from there on, and a
    snapshot only if it is not older.
    """
    message: r.ReadStream = request.message
    key = await _stream_key(services, message.topic, message.key)
    snapshot = await services.streams.snapshot(message.topic, key)
    start = message.from_version or 0
    if snapshot is not None and snapshot.version < start:
        snapshot = None
    start = start or (snapshot.version + 1 if snapshot is not None else 1)
    found = await services.streams.read(message.topic, key, start, EVENTS_MAX)
    partition = await services.streams.partition_of(message.topic, key)
    events, count = fit(request, conversation, message.topic, partition, [record for _, record in found])
    if count < len(found) or count == EVENTS_MAX:
        raise BrokerError(
            Reason.RECORD_TOO_LARGE,
            f"the stream does not fit one answer; {count} events from version {start} on fit: save a snapshot",
        )
    return a.StreamContents(message.topic, message.key, partition, events, _show(snapshot))


async def stream_version(message: r.StreamVersion, services: Services, _: Conversation) -> a.Version:
    key = await _stream_key(services, message.topic, message.key)
    return a.Version(await services.streams.version(message.topic, key))


async def save_snapshot(message: r.SaveSnapshot, services: Services, conversation: Conversation) -> a.SnapshotSaved:
    key = await _stream_key(services, message.topic, message.key)
    snapshot = Snapshot(message.version, message.message)
    await services.streams.save_snapshot(message.topic, key, snapshot, by=conversation.principal)
    return a.SnapshotSaved(message.version, await services.streams.partition_of(message.topic, key))


async def read_snapshot(message: r.ReadSnapshot, services: Services, _: Conversation) -> a.SnapshotFound:
    key = await _stream_key(services, message.topic, message.key)
    return a.SnapshotFound(_show(await services.streams.snapshot(message.topic, key)))


def _show(snapshot: Snapshot | None) -> a.Snapshot | None:
    return None if snapshot is None else a.Snapshot(snapshot.version, snapshot.payload.decode("utf-8", "replace"))
