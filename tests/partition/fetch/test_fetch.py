"""Fetching: long polls, limits, what each kind of reader may see, offsets by time."""

from typing import Any

import pytest
from tests.broker.node import Node, batch_of
from tests.model.manual_world import Job
from tests.partition.fetching import fetch_all
from tests.refusals import refused_with

from braidlog.codec.batch.records import encode_batch
from braidlog.codec.batch.row_layout import Kind, Part, RowForm
from braidlog.codec.compression import Compression
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.limits import LONG_POLL_MS_MAX
from braidlog.model.runtime.cooperative import SLICE
from braidlog.partition.fetch.fetch import Fetch, Outcome, Wanted
from braidlog.partition.fetch.long_polls import REST_SECONDS_MAX
from braidlog.partition.fetch.record_reader import HERE_RECORDS_MAX, Fetched, Rows
from braidlog.partition.hosted_log import Role
from braidlog.partition.produce.append import Acks
from braidlog.storage.segment.segment import CheckBudget

MANY = 1 << 20
REST_MS = round(REST_SECONDS_MAX * 1000)


@pytest.fixture
def node() -> Node:
    made = Node()
    made.create("a", 3)
    return made


def poll(node: Node, offset: int = 0, *, wait_ms: int = 1000, **more: object) -> Job[list[Fetched]]:
    wanted = [Wanted("a", 0, offset, MANY)]
    return node.spawn(fetch_all(node.services.fetch, wanted, bytes_max=MANY, wait_ms=wait_ms, **more))


def sizes(results: list[Fetched]) -> list[int | None]:
    return [None if result.slice is None else result.slice.size for result in results]


# -- long poll -----------------------------------------------------------------------------------------------


def test_what_is_there_comes_at_once(node: Node) -> None:
    node.append("a", b"x")
    (result,) = poll(node).result()
    assert result.slice is not None
    assert (result.slice.offset, result.slice.next_offset) == (0, 1)
    assert (result.start_offset, result.high_watermark, result.last_stable_offset) == (0, 1, 1)


def test_a_poll_is_woken_by_an_append(node: Node) -> None:
    job = poll(node)
    node.runtime.advance(500)
    assert not job.is_done
    node.append("a", b"x")
    assert sizes(job.result()) == [len(batch_of(b"x"))]


def test_a_poll_sees_nothing_before_it_is_durable(node: Node) -> None:
    job = poll(node, wait_ms=10_000)
    with node.runtime.holding_syncs():
        node.spawn(node.services.append.append("a", 0, batch_of(b"x")))
        node.runtime.advance(5_000)
        assert not job.is_done
    assert job.result()[0].slice is not None


@pytest.mark.parametrize(("wait_ms", "waited_ms"), [(1000, 1000), (36_000_000, LONG_POLL_MS_MAX)])
def test_a_poll_times_out_with_nothing(node: Node, wait_ms: int, waited_ms: int) -> None:
    jobs: list[Job[Any]] = [poll(node, wait_ms=wait_ms)]
    jobs.append(node.spawn(node.services.fetch.records("a", 0, 0, bytes_max=MANY, wait_ms=wait_ms)))
    node.runtime.advance(waited_ms - 1)
    assert not any(each.is_done for each in jobs)
    node.runtime.advance(1)
    polled, read = (each.result() for each in jobs)
    assert (sizes(polled), read.records) == ([None], [])


def test_no_wait_outlasts_the_maximum(node: Node) -> None:
    job = poll(node, wait_ms=2**60)
    node.runtime.advance(300_000)
    assert sizes(job.result()) == [None]


