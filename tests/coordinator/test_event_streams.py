"""Event streams: versions under contention, snapshots, the index as a fold of the log."""

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from tests.broker.node import Node, cut
from tests.model.manual_world import Job
from tests.refusals import refused_with

from braidlog.codec.batch.records import encode_batch
from braidlog.codec.batch.records_section import Row
from braidlog.codec.murmur import partition_for_key
from braidlog.coordinator import event_streams
from braidlog.coordinator.event_streams import (
    ANY_VERSION,
    VERSION_HEADER,
    StreamPosition,
    VersionConflict,
)
from braidlog.coordinator.snapshot_store import Snapshot
from braidlog.model.errors import Reason


@pytest.fixture
def node() -> Node:
    made = Node()
    made.create("s", 3)
    return made


def events(node: Node, key: bytes, **more: int) -> list[tuple[int, bytes | None]]:
    found = node.run(node.services.streams.read("s", key, **more))
    return [(version, record.value) for version, record in found]


def version(node: Node, key: bytes) -> int:
    return node.run(node.services.streams.version("s", key))


def event(node: Node, key: bytes, expected: int, value: bytes) -> StreamPosition:
    return node.run(node.services.streams.append("s", key, expected, value))


def test_versions_count_up(node: Node) -> None:
    for number in range(5):
        position = event(node, b"k", number, b"%d" % number)
        assert position.version == number + 1
        assert position.partition == partition_for_key(b"k", 3)
    assert version(node, b"k") == 5
    assert version(node, b"other") == 0
    assert events(node, b"k", from_version=2, count_max=3) == [(2, b"1"), (3, b"2"), (4, b"3")]
    assert events(node, b"k", from_version=-7) == events(node, b"k")
    assert events(node, b"k", from_version=6) == []
    assert events(node, b"other") == []


def test_a_writer_must_know_the_last_version(node: Node) -> None:
    event(node, b"k", 0, b"x")
    for expected in (0, 2, 7, -2):
        with pytest.raises(VersionConflict) as caught:
            event(node, b"k", expected, b"y")
        assert (caught.value.current, caught.value.expected) == (1, expected)
        assert caught.value.reason is Reason.VERSION_CONFLICT
    assert event(node, b"k", ANY_VERSION, b"y").version == 2


def test_headers_are_kept_but_the_version_is_ours(node: Node) -> None:
    headers = (("eventType", b"Paid"), (VERSION_HEADER, b"99"))
    node.run(node.services.streams.append("s", b"k", 0, b"v", headers))
    ((_, record),) = node.run(node.services.streams.read("s", b"k"))
    assert record.headers == (("eventType", b"Paid"), (VERSION_HEADER, b"1"))


@pytest.mark.parametrize("seed", range(40))
def test_interleaved_writers_never_share_a_version(seed: int) -> None:
    """Optimistic writers race; each retries on a conflict. In the end: every event once, versions without a gap."""
    rng = Random(seed)
    node = Node(rng=rng)
    node.create("s", 2)
    service = node.services.streams
    conflicts = 0

    async def writer(name: int) -> None:
        nonlocal conflicts
        for number in range(5):
            key = b"k%d" % rng.randrange(2)
            while True:
                expected = await service.version("s", key)
                if rng.random() < 0.5:
                    await node.runtime.pause()  # the classic race: another writer comes between the look and the append
                try:
                    await service.append("s", key, expected, b"%d/%d" % (name, number))
                    break
                except VersionConflict:
                    conflicts += 1

    jobs: list[Job[None]] = [node.spawn(writer(name)) for name in range(4)]
    node.runtime.settle()
    for job in jobs:
        job.result()
    written = [events(node, b"k%d" % number) for number in range(2)]
    assert [[version for version, _ in stream] for stream in written] == [
        list(range(1, len(stream) + 1)) for stream in written
    ], f"seed {seed}"
    assert sorted(value or b"" for stream in written for _, value in stream) == sorted(
        b"%d/%d" % (name, number) for name in range(4) for number in range(5)
    )


def test_the_index_after_a_restart_is_the_one_before(node: Node) -> None:
    rng = Random(1)
    for _ in range(200):
        event(node, b"k%d" % rng.randrange(10), ANY_VERSION, b"x")
    node.append("s", b"no event")
    again = node.restarted()
    for number in range(10):
        key = b"k%d" % number
        assert events(again, key) == events(node, key)
        assert version(again, key) == version(node, key)


def test_retention_does_not_make_versions_begin_anew(node: Node) -> None:
    hosted = node.services.hosting.partition("s", partition_for_key(b"k", 3))
    for number in range(10):
        if number == 6:
            hosted.log.roll(node.clock.now_ms())
        event(node, b"k", number, b"%d" % number)
    hosted.log.advance_start(6)
    for each in (node, node.restarted()):
        assert version(each, b"k") == 10
        assert events(each, b"k") == [(version, b"%d" % (version - 1)) for version in range(7, 11)]
    again = node.restarted()
    assert event(again, b"k", 10, b"x").version == 11


def test_a_partition_whose_records_were_all_deleted_before_they_were_read_has_no_streams(node: Node) -> None:
    hosted = node.services.hosting.partition("s", partition_for_key(b"k", 3))
    version(node, b"k")
    node.append("s", b"no event", partition=hosted.number)
    hosted.log.advance_start(1)
    assert version(node, b"k") == 0


