"""Counts and memory of one node's keys.

Invariant: a node of a cluster counts only the slots that it leads, so that the nodes' counts can be added.
"""

from collections.abc import Sequence

from braidlog.broker.keys.slot_service import SlotService
from braidlog.kv.engine.operations import MemoryUsage, Stats
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.engine.store import Store


def memory_of(slots: SlotService, settings: KeyValueSettings, resident_bytes: int) -> MemoryUsage:
    """Return the memory of all keys that this node holds, led here or not."""
    return MemoryUsage(
        used_bytes=slots.used_bytes(),
        limit_bytes=settings.memory_bytes_max,
        peak_bytes=slots.peak_bytes,
        keys=sum(len(each.slot.keyspace) for each in slots.local_logs().values() if each.is_leader),
        resident_bytes=resident_bytes,
    )


def stats_of(stores: Sequence[Store], *, reads: int = 0, hits: int = 0, **more: int) -> Stats:
    """Return the counts of some stores. `reads` are those that no store has counted, `hits` those of them that found
    their key."""
    spaces = [each.keyspace for each in stores]
    keys, lists, hashes = sum(map(len, spaces)), sum(each.lists for each in spaces), sum(each.hashes for each in spaces)
    return Stats(
        keys=keys,
        keys_with_ttl=sum(len(each.deadlines) for each in spaces),
        strings=keys - lists - hashes,
        lists=lists,
        hashes=hashes,
        operations=reads + sum(each.operations for each in stores),
        hits=hits + sum(each.hits for each in stores),
        misses=reads - hits + sum(each.misses for each in stores),
        mutations=sum(each.mutations for each in stores),
        expired=sum(each.expired for each in stores),
        evicted=sum(each.evicted for each in stores),
        refused_for_memory=sum(each.refused_for_memory for each in stores),
        **more,
    )


def stats_of_slots(slots: SlotService, *, uptime_seconds: int, feed_sequence: int) -> Stats:
    """Return the counts of the slots led here."""
    led = [each for each in slots.local_logs().values() if each.is_leader]
    return stats_of(
        [each.slot.store for each in led],
        reads=slots.reads,
        hits=slots.hits,
        uptime_seconds=uptime_seconds,
        sequence=sum(each.slot.applied for each in led),
        durable_sequence=sum(each.committed for each in led),
        feed_sequence=feed_sequence,
        wal_bytes=sum(each.log_bytes for each in led),
        wal_files=len(led),
        snapshots=slots.checkpoints,
        snapshot_sequence=sum(each.slot.begins_at for each in led),
        snapshot_taken_ms=0,
    )