def test_a_poll_waits_for_enough_bytes_or_gives_what_there_is(node: Node) -> None:
    job = poll(node, bytes_min=2 * len(batch_of(b"x")), wait_ms=1000)
    node.append("a", b"x")
    assert not job.is_done
    node.append("a", b"y")
    node.runtime.advance(REST_MS)
    assert sum(size or 0 for size in sizes(job.result())) == 2 * len(batch_of(b"x"))
    late = poll(node, bytes_min=MANY, wait_ms=100)
    node.runtime.advance(100)
    assert sizes(late.result()) == [2 * len(batch_of(b"x"))]


def test_records_one_by_one_do_not_make_every_poll_that_wants_many_look_each_time(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, collect = [0], Fetch._collect

    def counted(*args: Any) -> Any:
        looks[0] += 1
        return collect(*args)

    monkeypatch.setattr(Fetch, "_collect", counted)
    job = poll(node, bytes_min=MANY // 2, wait_ms=60_000)
    for _ in range(100):
        node.append("a", b"x")
        node.runtime.advance(1)
    assert looks[0] < 10
    node.append("a", b"x" * (MANY // 2))
    node.runtime.advance(REST_MS)
    assert job.is_done, "it has enough, and no pause is longer"


def test_more_than_the_maximum_is_never_waited_for(node: Node) -> None:
    node.append("a", b"x")
    wanted = [Wanted("a", 0, 0, 50)]
    job = node.spawn(fetch_all(node.services.fetch, wanted, bytes_max=50, bytes_min=1000, wait_ms=1000))
    assert job.is_done


def test_a_poll_over_several_partitions_is_woken_by_any(node: Node) -> None:
    wanted = [Wanted("a", number, 0, MANY) for number in range(3)]
    job = node.spawn(fetch_all(node.services.fetch, wanted, bytes_max=MANY, wait_ms=1000))
    node.append("a", b"x", partition=2)
    assert [result.slice is not None for result in job.result()] == [False, False, True]


def test_a_deleted_topic_ends_the_poll(node: Node) -> None:
    job = poll(node, wait_ms=60_000)
    node.run(node.services.topics.delete("a"))
    with refused_with(Reason.TOPIC_NOT_FOUND):
        job.result()


def test_a_change_of_role_ends_the_poll_of_who_wants_the_leader(node: Node) -> None:
    strict = poll(node, wait_ms=60_000, leader_only=True)
    loose = poll(node, wait_ms=60_000)
    node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))
    with refused_with(Reason.NOT_LEADER):
        strict.result()
    assert not loose.is_done, "what is committed may be read from a follower"
    node.runtime.advance(60_000)
    assert sizes(loose.result()) == [None]


def test_nobody_is_left_watching(node: Node) -> None:
    hosted = node.services.hosting.partition("a", 0)
    jobs = [poll(node, wait_ms=100) for _ in range(5)]
    jobs[0].cancel()
    assert len(hosted._waiting) == 4
    node.runtime.advance(100)
    assert not hosted._waiting
    assert not node.runtime._timers


def test_what_moves_behind_a_poll_of_many_partitions_is_not_missed(node: Node) -> None:
    """It looks in slices: partition 0 was looked at, others not yet, when a record comes."""
    node.create("many", SLICE + 10)
    wanted = [Wanted("many", number, 0, MANY) for number in range(SLICE + 10)]
    hosted = node.services.hosting.partition("many", 0)
    job = node.runtime.spawn(node.services.fetch.fetch_each(wanted, bytes_max=MANY, wait_ms=10_000))
    assert not job.is_done
    assert not node.services.hosting.partition("many", SLICE + 9)._waiting, "all of them were looked at in one turn"
    node.services.append.write("many", 0, batch_of(b"x"))
    hosted.log.sync()
    hosted.advance()
    node.runtime.settle()
    first, *others = job.result()
    assert isinstance(first, Fetched)
    assert first.slice is not None
    assert len(others) == SLICE + 9
    assert not any(node.services.hosting.partition("many", each.partition)._waiting for each in wanted)


def test_a_refusal_that_is_kept_as_an_outcome_keeps_no_frames(node: Node) -> None:
    """They would keep it too: twenty thousand of them were a ring for the garbage collector, which held the loop for 200 ms."""
    (refused,) = each(node, Wanted("a", 99, 0, MANY)).result()
    assert isinstance(refused, BrokerError)
    assert refused.__traceback__ is None


# -- limits --------------------------------------------------------------------------------------------------


def test_the_first_batch_comes_however_large(node: Node) -> None:
    node.append("a", b"x" * 10_000)
    for bytes_max in (1, 0, -1):
        wanted = [Wanted("a", 0, 0, bytes_max)]
        (result,) = node.run(fetch_all(node.services.fetch, wanted, bytes_max=bytes_max))
        assert result.slice is not None


def test_after_the_first_batch_only_what_fits(node: Node) -> None:
    node.append("a", b"x" * 100)
    node.append("a", b"y" * 10_000, partition=1)
    node.append("a", b"z" * 100, partition=2)
    wanted = [Wanted("a", number, 0, MANY) for number in range(3)]
    results = node.run(fetch_all(node.services.fetch, wanted, bytes_max=1000))
    assert [result.slice is not None for result in results] == [True, False, True]


def test_each_partition_has_its_own_limit(node: Node) -> None:
    for number in range(3):
        for _ in range(4):
            node.append("a", b"x" * 100, partition=number)
    one = len(batch_of(b"x" * 100))
    wanted = [Wanted("a", number, 0, 2 * one) for number in range(3)]
    assert sizes(node.run(fetch_all(node.services.fetch, wanted, bytes_max=MANY))) == [2 * one] * 3
    assert sizes(node.run(fetch_all(node.services.fetch, wanted, bytes_max=3 * one))) == [2 * one, one, None]


def test_offsets_outside_the_log(node: Node) -> None:
    node.append("a", b"x")
    assert sizes(poll(node, 1, wait_ms=0).result()) == [None], "the end is where the next record will be"
    for offset in (2, -1):
        with refused_with(Reason.OFFSET_OUT_OF_RANGE):
            poll(node, offset).result()


# -- replicas ------------------------------------------------------------------------------------------------


def test_a_replica_sees_what_is_not_committed_and_is_woken_by_the_append() -> None:
    """It is the replica's fetch that moves the watermark: waking it only then would be waiting for oneself."""
    node = Node()
    node.create("a", 1, followers=["1"])
    fetch = node.services.fetch
    fetch.replica_fetched("a", 0, "1", 0)
    replica = poll(node, wait_ms=60_000, replica="1")
    consumer = poll(node, wait_ms=60_000)
    node.append("a", b"x")
    assert replica.result()[0].slice is not None
    assert not consumer.is_done
    fetch.replica_fetched("a", 0, "1", 1)
    node.runtime.settle()
    assert consumer.result()[0].high_watermark == 1


def test_a_replica_says_impossible_things() -> None:
    node = Node()
    node.create("a", 1, followers=["1"])
    fetch = node.services.fetch
    reasons = []
    for replica, offset in (("1", -1), ("1", 1), ("9", 0)):
        with pytest.raises(BrokerError) as caught:
            fetch.replica_fetched("a", 0, replica, offset)
        reasons.append(caught.value.reason)
    assert reasons == [Reason.OFFSET_OUT_OF_RANGE, Reason.OFFSET_OUT_OF_RANGE, Reason.REPLICA_NOT_FOUND]
    node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))
    with refused_with(Reason.NOT_LEADER):
        fetch.replica_fetched("a", 0, "1", 0)


