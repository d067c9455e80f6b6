"""Acknowledgements: 0, 1, all; roles; replicas; retries.

What a client's compressed batch may cost before it is appended, where it is opened, and whose turn it is.

A node's limit of idempotent producers: a known one is appended, a silent one is forgotten, one too many is refused.
"""

import errno
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.broker.node import Node, batch_of
from tests.model.manual_world import Job, ManualRuntime
from tests.refusals import refused_with

from braidlog.codec.batch.header import HEADER_BYTES, read_header, seal
from braidlog.codec.batch.records import encode_batch, seal_section, sealed_batch
from braidlog.codec.compression import Compression
from braidlog.coordinator.state_limits import StateLimits, StateUsage
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.model.limits import LONG_POLL_MS_MAX
from braidlog.partition.hosted_log import Role
from braidlog.partition.produce.append import (
    COUNT_SECONDS_MIN,
    HERE_BYTES_MAX,
    LINE_BYTES_MAX,
    RATIO_FREE_BYTES,
    SILENT_MS,
    Acks,
    Allowance,
    Appended,
    DecompressionCheck,
    DecompressionLimits,
)
from braidlog.storage.segment.segment_files import DATA_START
from braidlog.worker.inline_worker import Here
from braidlog.worker.jobs import Answer, Buffer, CheckRecords
from braidlog.worker.jobs import Job as WorkerJob


@pytest.fixture
def node() -> Node:
    made = Node()
    made.create("a", 2)
    return made


@pytest.fixture
def replicated() -> Node:
    made = Node()
    made.create("a", 1, followers=["1", "2"], min_in_sync=2)
    return made


def refused(node: Node, awaitable: object) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        node.run(awaitable)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("acks", [Acks.LEADER, Acks.ALL])
def test_an_acknowledged_record_is_durable_and_committed(node: Node, acks: Acks) -> None:
    appended = node.append("a", b"x", b"y", acks=acks)
    assert (appended.base_offset, appended.last_offset) == (0, 1)
    hosted = node.services.hosting.partition("a", 0)
    assert hosted.log.durable_offset == hosted.high_watermark == 2


def test_it_is_not_acknowledged_before_the_sync(node: Node) -> None:
    with node.runtime.holding_syncs():
        job = node.spawn(node.services.append.append("a", 0, batch_of(b"x"), acks=Acks.LEADER))
        node.runtime.advance(10_000)
        assert not job.is_done
        assert node.services.hosting.partition("a", 0).high_watermark == 0, (
            "a reader must not see what a crash can take"
        )
    assert job.result().base_offset == 0


def test_many_appends_share_a_sync(node: Node) -> None:
    with node.runtime.holding_syncs():
        jobs = [node.spawn(node.services.append.append("a", 0, batch_of(b"x"))) for _ in range(20)]
        before = node.runtime.syncs
        node.runtime.sync()
        assert node.runtime.syncs == before + 1
    assert [job.result().base_offset for job in jobs] == list(range(20))


def test_acks_none_returns_at_once_and_is_seen_soon(node: Node) -> None:
    with node.runtime.holding_syncs():
        job = node.spawn(node.services.append.append("a", 0, batch_of(b"x"), acks=Acks.NONE))
        assert job.is_done
        assert node.services.hosting.partition("a", 0).high_watermark == 0
    assert node.services.hosting.partition("a", 0).high_watermark == 1, "it must not stay unseen until the next append"
    assert node.values("a") == [b"x"]


def test_without_flush_on_ack_the_page_cache_counts() -> None:
    node = Node()
    node.create("a", 1, settings={"flush": "os"})
    node.append("a", b"x")
    hosted = node.services.hosting.partition("a", 0)
    assert (hosted.high_watermark, hosted.log.durable_offset) == (1, 0)