def test_events_that_were_truncated_are_forgotten(node: Node) -> None:
    """A follower whose leader has fewer of them: else the next version would follow one that nobody has."""
    hosted = node.services.hosting.partition("s", partition_for_key(b"k", 3))
    other = next(key for key in (b"o%d" % n for n in range(50)) if partition_for_key(key, 3) == hosted.number)
    for number in range(4):
        event(node, b"k", number, b"%d" % number)
    event(node, other, 0, b"other")
    before = (node.services.streams.count, node.services.streams._holdings.bytes_held)
    cut(hosted, 2)
    assert (version(node, b"k"), version(node, other)) == (2, 0)
    assert event(node, b"k", 2, b"again").version == 3
    assert events(node, b"k") == [(1, b"0"), (2, b"1"), (3, b"again")]
    assert event(node, b"k", 3, b"3").version == 4
    event(node, other, 0, b"other")
    assert (node.services.streams.count, node.services.streams._holdings.bytes_held) == before
    cut(hosted, 0)
    assert version(node, b"k") == 0


def test_an_index_that_is_being_read_does_not_keep_what_is_truncated_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = partition_for_key(b"k", 3)
    for expected in range(4):
        event(node, b"k", expected, b"%d" % expected)
    again = node.restarted()
    read_rows = event_streams._rows

    async def slowly(*args: Any) -> AsyncIterator[Row]:
        async for row in read_rows(*args):
            await again.runtime.pause()
            yield row

    monkeypatch.setattr(event_streams, "_rows", slowly)
    reading = again.spawn(again.services.streams.version("s", b"k"))
    assert not reading.is_done
    cut(again.services.hosting.partition("s", number), 2)
    again.runtime.settle()
    assert reading.result() == 2


def test_a_stream_stays_where_it_began_when_the_topic_grows(node: Node) -> None:
    keys = [b"key%d" % number for number in range(20)]
    for key in keys:
        event(node, key, 0, b"1")
    node.run(node.services.topics.grow("s", 7))
    assert any(partition_for_key(key, 3) != partition_for_key(key, 7) for key in keys)
    for each in (node, node.restarted()):
        for key in keys:
            last = version(each, key)
            with pytest.raises(VersionConflict):
                event(each, key, 0, b"stale")
            assert event(each, key, last, b"next").partition == partition_for_key(key, 3)


def write(node: Node, key: bytes | None, version: bytes | None, value: bytes = b"v") -> None:
    """A record through another door, into the partition of key k."""
    headers = ((VERSION_HEADER, version),) if version is not None else ()
    batch = encode_batch([value], keys=[key], headers=[headers], base_timestamp=1)
    node.run(node.services.append.append("s", partition_for_key(b"k", 3), batch))


def test_records_of_other_doors(node: Node) -> None:
    event(node, b"k", 0, b"one")
    write(node, b"k", b"2", b"two")
    write(node, b"k", None, b"no event")
    write(node, None, b"3", b"no key")
    for lie in (b"0", b"1", b"2", b"-3", b"x", b"", b"9" * 30, "٣".encode()):
        write(node, b"k", lie, b"a lie")
    write(node, b"k", b"5", b"five")
    for each in (node, node.restarted()):
        assert events(each, b"k") == [(1, b"one"), (2, b"two"), (5, b"five")]
    assert event(node, b"k", 5, b"six").version == 6


def test_records_of_transactions_are_no_events(node: Node) -> None:
    txn = node.transactions
    begun = node.run(txn.begin_producer("t"))
    number = partition_for_key(b"k", 3)
    node.run(txn.add_partitions("t", begun.producer_id, begun.epoch, [("s", number)]))
    batch = encode_batch(
        [b"x"],
        keys=[b"k"],
        headers=[((VERSION_HEADER, b"1"),)],
        base_timestamp=1,
        producer_id=begun.producer_id,
        producer_epoch=begun.epoch,
        base_sequence=0,
        transactional=True,
    )
    node.run(node.services.append.append("s", number, batch, transactional_id="t"))
    node.run(txn.end_transaction("t", begun.producer_id, begun.epoch, commit=False))
    assert version(node, b"k") == 0
    assert event(node, b"k", 0, b"real").version == 1
    assert events(node, b"k") == [(1, b"real")]


def test_a_new_topic_of_an_old_name_begins_anew(node: Node) -> None:
    event(node, b"k", 0, b"old")
    node.run(node.services.topics.delete("s"))
    with refused_with(Reason.TOPIC_NOT_FOUND):
        version(node, b"k")
    node.create("s", 3)
    assert version(node, b"k") == 0
    assert event(node, b"k", 0, b"new").version == 1


def test_an_event_is_readable_once_it_is_committed(node: Node) -> None:
    with node.runtime.holding_syncs():
        job = node.spawn(node.services.streams.append("s", b"k", 0, b"x"))
        assert version(node, b"k") == 1, "the next writer has to expect it"
        assert events(node, b"k") == []
        with pytest.raises(VersionConflict):
            event(node, b"k", 0, b"y")
    job.result()
    assert events(node, b"k") == [(1, b"x")]


# -- snapshots -----------------------------------------------------------------------------------------------


def test_snapshots(node: Node) -> None:
    service = node.services.streams
    for number in range(5):
        event(node, b"k", number, b"x")
    assert node.run(service.snapshot("s", b"k")) is None
    node.run(service.save_snapshot("s", b"k", Snapshot(3, b"three")))
    node.run(service.save_snapshot("s", b"k", Snapshot(2, b"older")))
    assert node.run(service.snapshot("s", b"k")) == Snapshot(3, b"three")
    node.run(service.save_snapshot("s", b"k", Snapshot(3, b"three, better")))
    for each in (node, node.restarted()):
        assert each.run(each.services.streams.snapshot("s", b"k")) == Snapshot(3, b"three, better")
    for version in (6, -1):
        with refused_with(Reason.VERSION_CONFLICT):
            node.run(service.save_snapshot("s", b"k", Snapshot(version, b"")))