# -- records -------------------------------------------------------------------------------------------------


def test_records_from_the_middle_of_a_batch(node: Node) -> None:
    node.append("a", *[b"%d" % number for number in range(10)])
    got = node.run(node.services.fetch.records("a", 0, 4, bytes_max=MANY))
    assert [record.offset for record in got.records] == [4, 5, 6, 7, 8, 9]
    assert (got.next_offset, got.high_watermark) == (10, 10)


def test_records_are_counted(node: Node) -> None:
    node.append("a", *[b"%d" % number for number in range(10)])
    node.append("a", b"10")
    got = node.run(node.services.fetch.records("a", 0, 2, bytes_max=MANY, records_max=3))
    assert ([record.offset for record in got.records], got.next_offset) == ([2, 3, 4], 5)
    got = node.run(node.services.fetch.records("a", 0, 8, bytes_max=MANY, records_max=3))
    assert ([record.offset for record in got.records], got.next_offset) == ([8, 9, 10], 11)
    got = node.run(node.services.fetch.records("a", 0, 2, bytes_max=MANY, records_max=0))
    assert len(got.records) == 1, "at least one, if there is any"


def test_records_are_weighed_one_by_one(node: Node) -> None:
    """A batch may be larger than an answer of the dialect that reads it, and a compressed one grows."""
    values = [b"x" * 1000] * 100
    batch = encode_batch(values, base_timestamp=1, compression=Compression.GZIP)
    node.run(node.services.append.append("a", 0, batch))
    offset, answers = 0, 0
    while offset < 100:
        got = node.run(node.services.fetch.records("a", 0, offset, bytes_max=10_000))
        assert len(got.records) == 10
        assert got.records[0].offset == offset
        offset, answers = got.next_offset, answers + 1
    assert answers == 10
    got = node.run(node.services.fetch.records("a", 0, 0, bytes_max=1))
    assert len(got.records) == 1