def test_a_failed_sync_reaches_the_producer(node: Node) -> None:
    node.append("a", b"first")
    number = len(node.disk.operations) + 2  # the write, then the sync
    node.disk.fail_at = {number: errno.EIO}
    with pytest.raises(StorageFault):
        node.append("a", b"x")
    assert node.services.hosting.partition("a", 0).high_watermark == 1, "what was not synced is not committed"
    with pytest.raises(StorageFault):
        node.append("a", b"y")
    assert node.append("a", b"z", partition=1).base_offset == 0, "other partitions go on"


def test_a_full_disk_fails_one_append_only(node: Node) -> None:
    node.append("a", b"x")
    node.disk.fail_at = {len(node.disk.operations) + 1: errno.ENOSPC}
    with pytest.raises(StorageFault):
        node.append("a", b"lost")
    assert node.append("a", b"y").base_offset == 1
    assert node.values("a") == [b"x", b"y"]


def test_a_time_too_far_to_come_is_refused(node: Node) -> None:
    now_ms, hour = node.clock.now_ms(), 3_600_000
    append = node.services.append.append
    node.run(append("a", 0, encode_batch([b"x"], base_timestamp=now_ms + hour)))
    late = encode_batch([b"x", b"y"], timestamps=[now_ms, now_ms + hour + 1], base_timestamp=now_ms)
    error = refused(node, append("a", 0, late))
    assert error.reason is Reason.INVALID_TIMESTAMP
    assert "timestamp_after_max_ms" in str(error)
    for name, settings in (("open", {"timestamp_after_max_ms": -1}), ("stamped", {"append_time": True})):
        node.create(name, settings=settings)
        node.run(append(name, 0, late))


def test_places_that_are_not_there(node: Node) -> None:
    append = node.services.append.append
    assert refused(node, append("nope", 0, batch_of(b"x"))).reason is Reason.TOPIC_NOT_FOUND
    for number in (2, -1, 10**9):
        assert refused(node, append("a", number, batch_of(b"x"))).reason is Reason.PARTITION_NOT_FOUND
    assert refused(node, append("__state", 0, batch_of(b"x"))).reason is Reason.TOPIC_NOT_FOUND


@pytest.mark.parametrize("size", [0, 1, 22, 60, 61, 67])
def test_bytes_that_are_no_batch(node: Node, size: int) -> None:
    with pytest.raises((ProtocolError, BrokerError)):
        node.run(node.services.append.append("a", 0, batch_of(b"x")[:size]))
    assert node.services.hosting.partition("a", 0).end_offset == 0


def test_a_follower_takes_no_appends(node: Node) -> None:
    node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))
    assert refused(node, node.services.append.append("a", 0, batch_of(b"x"))).reason is Reason.NOT_LEADER
    assert node.append("a", b"x", partition=1).base_offset == 0
    hosted = node.run(node.services.placement.set_role("a", 0, Role.LEADER))
    assert hosted.leader_epoch == 2
    assert node.append("a", b"x").base_offset == 0


def test_a_role_outlives_a_restart_and_epochs_never_go_back(node: Node) -> None:
    for _ in range(3):
        node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))
        node.run(node.services.placement.set_role("a", 0, Role.LEADER))
    node.append("a", b"x")
    node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))
    again = node.restarted()
    hosted = again.services.hosting.partition("a", 0)
    assert (hosted.role, hosted.leader_epoch) == (Role.FOLLOWER, 4)
    assert again.run(again.services.placement.set_role("a", 0, Role.LEADER)).leader_epoch == 5


def test_two_who_make_it_leader_at_once_begin_one_epoch(node: Node) -> None:
    node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))
    jobs = [node.spawn(node.services.placement.set_role("a", 0, Role.LEADER)) for _ in range(3)]
    node.runtime.settle()
    assert [job.result().leader_epoch for job in jobs] == [2, 2, 2]


# -- replicas ------------------------------------------------------------------------------------------------


