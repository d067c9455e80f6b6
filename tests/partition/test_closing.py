"""Partitions that nobody uses are closed, tell what they know without being opened, and are opened again beside the loop."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from tests.partition.fetching import fetch_all
from tests.partition.test_opening import Openings
from tests.server.test_node import append, config_for, play

from braidlog.adapters.kafka.coordination.transactions import describe_producers
from braidlog.adapters.kafka.services import Services as KafkaServices
from braidlog.adapters.routing import Denied
from braidlog.codec.batch.records import encode_batch
from braidlog.coordinator.event_streams import VersionConflict
from braidlog.model.errors import StorageFault
from braidlog.model.settings import UNLIMITED, TopicSettings
from braidlog.partition.closing import close_idle
from braidlog.partition.fetch.fetch import Wanted
from braidlog.partition.maintenance.log_maintenance import is_due
from braidlog.partition.opening import retry
from braidlog.partition.produce.append import Acks
from braidlog.server.maintenance import IdlePartitions
from braidlog.server.node import Server
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.state.partition_state import Shape
from braidlog.wire.kafka.messages.transactions import DescribeProducersRequest, DescribeProducersRequestTopic


async def started(folder: Path, **flags: object) -> Server:
    server = Server(config_for(folder, **flags))
    await server.start()
    assert server.services is not None
    return server


async def rest(server: Server) -> int:
    """Two turns: what is used was used before the first."""
    assert server.services is not None
    hosting, runtime = server.services.hosting, server.services.runtime
    await close_idle(hosting, runtime)
    return await close_idle(hosting, runtime)


def told(server: Server, name: str, number: int) -> list[object]:
    """Whatever is asked without reading records."""
    assert server.services is not None
    hosted = server.services.hosting.partition(name, number)
    return [
        hosted.start_offset,
        hosted.end_offset,
        hosted.high_watermark,
        hosted.last_stable_offset,
        hosted.size_bytes,
        hosted.segment_count,
        hosted.newest_timestamp_ms,
        hosted.leader_epoch,
        hosted.epoch_at(0),
        hosted.epochs(),
        hosted.fault,
        list(hosted.damages),
        hosted.advance(),
    ]


async def values(server: Server, name: str, number: int = 0, offset: int = 0) -> list[bytes | None]:
    assert server.services is not None
    found = await server.services.fetch.records(name, number, offset, bytes_max=1 << 20)
    return [record.value for record in found.records]


async def test_a_closed_partition_says_what_the_open_one_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openings = Openings(monkeypatch)
    server = await started(tmp_path)
    assert server.services is not None
    await server.services.topics.create("a", 3)
    await append(server, "a", b"x")
    before = [told(server, "a", number) for number in range(3)]
    assert await rest(server) == 3
    openings.threads.clear()
    assert [told(server, "a", number) for number in range(3)] == before
    assert not any(hosted.is_open for hosted in server.services.hosting.opened("a"))
    # A reader at the end waits without opening it.
    (fetched,) = await fetch_all(server.services.fetch, [Wanted("a", 0, 1, 100)], bytes_max=100, wait_ms=1)
    assert fetched.slice is None
    assert openings.threads == {}
    assert await values(server, "a") == [b"x"]
    await append(server, "a", b"y")
    assert await values(server, "a") == [b"x", b"y"]
    assert list(openings.threads) == [("a", 0)]
    assert openings.on_this_thread() == []
    await server.stop()
    again = await started(tmp_path)
    assert await values(again, "a") == [b"x", b"y"]
    await again.stop()


async def test_what_is_used_or_under_way_stays_open(tmp_path: Path) -> None:
    server = await started(tmp_path)
    assert server.services is not None
    hosting, runtime = server.services.hosting, server.services.runtime
    await server.services.topics.create("used", 1)
    await server.services.topics.create("open", 1)
    await server.services.topics.create("trimmed", 1)
    transactional = encode_batch(
        [b"x"], base_timestamp=1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    log = hosting.partition("open", 0).log
    log.append(transactional, now_ms=1)
    log.sync()
    hosting.partition("open", 0).advance()
    await close_idle(hosting, runtime)
    await append(server, "used", b"x")
    await server.services.trim.delete_before("trimmed", 0, 0)
    assert await close_idle(hosting, runtime) == 0
    assert hosting.partition("used", 0).is_open
    assert hosting.partition("open", 0).is_open
    assert not hosting.partition("open", 0).log.is_closed
    await server.stop()


async def test_who_asks_while_it_is_being_closed_gets_it_open(tmp_path: Path) -> None:
    server = await started(tmp_path)
    assert server.services is not None
    await server.services.topics.create("a", 1)
    hosted = server.services.hosting.partition("a", 0)
    log = hosted.log
    hosted.begin_close()
    assert hosted.end_offset == 0
    await append(server, "a", b"x")
    hosted.finish_close()  # nothing any more
    assert hosted.log is log
    assert await values(server, "a") == [b"x"]
    await server.stop()


async def test_appends_keep_their_order_while_a_partition_is_opened(tmp_path: Path) -> None:
    server = await started(tmp_path)
    assert server.services is not None
    await server.services.topics.create("a", 1)
    assert await rest(server) == 1
    sent = [b"%d" % number for number in range(20)]
    appends = [asyncio.ensure_future(append(server, "a", value, Acks.NONE)) for value in sent]
    async with asyncio.timeout(60):
        while not server.services.hosting.partition("a", 0).is_open:  # noqa: ASYNC110 - the very turn in which it is
            await asyncio.sleep(0)
    late = asyncio.ensure_future(append(server, "a", b"late"))
    await asyncio.gather(*appends, late)
    assert await values(server, "a") == [*sent, b"late"]
    await server.stop()


def test_a_partition_that_cannot_be_opened_is_tried_again_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def broken(folder: DataFolder, name: str, partition: int) -> PartitionLog:
        nonlocal tries
        tries += 1
        raise StorageFault("cannot open: Too many open files")

    async def scene() -> None:
        server = await started(tmp_path)
        assert server.services is not None
        hosting, runtime = server.services.hosting, server.services.runtime
        await server.services.topics.create("a", 1)
        await append(server, "a", b"x")
        assert await rest(server) == 1
        with monkeypatch.context() as patch:
            patch.setattr(DataFolder, "open_partition", broken)
            hosting.partition("a", 0)._open = hosting._folder.open_partition  # it was bound before the patch
            for _ in range(3):
                with pytest.raises(StorageFault, match="Too many open files"):
                    await append(server, "a", b"y")
            assert tries == 1
            assert await retry(hosting, runtime) == []
            assert tries == 2
        (found,) = await retry(hosting, runtime)
        assert (str(found), hosting.offline) == ("a/0", {})
        await append(server, "a", b"y")
        assert await values(server, "a") == [b"x", b"y"]
        await server.stop()

    play(scene)


async def maintain_log(server: Server) -> None:
    """A turn of the upkeep."""
    await server._retain()


async def test_retention_reaches_closed_partitions(tmp_path: Path) -> None:
    server = await started(tmp_path)
    assert server.services is not None
    hosting, topics = server.services.hosting, server.services.topics
    await topics.create("a", 1, settings={"retention_ms": UNLIMITED})
    await append(server, "a", b"x")  # of long ago
    assert await rest(server) == 1
    hosted = hosting.partition("a", 0)
    await maintain_log(server)
    assert not hosted.is_open
    await topics.alter("a", {"retention_ms": 1000})
    await maintain_log(server)
    assert (hosted.start_offset, hosted.end_offset) == (1, 1)
    await server.stop()


def test_a_closed_partition_is_as_due_as_an_open_one() -> None:
    settings = TopicSettings(retention_ms=1000, retention_bytes=100)
    shape = Shape(
        segments=2,
        size_bytes=90,
        newest_ms=9000,
        dirty_ratio=0.6,
        dirty_since_ms=8000,
        first_base=0,
        first_bytes=40,
        first_newest_ms=8500,
        first_full_ms=8600,
    )
    replace = msgspec.structs.replace
    assert not is_due(shape, settings, 9000)
    assert is_due(shape, settings, 9501)
    assert not is_due(replace(shape, size_bytes=139), settings, 9000)
    assert is_due(replace(shape, size_bytes=140), settings, 9000)
    assert not is_due(replace(shape, size_bytes=140, segments=1), settings, 9000)
    assert not is_due(replace(shape, first_newest_ms=10**15), settings, 9500)
    assert is_due(
        replace(shape, first_newest_ms=10**15), settings, 9601
    )  # what claims the future goes by when it was full
    assert not is_due(replace(shape, first_newest_ms=10**15, first_full_ms=-1), settings, 10**9)
    compacted = TopicSettings(delete=False, compact=True)
    assert is_due(shape, compacted, 9000)
    assert not is_due(replace(shape, dirty_ratio=0.5), compacted, 9000)
    waiting = replace(compacted, compaction_lag_min_ms=1000)
    assert [is_due(shape, waiting, now) for now in (9999, 10_000)] == [False, True]
    hasty = replace(compacted, compaction_dirty_ratio=1.0, compaction_lag_max_ms=2000)
    assert [is_due(shape, hasty, now) for now in (10_000, 10_001)] == [False, True]
    assert not is_due(replace(shape, dirty_since_ms=-1), hasty, 10**9)


async def test_compaction_reaches_closed_partitions(tmp_path: Path) -> None:
    server = await started(tmp_path)
    assert server.services is not None
    hosting, services = server.services.hosting, server.services
    await services.topics.create("a", 1, settings={"segment_bytes": 4096})
    for number in range(4):
        batch = encode_batch([bytes(3000)], keys=[b"k"], base_timestamp=number)
        await services.append.append("a", 0, batch, acks=Acks.ALL)
    assert await rest(server) == 1
    hosted = hosting.partition("a", 0)
    await maintain_log(server)
    assert (hosted.is_open, hosted.segment_count) == (False, 4)
    await services.topics.alter("a", {"delete": False, "compact": True})
    await maintain_log(server)
    assert hosted.size_bytes < 3 * 3000
    assert await values(server, "a", offset=3) == [bytes(3000)]
    assert await rest(server) == 1
    await maintain_log(server)
    assert not hosted.is_open  # and is let be when that is done
    await server.stop()


async def test_what_is_being_compacted_is_not_closed(tmp_path: Path) -> None:
    server = await started(tmp_path)
    assert server.services is not None
    await server.services.topics.create("a", 1)
    hosted = server.services.hosting.partition("a", 0)
    compacting, done = threading.Event(), threading.Event()

    def compact() -> None:
        with hosted.log.upkeep:
            compacting.set()
            assert done.wait(60)

    await rest(server)
    thread = asyncio.get_running_loop().run_in_executor(None, compact)
    await asyncio.to_thread(compacting.wait, 60)
    assert await rest(server) == 0
    await append(server, "a", b"x")
    done.set()
    await thread
    assert await rest(server) == 1
    await server.stop()


async def test_what_is_not_synced_yet_is_closed_with_a_sync(tmp_path: Path) -> None:
    server = await started(tmp_path)
    assert server.services is not None
    await server.services.topics.create("a", 1, settings={"flush": "os"})
    await append(server, "a", b"x")
    log = server.services.hosting.partition("a", 0).log
    assert log.durable_offset == 0
    assert await rest(server) == 1
    assert log.durable_offset == 1
    assert await values(server, "a") == [b"x"]
    await server.stop()


async def test_one_version_of_a_stream_is_given_once_while_its_partition_is_opened(tmp_path: Path) -> None:
    server = await started(tmp_path)
    assert server.services is not None
    streams = server.services.streams
    await server.services.topics.create("a", 1)
    await streams.append("a", b"k", 0, b"x")
    assert await streams.version("a", b"k") == 1  # what is new was read: nothing but the append opens the partition
    assert await rest(server) == 1
    both = [streams.append("a", b"k", 1, b"y"), streams.append("a", b"k", 1, b"z")]
    first, second = await asyncio.gather(*both, return_exceptions=True)
    assert not isinstance(first, BaseException)
    assert isinstance(second, VersionConflict)
    assert await rest(server) == 1
    assert [record.value for _, record in await streams.read("a", b"k")] == [b"x", b"y"]
    await server.stop()


async def test_who_writes_to_several_partitions_is_not_overtaken_in_one_that_was_open(tmp_path: Path) -> None:
    server = await started(tmp_path)
    assert server.services is not None
    services = server.services
    await services.topics.create("a", 2)
    assert await rest(server) == 2
    await services.append.ready("a", 0)

    async def write(value: bytes, *numbers: int) -> None:
        await services.append.ready("a", *numbers)
        for number in numbers:
            services.append.write("a", number, encode_batch([value], base_timestamp=1))

    await asyncio.gather(write(b"first", 0, 1), write(b"second", 0), write(b"third", 1, 0))
    await server.stop()
    again = await started(tmp_path)
    assert await values(again, "a", 0) == [b"first", b"second", b"third"]
    assert await values(again, "a", 1) == [b"first", b"third"]
    await again.stop()


async def test_transactions_and_their_producers_open_nothing_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openings = Openings(monkeypatch)
    server = await started(tmp_path)
    assert server.services is not None
    services = server.services
    await services.topics.create("a", 3)
    transactions = (await services.coordinators.reach("t")).transactions
    producer = await transactions.begin_producer("t", timeout_ms=60_000)
    await transactions.add_partitions("t", producer.producer_id, producer.epoch, [("a", 0), ("a", 1)])
    assert await rest(server) == 3
    openings.threads.clear()
    await transactions.abort_in(99, 0, "a", 2)  # nothing can be open there
    assert openings.threads == {}
    await transactions.end_transaction("t", producer.producer_id, producer.epoch, commit=True)
    assert sorted(openings.threads) == [("a", 0), ("a", 1)]
    assert openings.on_this_thread() == []
    assert services.hosting.partition("a", 0).end_offset == 1
    # The producer and its epoch are known after the partition was closed and opened again.
    known = services.hosting.partition("a", 0).producers()
    assert await rest(server) == 2
    openings.threads.clear()
    request: Any = SimpleNamespace(message=DescribeProducersRequest([DescribeProducersRequestTopic("a", [0, 2, 0])]))
    unheard: Any = None
    answer = await describe_producers(request, cast("KafkaServices", services), unheard, Denied())
    assert [len(each.active_producers) for each in answer.topics[0].partitions] == [1, 0, 1]
    assert sorted(openings.threads) == [("a", 0), ("a", 2)]
    assert openings.on_this_thread() == []
    assert services.hosting.partition("a", 0).producers() == known
    await server.stop()


async def test_a_reader_that_waits_is_told_of_what_comes_after_the_close(tmp_path: Path) -> None:
    server = await started(tmp_path)
    assert server.services is not None
    await server.services.topics.create("a", 1)
    wanted = [Wanted("a", 0, 0, 100)]
    waiting = asyncio.ensure_future(fetch_all(server.services.fetch, wanted, bytes_max=100, wait_ms=25_000))
    await asyncio.sleep(0)
    assert await rest(server) == 1
    assert not waiting.done()
    await append(server, "a", b"x")
    (fetched,) = await waiting
    assert fetched.slice is not None
    await server.stop()


async def test_with_followers_partitions_are_opened_at_the_start(tmp_path: Path) -> None:
    server = await started(tmp_path)
    assert server.services is not None
    await server.services.topics.create("a", 2)
    await server.stop()
    again = await started(tmp_path)
    assert again.services is not None
    hosting = again.services.hosting
    topic = hosting.meta("a")
    assigned = msgspec.structs.replace(topic.assignments[0], replicas=(*topic.assignments[0].replicas, 9))
    followed = msgspec.structs.replace(topic, assignments=(assigned, topic.assignments[1]))
    await again.stop()
    found = [hosting.open_partition(followed, number, at_rest=True) for number in range(2)]
    assert [each.is_open for each in found] == [True, False]
    for each in found:
        each.close()


async def test_while_memory_is_short_partitions_are_closed_sooner(tmp_path: Path) -> None:
    server = await started(tmp_path)
    assert server.services is not None
    await server.services.topics.create("a", 1)
    hosted = server.services.hosting.partition("a", 0)
    idle = IdlePartitions(server.services, server._budget, 600)
    for _ in range(3):
        await idle.close()
    assert hosted.is_open  # not for ten minutes
    server._budget.reserve(server._budget.bytes_max)
    for _ in range(2):
        await idle.close()
    assert not hosted.is_open
    await server.stop()