def transact(node: Node, name: str, *values: bytes, commit: bool | None) -> None:
    txn = node.transactions
    begun = node.run(txn.begin_producer(name))
    node.run(txn.add_partitions(name, begun.producer_id, begun.epoch, [("a", 0)]))
    batch = batch_of(*values, producer=(begun.producer_id, begun.epoch, 0), transactional=True)
    node.run(node.services.append.append("a", 0, batch, transactional_id=name))
    if commit is not None:
        node.run(txn.end_transaction(name, begun.producer_id, begun.epoch, commit=commit))


def test_committed_readers_see_no_open_and_no_aborted_transaction(node: Node) -> None:
    node.append("a", b"plain")
    transact(node, "t1", b"aborted", commit=False)
    transact(node, "t2", b"committed", commit=True)
    transact(node, "t3", b"open", commit=None)
    node.append("a", b"behind")
    assert node.values("a") == [b"plain", b"committed"]
    assert node.values("a", committed_only=False) == [b"plain", b"aborted", b"committed", b"open", b"behind"]
    (result,) = poll(node, committed_only=True).result()
    hosted = node.services.hosting.partition("a", 0)
    assert result.last_stable_offset < result.high_watermark == hosted.end_offset
    assert len(result.aborted) == 1


def test_the_end_of_a_transaction_wakes_a_committed_reader(node: Node) -> None:
    transact(node, "t", b"x", commit=None)
    job = node.spawn(node.services.fetch.records("a", 0, 0, bytes_max=MANY, wait_ms=60_000))
    assert not job.is_done
    known = node.transactions.find("t")
    node.run(node.transactions.end_transaction("t", known.producer_id, known.epoch, commit=True))
    assert [record.value for record in job.result().records] == [b"x"]


def test_offsets_without_records_hold_nobody_up(node: Node) -> None:
    """A reader that knows only record offsets asks for the one after the last: there may be a marker."""
    transact(node, "t1", b"one", commit=True)
    transact(node, "t2", b"two", commit=False)
    node.append("a", b"three")
    got = node.run(node.services.fetch.records("a", 0, 1, bytes_max=1))
    assert [record.value for record in got.records] == [b"three"]