def test_all_waits_for_the_in_sync_replicas(replicated: Node) -> None:
    services = replicated.services
    for replica in ("1", "2"):
        services.fetch.replica_fetched("a", 0, replica, 0)
    job = replicated.spawn(services.append.append("a", 0, batch_of(b"x"), acks=Acks.ALL))
    replicated.runtime.settle()
    assert not job.is_done
    services.fetch.replica_fetched("a", 0, "1", 1)
    replicated.runtime.settle()
    assert not job.is_done
    assert services.hosting.partition("a", 0).high_watermark == 0
    services.fetch.replica_fetched("a", 0, "2", 1)
    replicated.runtime.settle()
    assert job.result().base_offset == 0
    assert services.hosting.partition("a", 0).high_watermark == 1


def test_all_times_out_and_the_record_stays(replicated: Node) -> None:
    job = replicated.spawn(replicated.services.append.append("a", 0, batch_of(b"x"), acks=Acks.ALL, timeout_ms=500))
    replicated.runtime.advance(499)
    assert not job.is_done
    replicated.runtime.advance(1)
    with refused_with(Reason.ACKS_TIMED_OUT, match=r"1 of 3 replicas of a/0 are in sync \(2 must be\)"):
        job.result()
    assert replicated.services.hosting.partition("a", 0).end_offset == 1


@pytest.mark.parametrize("timeout_ms", [0, -5])
def test_no_time_at_all_still_gets_an_answer(replicated: Node, timeout_ms: int) -> None:
    append = replicated.services.append.append("a", 0, batch_of(b"x"), acks=Acks.ALL, timeout_ms=timeout_ms)
    assert refused(replicated, append).reason is Reason.ACKS_TIMED_OUT


def test_a_timeout_has_a_maximum(replicated: Node) -> None:
    append = replicated.services.append.append("a", 0, batch_of(b"x"), acks=Acks.ALL, timeout_ms=2**62)
    job = replicated.spawn(append)
    replicated.runtime.advance(LONG_POLL_MS_MAX - 1)
    assert not job.is_done
    replicated.runtime.advance(1)
    assert job.is_done


def test_leader_acks_do_not_wait_for_replicas(replicated: Node) -> None:
    replicated.services.fetch.replica_fetched("a", 0, "1", 0)
    assert replicated.append("a", b"x").base_offset == 0
    assert replicated.services.hosting.partition("a", 0).high_watermark == 0, "an in-sync replica does not have it yet"


def test_enough_replicas_must_be_in_sync_even_when_all_of_them_have_it(replicated: Node) -> None:
    append = replicated.services.append.append("a", 0, batch_of(b"x"), acks=Acks.ALL, timeout_ms=100)
    job = replicated.spawn(append)
    replicated.runtime.settle()
    assert replicated.services.hosting.partition("a", 0).high_watermark == 1, "the leader is the whole in-sync set"
    assert not job.is_done
    replicated.services.fetch.replica_fetched("a", 0, "2", 1)
    replicated.runtime.settle()
    assert job.is_done
    job.result()


@pytest.mark.parametrize("ends_by", ["role", "deletion"])
def test_a_wait_for_replicas_ends_with_the_leadership(replicated: Node, ends_by: str) -> None:
    job = replicated.spawn(replicated.services.append.append("a", 0, batch_of(b"x"), acks=Acks.ALL, timeout_ms=60_000))
    replicated.runtime.settle()
    if ends_by == "role":
        replicated.run(replicated.services.placement.set_role("a", 0, Role.FOLLOWER))
    else:
        replicated.run(replicated.services.topics.delete("a"))
    with pytest.raises(BrokerError) as caught:
        job.result()
    assert caught.value.reason is (Reason.NOT_LEADER if ends_by == "role" else Reason.TOPIC_NOT_FOUND)