def test_only_markers_left_is_a_wait_and_not_a_spin(node: Node) -> None:
    transact(node, "t", b"one", commit=False)
    job = node.spawn(node.services.fetch.records("a", 0, 0, bytes_max=MANY, wait_ms=1000))
    assert not job.is_done
    node.append("a", b"two")
    assert [record.value for record in job.result().records] == [b"two"]
    job = node.spawn(node.services.fetch.records("a", 0, 3, bytes_max=MANY, wait_ms=1000))
    node.runtime.advance(1000)
    assert job.result().next_offset == 3


# -- offsets by time -----------------------------------------------------------------------------------------


def test_offsets_by_time(node: Node) -> None:
    for number in range(10):
        batch = encode_batch([b"x", b"y"], timestamps=[number * 100, number * 100 + 50], base_timestamp=number * 100)
        node.run(node.services.append.append("a", 0, batch))

    def at(topic: str, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        return node.run(node.services.fetch.offset_at(topic, partition, timestamp_ms))

    assert at("a", 0, 0) == (0, 0)
    assert at("a", 0, 51) == (2, 100)
    assert at("a", 0, 101) == (3, 150)
    assert at("a", 0, 950) == (19, 950)
    assert at("a", 0, 951) is None
    assert at("a", 1, 0) is None


def test_offsets_by_time_stop_at_the_watermark() -> None:
    node = Node()
    node.create("a", 1, followers=["1"])
    node.services.fetch.replica_fetched("a", 0, "1", 0)
    node.append("a", b"x", acks=Acks.LEADER)
    assert node.run(node.services.fetch.offset_at("a", 0, 0)) is None
    node.services.fetch.replica_fetched("a", 0, "1", 1)
    assert node.run(node.services.fetch.offset_at("a", 0, 0)) is not None


# -- an outcome for each partition ---------------------------------------------------------------------------


def each(node: Node, *wanted: Wanted, wait_ms: int = 10_000, **more: object) -> Job[list[Outcome]]:
    return node.spawn(node.services.fetch.fetch_each(wanted, bytes_max=MANY, wait_ms=wait_ms, **more))  # type: ignore[arg-type]


def reasons(outcomes: list[Outcome]) -> list[Reason | None]:
    return [outcome.reason if isinstance(outcome, BrokerError) else None for outcome in outcomes]


def test_a_partition_that_cannot_be_served_does_not_spoil_the_others(node: Node) -> None:
    node.append("a", b"x", partition=1)
    job = each(node, Wanted("a", 1, 0, MANY), Wanted("a", 7, 0, MANY), Wanted("b", 0, 0, MANY), Wanted("a", 0, 5, MANY))
    outcomes = job.result()
    assert reasons(outcomes) == [
        None,
        Reason.PARTITION_NOT_FOUND,
        Reason.TOPIC_NOT_FOUND,
        Reason.OFFSET_OUT_OF_RANGE,
    ]
    assert isinstance(outcomes[0], Fetched)
    assert outcomes[0].slice is not None


def test_what_cannot_be_served_is_not_waited_for(node: Node) -> None:
    assert reasons(each(node, Wanted("a", 0, 0, MANY), Wanted("b", 0, 0, MANY)).result()) == [
        None,
        Reason.TOPIC_NOT_FOUND,
    ]
    waiting = each(node, Wanted("a", 0, 0, MANY), Wanted("a", 1, 0, MANY))
    assert not waiting.is_done
    node.run(node.services.topics.delete("a"))
    assert reasons(waiting.result()) == [Reason.TOPIC_NOT_FOUND] * 2


def test_a_fault_of_the_disk_is_an_outcome(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.append("a", b"x")

    def broken(*_: object, **__: object) -> None:
        raise StorageFault("gone")

    monkeypatch.setattr(node.services.hosting.partition("a", 1).log, "slice_at", broken)
    first, second = each(node, Wanted("a", 0, 0, MANY), Wanted("a", 1, 0, MANY)).result()
    assert isinstance(first, Fetched)
    assert isinstance(second, StorageFault)


def test_a_new_topic_of_the_name_is_not_the_one_that_was_asked_for(node: Node) -> None:
    identity = node.services.hosting.meta("a").topic_id
    assert reasons(each(node, Wanted("a", 0, 0, MANY, topic_id=identity), wait_ms=0).result()) == [None]
    node.run(node.services.topics.delete("a"))
    node.create("a")
    assert reasons(each(node, Wanted("a", 0, 0, MANY, topic_id=identity)).result()) == [Reason.TOPIC_NOT_FOUND]
    assert reasons(each(node, Wanted("a", 0, 0, MANY), wait_ms=0).result()) == [None]


def test_only_in_the_leaders_epoch(node: Node) -> None:
    epoch = node.services.hosting.partition("a", 0).leader_epoch
    asked = [Wanted("a", 0, 0, MANY, leader_epoch=epoch + more) for more in (0, -1, 1)]
    assert reasons(each(node, *asked).result()) == [None, Reason.STALE_LEADER_EPOCH, Reason.NOT_LEADER]


def test_committed_readers_find_no_time_beyond_what_is_stable(node: Node) -> None:
    node.append("a", b"x")
    begun = node.run(node.transactions.begin_producer("tx"))
    node.run(node.transactions.add_partitions("tx", begun.producer_id, begun.epoch, [("a", 0)]))
    late = batch_of(b"y", producer=(begun.producer_id, begun.epoch, 0), transactional=True, time_ms=1_700_000_002_000)
    node.run(node.services.append.append("a", 0, late, transactional_id="tx"))
    offset_at = node.services.fetch.offset_at
    assert node.run(offset_at("a", 0, 1_700_000_001_000)) == (1, 1_700_000_002_000)
    assert node.run(offset_at("a", 0, 1_700_000_001_000, committed_only=True)) is None


# -- large batches ---------------------------------------------------------------------------------------------


def large_batch(count: int, size: int, codec: Compression = Compression.GZIP) -> bytes:
    """More than is opened on the loop, when decompressed."""
    return encode_batch(
        [b"%07d" % number + bytes(size) for number in range(count)],
        timestamps=range(count),
        base_timestamp=0,
        compression=codec,
    )


@pytest.mark.parametrize("codec", Compression)
def test_a_large_batch_is_read_in_steps_between_small_ones(node: Node, codec: Compression) -> None:
    node.append("a", b"before")
    node.run(node.services.append.append("a", 0, large_batch(3000, 1000, codec)))
    node.append("a", b"after")
    found, offset = [], 0
    while offset < 3002:
        got = node.run(node.services.fetch.records("a", 0, offset, bytes_max=500_000))
        assert got.records
        found += got.records
        assert got.next_offset == got.records[-1].offset + 1
        offset = got.next_offset
    assert [record.offset for record in found] == list(range(3002))
    assert [record.value for record in found[1:-1]] == [b"%07d" % number + bytes(1000) for number in range(3000)]


def rows_of(node: Node, offset: int, form: RowForm, *, bytes_max: int, records_max: int = MANY) -> Rows:
    found = node.services.fetch.rows("a", 0, offset, form, bytes_max=bytes_max, records_max=records_max)
    return found if isinstance(found, Rows) else node.run(found)


@pytest.mark.parametrize("codec", Compression)
def test_rows_of_a_large_batch(node: Node, codec: Compression) -> None:
    node.run(node.services.append.append("a", 0, large_batch(3000, 1000, codec)))
    form = RowForm((Part(Kind.OFFSET_DECIMAL),), MANY, b",")
    got = rows_of(node, 2990, form, bytes_max=3000)
    assert (got.count, got.data, got.next_offset) == (2, b"2990,2991", 2992)
    got = rows_of(node, 2990, form, bytes_max=MANY, records_max=50)
    assert (got.count, got.next_offset) == (10, 3000)


OFFSETS = RowForm((Part(Kind.OFFSET_DECIMAL),), MANY, b",")


@pytest.mark.parametrize("committed_only", [True, False])
def test_rows_are_the_records(node: Node, *, committed_only: bool) -> None:
    """In batches of many sizes, between control batches and an aborted transaction: the same offsets, and the same next one."""
    for count in (1, 40, 3, 200, 1):
        node.append("a", *(b"%03d" % number * 9 for number in range(count)))
        transact(node, f"t{count}", b"in", b"out", commit=count > 3)
    node.run(node.services.append.append("a", 0, large_batch(20, 3000, Compression.LZ4)))
    end = node.services.hosting.partition("a", 0).high_watermark
    at_once = 0
    for offset in (0, 1, 2, 3, 44, 46, 47, 51, 150, 254, end - 20, end - 1):
        for limits in ((1, MANY), (5, MANY), (100, MANY), (10**6, 0), (10**6, 500), (7, 100), (10**6, MANY)):
            records_max, bytes_max = limits
            wanted = node.run(
                node.services.fetch.records(
                    "a", 0, offset, bytes_max=bytes_max, records_max=records_max, committed_only=committed_only
                )
            )
            found = node.services.fetch.rows(
                "a", 0, offset, OFFSETS, bytes_max=bytes_max, records_max=records_max, committed_only=committed_only
            )
            at_once += isinstance(found, Rows)
            rows = found if isinstance(found, Rows) else node.run(found)
            shown = [int(each) for each in rows.data.split(b",")]
            assert shown == [record.offset for record in wanted.records][: len(shown)], (offset, limits)
            assert rows.count == len(shown) >= min(len(wanted.records), 1)
            behind = [record.offset for record in wanted.records][len(shown) :]
            assert rows.next_offset <= (behind[0] if behind else wanted.next_offset), (offset, limits)
    assert at_once > 60, "what is there and needs no worker is given at once"


def test_what_was_read_before_changes_no_answer(node: Node) -> None:
    """Where records become larger, and where offsets hold none: as many rows as are wanted, in all that may be read for them."""
    for size, count in ((10, 500), (900, 300), (10, 500), (30, 5)):
        for _ in range(count // 5):
            node.append("a", *[bytes(size)] * 5)
        transact(node, f"t{size}{count}", *[bytes(size)] * 40, commit=False)
    hosted, sizes = node.services.hosting.partition("a", 0), []
    for offset in range(0, hosted.high_watermark, 35):
        known, hosted.record_bytes = hosted.record_bytes, 0
        wanted = rows_of(node, offset, OFFSETS, bytes_max=MANY, records_max=50)
        hosted.record_bytes = known
        before = node.services.fetch.bytes_read
        assert rows_of(node, offset, OFFSETS, bytes_max=MANY, records_max=50) == wanted, offset
        sizes.append(node.services.fetch.bytes_read - before)
    assert sizes[2] < 3000, "once it is known what they take, no more is asked for"
    assert max(sizes) > 100_000, "until they take more"


def test_rows_of_a_lone_batch_are_given_at_once(node: Node) -> None:
    """However few of them are wanted: also where a first look at the log brings less than the batch."""
    node.append("a", *[bytes(100)] * 500)
    for offset, records_max in ((0, 1), (499, 1), (100, 300), (0, 500), (7, 10**6)):
        found = node.services.fetch.rows("a", 0, offset, OFFSETS, bytes_max=MANY, records_max=records_max)
        assert isinstance(found, Rows), (offset, records_max)
        end = min(offset + records_max, 500)
        assert found.data == b",".join(b"%d" % each for each in range(offset, end))
        assert (found.count, found.next_offset) == (end - offset, end)


def test_rows_of_a_batch_that_became_damaged_since_it_was_checked_are_not_given(node: Node) -> None:
    node.append("a", *[bytes(100)] * 500)
    assert rows_of(node, 0, OFFSETS, bytes_max=MANY).count == 500
    (segment,) = node.services.hosting.partition("a", 0).log.segments
    node.disk.flip_bit(segment.path, (segment.size - 20) * 8)
    with pytest.raises(StorageFault, match="CRC"):
        rows_of(node, 0, OFFSETS, bytes_max=MANY)


def test_rows_wait_where_there_are_none(node: Node) -> None:
    node.append("a", b"x")
    waiting = node.services.fetch.rows("a", 0, 1, OFFSETS, bytes_max=MANY, wait_ms=1000)
    assert not isinstance(waiting, Rows)
    job = node.spawn(waiting)
    assert not job.is_done
    node.append("a", b"y")
    assert (job.result().data, job.result().next_offset) == (b"1", 2)
    with pytest.raises(BrokerError, match="offset 5"):
        node.run(node.services.fetch.rows("a", 0, 5, OFFSETS, bytes_max=MANY))  # type: ignore[arg-type]


def test_a_row_that_does_not_fit_is_told(node: Node) -> None:
    node.append("a", b"x", b"y")
    found = rows_of(node, 0, OFFSETS._replace(bytes_max=0), bytes_max=MANY)
    assert (found.is_too_large, found.count, found.next_offset) == (True, 0, 0)
    found = rows_of(node, 0, OFFSETS._replace(bytes_max=2), bytes_max=MANY)
    assert (found.is_too_large, found.data, found.next_offset) == (False, b"0", 1)


def test_more_records_than_a_turn_of_the_loop_has_time_for(node: Node) -> None:
    count = HERE_RECORDS_MAX + 10
    node.run(node.services.append.append("a", 0, encode_batch([b""] * count, base_timestamp=0)))
    got = node.run(node.services.fetch.records("a", 0, 5, bytes_max=1 << 30))
    assert (got.records[0].offset, len(got.records), got.next_offset) == (5, HERE_RECORDS_MAX, HERE_RECORDS_MAX + 5)
    got = node.run(node.services.fetch.records("a", 0, got.next_offset, bytes_max=MANY))
    assert [record.offset for record in got.records] == list(range(HERE_RECORDS_MAX + 5, count))


def test_many_batches_that_hold_much_are_not_opened_in_one_turn(node: Node) -> None:
    for _ in range(5):  # each of them fits a turn, two do not
        node.run(node.services.append.append("a", 0, large_batch(1, 700_000)))
    got = node.run(node.services.fetch.records("a", 0, 0, bytes_max=1 << 30))
    assert (len(got.records), got.next_offset) == (1, 1)
    assert len(node.values("a")) == 5


def test_a_time_within_a_large_batch(node: Node) -> None:
    node.run(node.services.append.append("a", 0, large_batch(3000, 1000)))
    assert node.run(node.services.fetch.offset_at("a", 0, 1234)) == (1234, 1234)
    assert node.run(node.services.fetch.offset_at("a", 0, 3000)) is None


def test_no_more_is_checked_in_one_turn_than_it_has_time_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that wants more is given it all the same, in several turns."""
    for partition in range(3):
        for _ in range(200):
            node.append("a", b"v" * 1000, partition=partition)
        node.services.hosting.partition("a", partition).log.forget_checks()
    monkeypatch.setattr(CheckBudget.__init__, "__defaults__", (64 * 1024,))
    wanted = [Wanted("a", partition, 0, MANY) for partition in range(3)]
    first, *others = node.run(fetch_all(node.services.fetch, wanted, bytes_max=4 * MANY))
    assert first.slice is not None
    assert 0 < first.slice.size <= 2 * 64 * 1024
    assert sizes(others) == [None, None]
    patient = node.run(fetch_all(node.services.fetch, wanted, bytes_max=4 * MANY, bytes_min=500_000, wait_ms=30_000))
    assert sum(result.slice.size for result in patient if result.slice is not None) >= 500_000