def test_a_silent_replica_stops_holding_up_appends(replicated: Node) -> None:
    services = replicated.services
    for replica in ("1", "2"):
        services.fetch.replica_fetched("a", 0, replica, 0)
    replicated.runtime.advance(20_000)
    services.fetch.replica_fetched("a", 0, "1", 0)
    job = replicated.spawn(services.append.append("a", 0, batch_of(b"x"), acks=Acks.ALL, timeout_ms=60_000))
    replicated.runtime.settle()
    services.fetch.replica_fetched("a", 0, "1", 1)
    replicated.runtime.advance(20_000)
    services.fetch.replica_fetched("a", 0, "1", 1)
    assert not job.is_done
    assert [node for _, node in services.placement.expire_replicas(30_000)] == ["2"]
    replicated.runtime.settle()
    assert job.result().base_offset == 0


def test_changing_the_followers_releases_who_waits(replicated: Node) -> None:
    job = replicated.spawn(replicated.services.append.append("a", 0, batch_of(b"x"), acks=Acks.ALL, timeout_ms=60_000))
    replicated.runtime.settle()
    replicated.run(replicated.services.placement.set_followers("a", [], 1))
    assert job.result().base_offset == 0
    assert replicated.restarted().services.hosting.partition("a", 0).replicas.replication_factor == 1


# -- retries -------------------------------------------------------------------------------------------------


def test_a_retry_is_answered_as_the_first_time(node: Node) -> None:
    first = node.run(node.services.append.append("a", 0, batch_of(b"x", b"y", producer=(7, 0, 0))))
    node.append("a", b"other")
    again = node.run(node.services.append.append("a", 0, batch_of(b"x", b"y", producer=(7, 0, 0))))
    assert (again.base_offset, again.last_offset, again.duplicate) == (first.base_offset, first.last_offset, True)
    assert node.values("a") == [b"x", b"y", b"other"]


def test_a_retry_before_the_sync_waits_for_it_too(node: Node) -> None:
    with node.runtime.holding_syncs():
        batch = batch_of(b"x", producer=(7, 0, 0))
        jobs = [node.spawn(node.services.append.append("a", 0, batch)) for _ in range(3)]
        assert not any(job.is_done for job in jobs)
    assert [job.result().duplicate for job in jobs] == [False, True, True]
    assert node.values("a") == [b"x"]


def test_a_retry_after_a_crash_is_still_known(node: Node) -> None:
    batch = batch_of(b"x", producer=(7, 0, 0))
    node.run(node.services.append.append("a", 0, batch))
    again = node.restarted()
    assert again.run(again.services.append.append("a", 0, batch)).duplicate
    gap = again.services.append.append("a", 0, batch_of(b"z", producer=(7, 0, 5)))
    assert refused(again, gap).reason is Reason.OUT_OF_ORDER_SEQUENCE
    newer = again.services.append.append("a", 0, batch_of(b"n", producer=(7, 1, 0)))
    assert again.run(newer).base_offset == 1
    assert refused(again, again.services.append.append("a", 0, batch)).reason is Reason.STALE_PRODUCER_EPOCH


def test_a_transactional_batch_needs_a_transaction(node: Node) -> None:
    """Else nothing would ever end it, and committed readers would wait behind it for good."""
    alone = batch_of(b"x", producer=(7, 0, 0), transactional=True)
    assert refused(node, node.services.append.append("a", 0, alone)).reason is Reason.INVALID_TRANSACTION_STATE
    hidden = batch_of(b"x") + alone
    assert refused(node, node.services.append.append("a", 0, hidden)).reason is Reason.INVALID_TRANSACTION_STATE
    assert node.services.hosting.partition("a", 0).end_offset == 0


def test_thousands_of_retries_make_no_duplicate_and_no_gap() -> None:
    """Row 13 of the promises, in small: every batch is sent one to four times, with restarts between."""
    node = Node()
    node.create("a", 1)
    sent = 0
    for number in range(1200):
        batch = batch_of(str(number).encode(), producer=(7, 0, number))
        for _ in range(1 + number % 4):
            node.run(node.services.append.append("a", 0, batch))
            sent += 1
        if number % 300 == 299:
            node = node.restarted()
    assert node.values("a") == [str(number).encode() for number in range(1200)]
    assert sent == 3000


# -- written, then acknowledged ------------------------------------------------------------------------------


def test_several_partitions_are_synced_together(node: Node) -> None:
    with node.runtime.holding_syncs():
        written = [node.services.append.write("a", number, batch_of(b"x")) for number in (0, 1)]
        node.services.append.sync_together(written)
        jobs = [node.spawn(node.services.append.acknowledge(each, acks=Acks.LEADER)) for each in written]
        assert not any(job.is_done for job in jobs)
        assert [each.hosted.high_watermark for each in written] == [0, 0]
    assert [job.result().base_offset for job in jobs] == [0, 0]
    assert [each.hosted.high_watermark for each in written] == [1, 1]


def test_who_waits_for_one_has_the_others_synced_meanwhile(node: Node) -> None:
    written = [node.services.append.write("a", number, batch_of(b"x")) for number in (0, 1)]
    node.services.append.sync_together(written)
    node.run(node.services.append.acknowledge(written[0], acks=Acks.LEADER))
    assert [each.hosted.log.durable_offset for each in written] == [1, 1]


def test_a_batch_whose_records_were_not_checked_is_checked(node: Node) -> None:
    bad = bytearray(batch_of(b"x"))
    bad[-4:] = b"\xff\xff\xff\xff"
    with refused_with(Reason.INVALID_RECORD):
        node.services.append.write("a", 0, seal(bad), records_checked=False)
    assert node.services.hosting.partition("a", 0).end_offset == 0
    assert (
        node.services.append.write("a", 0, memoryview(batch_of(b"x")), records_checked=False).appended.base_offset == 0
    )


def test_what_was_sealed_here_is_in_the_log_as_if_it_had_been_read(node: Node) -> None:
    append, now_ms = node.services.append, node.runtime.now_ms()
    batches = [
        sealed_batch([b"x", b"y"], keys=[b"k", None], base_timestamp=now_ms),
        sealed_batch([b"z"], base_timestamp=now_ms),
    ]
    with node.runtime.holding_syncs():
        own = append.append_own("a", 0, batches, acks=Acks.LEADER)
        assert not isinstance(own, Appended), "it is not durable yet"
        job = node.spawn(own)
        node.runtime.advance(10_000)
        assert not job.is_done
    assert job.result() == node.run(append.append("a", 1, b"".join(each.data for each in batches), acks=Acks.LEADER))
    files = [node.services.hosting.partition("a", number).log.segments[0].file for number in (0, 1)]
    kept = [file.read_at(file.size(), 0)[DATA_START:] for file in files]
    assert kept[0] == kept[1]
    assert len(kept[0]) == sum(len(each.data) for each in batches)


def test_what_was_sealed_here_waits_for_nothing_where_the_page_cache_counts() -> None:
    node = Node()
    node.create("a", 1, settings={"flush": "os"})
    batch = sealed_batch([b"x"], base_timestamp=node.runtime.now_ms())
    assert node.services.append.append_own("a", 0, [batch], acks=Acks.LEADER) == Appended(0, 0)
    assert node.services.hosting.partition("a", 0).high_watermark == 1


PACKED = [codec for codec in Compression if codec is not Compression.NONE]
MEGABYTE = 1 << 20


class Noted(Here):
    """A worker that remembers what it was asked."""

    def __init__(self) -> None:
        self.jobs: list[WorkerJob] = []

    async def do(self, job: WorkerJob, payload: Buffer) -> Answer:
        self.jobs.append(job)
        return await super().do(job, payload)


class Bench:
    """`bench.check(batch)`"""

    def __init__(self, **limits: int) -> None:
        self.node = Node()
        self.node.create("a")
        self.worker = Noted()
        self.limits = DecompressionLimits(**limits)
        self.intake = DecompressionCheck(self.node.services.hosting, self.node.runtime, self.worker, self.limits)
        self.allowance = Allowance(self.limits)

    def check(self, batch: bytes) -> None:
        self.node.run(self.intake.check("a", 0, batch, read_header(batch), self.allowance))


def packed(size: int, codec: Compression = Compression.GZIP) -> bytes:
    return encode_batch([bytes(size)], base_timestamp=0, compression=codec)


@pytest.mark.parametrize("codec", PACKED)
def test_small_is_opened_here_and_large_by_the_worker(codec: Compression) -> None:
    bench = Bench()
    bench.check(packed(1000, codec))
    assert bench.worker.jobs == []
    bench.check(packed(2 * MEGABYTE, codec))
    assert len(bench.worker.jobs) == 1
    assert bench.allowance.bytes_left < bench.limits.decompressed_bytes_max - 2 * MEGABYTE


def test_a_request_has_one_megabyte_of_the_loop_for_all_its_batches() -> None:
    bench = Bench()
    for _ in range(4):
        bench.check(packed(HERE_BYTES_MAX // 3))
    assert len(bench.worker.jobs) == 2, "two fitted beside each other, not four"


@pytest.mark.parametrize("codec", PACKED)
def test_more_than_a_request_may_have_is_refused(codec: Compression) -> None:
    bench = Bench(decompressed_bytes_max=10 * MEGABYTE, decompressed_ratio_max=100_000)
    with pytest.raises(BrokerError) as refused:
        bench.check(packed(11 * MEGABYTE, codec))
    assert refused.value.reason is Reason.RECORD_TOO_LARGE
    bench.check(packed(6 * MEGABYTE, codec))
    with pytest.raises(BrokerError) as refused:
        bench.check(packed(6 * MEGABYTE, codec))
    assert refused.value.reason is Reason.RECORD_TOO_LARGE


def test_nothing_left_is_not_asked_of_the_worker() -> None:
    bench = Bench()
    bench.allowance.bytes_left = bench.allowance.here_left = 0
    with pytest.raises(BrokerError, match=r"limits\.decompressed_bytes_max"):
        bench.check(packed(10))
    assert bench.worker.jobs == []


def test_a_ratio_that_no_client_reaches_is_refused_and_a_few_megabytes_are_free() -> None:
    bench = Bench(decompressed_ratio_max=100)
    free = packed(RATIO_FREE_BYTES - 100, Compression.ZSTD)
    assert len(free) * 100 < RATIO_FREE_BYTES
    bench.check(free)
    with pytest.raises(BrokerError) as refused:
        bench.check(packed(RATIO_FREE_BYTES + 100, Compression.ZSTD))
    assert refused.value.reason is Reason.RECORD_TOO_LARGE


@pytest.mark.parametrize("codec", PACKED)
def test_very_compressible_batches_pass_by_default(codec: Compression) -> None:
    lines = [b'{"level":"info","message":"started","at":%d}' % (number // 1000) for number in range(400_000)]
    Bench().check(encode_batch(lines, base_timestamp=0, compression=codec))


@pytest.mark.parametrize("size", [1000, 2 * MEGABYTE])
def test_a_record_that_is_not_sound_is_refused_wherever_it_is_opened(size: int) -> None:
    bench = Bench()
    plain = encode_batch([bytes(size)], base_timestamp=0)
    section = bytearray(plain[HEADER_BYTES:])
    section[-1] = 9  # nine headers are announced, and none follows
    lying = seal_section(section, 1, base_timestamp=0, max_timestamp=0, compression=Compression.GZIP)
    with pytest.raises(BrokerError) as refused:
        bench.check(lying)
    assert refused.value.reason is Reason.INVALID_RECORD


def test_what_is_cheap_to_see_is_seen_before_anything_is_opened() -> None:
    bench = Bench()
    batch = packed(2 * MEGABYTE)
    with pytest.raises(ValueError, match="CRC"):
        bench.check(batch[:-9] + bytes(9))
    assert bench.worker.jobs == []


# -- order -------------------------------------------------------------------------------------------------------


class Held:
    """A worker that answers when it is told to."""

    def __init__(self, runtime: ManualRuntime) -> None:
        self._runtime = runtime
        self._wakeups: list[Any] = []

    def do(self, job: WorkerJob, payload: Buffer) -> Awaitable[Answer]:
        wakeup = self._runtime.wakeup()
        self._wakeups.append(wakeup)

        async def answer() -> Answer:
            await wakeup.wait(1e6)
            return Answer(1)

        return answer()

    def let_go(self) -> None:
        self._wakeups.pop(0).wake()


class Line:
    """Requests of some sources, each with one batch; `done` has them in the order in which they were appended."""

    def __init__(self) -> None:
        self.node = Node()
        self.node.create("a")
        self.worker = Held(self.node.runtime)
        self.intake = DecompressionCheck(
            self.node.services.hosting, self.node.runtime, self.worker, DecompressionLimits()
        )
        self.done: list[str] = []

    def send(self, source: str, name: str, *, large: bool, weight: int = 10) -> Job[None]:
        batch = packed(2 * MEGABYTE if large else 10)

        async def request() -> None:
            if not self.intake.begin_batch(source):
                await self.intake.wait(source, weight)
            allowance = self.intake.allowance()
            try:
                await self.intake.check("a", 0, batch, read_header(batch), allowance)
                self.done.append(name)
            finally:
                self.intake.end_batch(source)

        return self.node.spawn(request())

    def go_on(self) -> None:
        self.worker.let_go()
        self.node.runtime.settle()


def test_what_one_connection_sends_stays_in_order() -> None:
    line = Line()
    line.send("x", "large", large=True)
    line.send("x", "small", large=False)
    line.send("x", "large again", large=True)
    line.send("x", "last", large=False)
    line.send("y", "another's", large=False)
    assert line.done == ["another's"]
    line.go_on()
    assert line.done == ["another's", "large", "small"]
    line.go_on()
    assert line.done == ["another's", "large", "small", "large again", "last"]


def test_who_leaves_the_line_holds_nobody_up() -> None:
    line = Line()
    line.send("x", "large", large=True)
    gone = line.send("x", "gone", large=False)
    line.send("x", "next", large=False)
    gone.cancel()
    line.go_on()
    assert line.done == ["large", "next"]
    line.send("x", "later", large=False)
    assert line.done == ["large", "next", "later"]


def test_who_leaves_when_its_turn_has_come_passes_it_on() -> None:
    line = Line()
    assert line.intake.begin_batch("x")
    gone = line.send("x", "gone", large=False)
    line.send("x", "next", large=False)
    line.intake.end_batch("x")
    gone.cancel()  # it was woken, and has not gone on yet
    line.node.runtime.settle()
    assert line.done == ["next"]


def test_what_waits_in_line_is_bounded() -> None:
    line = Line()
    line.send("x", "large", large=True)
    line.send("x", "waits", large=False, weight=LINE_BYTES_MAX)
    job = line.send("x", "too much", large=False, weight=1)
    with pytest.raises(BrokerError) as refused:
        job.result()
    assert refused.value.reason is Reason.TIMED_OUT
    line.go_on()
    assert line.done == ["large", "waits"]
    line.send("x", "later", large=False)
    assert line.done[-1] == "later"


def test_the_worker_is_told_how_much() -> None:
    bench = Bench(decompressed_bytes_max=10 * MEGABYTE)
    bench.check(packed(2 * MEGABYTE))
    assert bench.worker.jobs == [CheckRecords(RATIO_FREE_BYTES)], "few bytes may become a few megabytes"


LIMIT = 4


@pytest.fixture
def limited() -> Node:
    made = Node(holdings=StateUsage(StateLimits(producers_max=LIMIT)))
    made.create("a", 2)
    return made


def write(limited: Node, producer_id: int, sequence: int = 0, *, partition: int = 0, producer_epoch: int = 0) -> int:
    batch = encode_batch(
        [b"x"],
        base_timestamp=limited.clock.now_ms(),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )
    return limited.run(limited.services.append.append("a", partition, batch)).base_offset


def quota_refusal(limited: Node, producer_id: int, *, partition: int = 0) -> str:
    before = limited.services.hosting.partition("a", partition).end_offset
    with pytest.raises(BrokerError) as error:
        write(limited, producer_id, partition=partition)
    assert error.value.reason is Reason.QUOTA_EXCEEDED
    assert limited.services.hosting.partition("a", partition).end_offset == before
    return str(error.value)


def fill(limited: Node) -> None:
    for number in range(LIMIT):
        write(limited, number, partition=number % 2)


def test_one_too_many_is_refused_and_who_is_known_goes_on(limited: Node) -> None:
    fill(limited)
    assert "state.producers_max" in quota_refusal(limited, 77)
    quota_refusal(limited, 0, partition=1)  # known, but to the other partition
    assert write(limited, 0, 1) == 2
    assert write(limited, 0, 1) == 2, "a retry is recognised"
    assert write(limited, 0, 0, producer_epoch=1) == 3
    limited.append("a", b"from nobody")
    assert limited.services.append.producers.count() == LIMIT


def test_what_partitions_know_when_they_are_opened_counts(limited: Node) -> None:
    fill(limited)
    again = Node(limited.disk.after_kill(), limited.clock, holdings=StateUsage(StateLimits(producers_max=LIMIT)))
    write(again, 0, 1)
    again.services.hosting.partitions("a")
    assert "state.producers_max" in quota_refusal(again, 77)


def test_what_has_expired_makes_room(limited: Node) -> None:
    fill(limited)
    limited.run(limited.services.topics.alter("a", {"producer_expiry_ms": 1000}))
    limited.runtime.advance(2000)
    for hosted in limited.services.hosting.partitions("a"):
        limited.services.hosting.maintain_log(hosted, limited.clock.now_ms())
    write(limited, 77)


def test_a_retry_of_old_records_is_recognised_after_upkeep(limited: Node) -> None:
    """What a mirror or a backfill writes has its own times: forgotten at the next upkeep, its retry was written twice."""
    batch = encode_batch([b"x"], base_timestamp=1, producer_id=7, producer_epoch=0, base_sequence=0)
    first = limited.run(limited.services.append.append("a", 0, batch))
    hosted = limited.services.hosting.partition("a", 0)
    limited.services.hosting.maintain_log(hosted, limited.clock.now_ms())
    again = limited.run(limited.services.append.append("a", 0, batch))
    assert (again.base_offset, again.duplicate) == (first.base_offset, True)


def test_at_the_limit_the_silent_are_forgotten_before_their_time(limited: Node) -> None:
    fill(limited)
    limited.runtime.advance(SILENT_MS - 1000)
    write(limited, 0, 1)
    limited.run(limited.services.append.producers.make_room())
    quota_refusal(limited, 77)
    limited.runtime.advance(2000)
    limited.run(limited.services.append.producers.make_room())
    assert limited.services.append.producers.count() == 1, "who wrote a moment ago is known"
    assert write(limited, 0, 1) == 2
    write(limited, 77)


def test_the_silent_stay_where_there_is_room(limited: Node) -> None:
    write(limited, 1)
    limited.runtime.advance(2 * SILENT_MS)
    limited.run(limited.services.append.producers.make_room())
    assert limited.services.append.producers.count() == 1


def test_a_deleted_topics_producers_make_room(limited: Node) -> None:
    fill(limited)
    quota_refusal(limited, 77)
    limited.run(limited.services.topics.delete("a"))
    limited.create("a")
    limited.runtime.advance(int(COUNT_SECONDS_MIN * 1000))
    write(limited, 77)
