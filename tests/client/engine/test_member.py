"""Groups over a real server: three consumers share a topic, come and go, and no record is missing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.client.dialects import FACES, connected, fresh, run, server_url, until

from braidlog import aio
from braidlog.client.errors import ClosedError, Refusal, RefusedError
from braidlog.client.schemes import capabilities
from braidlog.testing.server import ServerProcess

GROUPS = [column for column, able in capabilities().items() if able.groups]
PARTITIONS = 6
OPTIONS: dict[str, Any] = {"heartbeat_seconds": 0.1, "wait_ms": 50}


async def fill(client: Any, topic: str, first: int, count: int) -> None:
    producer = client.producer()
    for at in range(first, first + count):
        await producer.send(topic, b"%d" % at, key=b"%d" % at)
    await producer.flush()


class Reader:
    """A member that works on what it gets, then commits it."""

    def __init__(self, consumer: aio.Consumer) -> None:
        self.consumer = consumer
        self.done: list[bytes | None] = []
        self.is_committed = True
        self._task: asyncio.Future[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            try:
                records = await self.consumer.poll(max_records=20, timeout=0.2)
            except ClosedError:
                return
            self.done += [record.value for record in records]
            self.is_committed = False
            try:
                await self.consumer.commit()
                self.is_committed = True
            except ClosedError:
                return
            except RefusedError as error:
                if error.reason is not Refusal.REJOIN:  # then somebody else may work on them too
                    raise

    async def stop(self) -> None:
        await self.consumer.close()
        assert self._task is not None
        await self._task


@pytest.mark.parametrize("column", GROUPS)
async def test_three_members_come_and_go_and_nothing_is_missing(
    column: str, braid_server_shared: ServerProcess
) -> None:
    async with aio.connect(server_url(column, braid_server_shared)) as client:
        topic, group = fresh(), fresh("g")
        await client.admin.create_topic(topic, PARTITIONS)
        await fill(client, topic, 0, 300)
        readers = []
        for _ in range(3):
            reader = Reader(client.consumer(**OPTIONS))
            await reader.consumer.subscribe(topic, group=group)
            reader.start()
            readers.append(reader)
        await until(
            lambda: (
                sorted(place for r in readers for place in r.consumer.assignment)
                == [(topic, number) for number in range(PARTITIONS)]
            ),
            "each partition has one reader",
        )
        assert [len(reader.consumer.assignment) for reader in readers] == [2, 2, 2]
        await fill(client, topic, 300, 300)
        await readers[0].stop()
        await fill(client, topic, 600, 300)
        expected = {b"%d" % at for at in range(900)}
        await until(lambda: {value for r in readers for value in r.done} == expected, "all 900")
        await until(lambda: len(readers[1].consumer.assignment) == 3, "two share what three had")
        # A commit that a rebalance refused goes with the next one: who stops before that leaves it to others.
        await until(lambda: all(reader.is_committed for reader in readers[1:]), "all is committed")
        for reader in readers[1:]:
            await reader.stop()
        assert sum(lag.lag for lag in await client.admin.lag(group, topic)) == 0


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("column", GROUPS)
async def test_committed_resumes(column: str, face: str, braid_server_shared: ServerProcess) -> None:
    async with connected(face, server_url(column, braid_server_shared)) as client:
        topic, group = fresh(), fresh("g")
        await client.admin.create_topic(topic, 1)
        await fill(client, topic, 0, 50)
        first = client.consumer(**OPTIONS)
        await first.subscribe(topic, group=group)
        got = await first.poll(max_records=20, timeout=30)
        await first.commit()
        await first.poll(max_records=5, timeout=30)  # not committed: read again
        await first.close()
        second = client.consumer(**OPTIONS)
        await second.subscribe(topic, group=group)
        found = await second.poll(timeout=30)
        assert found[0].offset == len(got)
        await second.close()


class LostPartition:
    """`slow` has read a record and nobody hears of it any more; then `quick` joins and is given the only partition.

    So much is fetched ahead that `slow` has no fetch under way: whatever it is told of the group, it is told when it asks next.
    """

    def __init__(self, client: aio.Client) -> None:
        self.slow = client.consumer(heartbeat_seconds=600, prefetch_bytes_max=1)
        self.quick = client.consumer(**OPTIONS)
        self.topic, self.group = fresh(), fresh("g")
        self._client = client

    async def set_up(self) -> None:
        await self._client.admin.create_topic(self.topic, 1)
        producer = self._client.producer()
        for _ in range(10):
            await producer.send(self.topic, bytes(8_000))
        await producer.flush()
        await self.slow.subscribe(self.topic, group=self.group, member="b-slow")
        assert await self.slow.poll(max_records=1, timeout=30)
        # In kafka all wait until the session of `slow` is over.
        await self.quick.subscribe(self.topic, group=self.group, member="a-quick")

    async def committed(self) -> int | None:
        return (await self._client.admin.lag(self.group, self.topic))[0].committed


@pytest.mark.parametrize("column", GROUPS)
async def test_a_member_that_lost_its_partition_cannot_commit_it(
    column: str, braid_server_shared: ServerProcess
) -> None:
    more = "?session_timeout_ms=6000" if column == "kafka" else ""
    async with aio.connect(server_url(column, braid_server_shared) + more) as client:
        lost = LostPartition(client)
        await lost.set_up()
        with pytest.raises(RefusedError) as caught:
            await lost.slow.commit()
        assert caught.value.reason is Refusal.REJOIN
        await until(lambda: lost.quick.assignment or lost.slow.assignment, "somebody has it")
        assert await lost.committed() is None


async def test_a_member_that_is_told_by_a_fetch_that_it_lost_its_partition_commits_nothing(
    braid_server_shared: ServerProcess,
) -> None:
    """The other order: a fetch is refused before the commit is asked for; nothing is left to commit. Only cursus refuses one."""
    async with aio.connect(server_url("cursus", braid_server_shared)) as client:
        lost = LostPartition(client)
        await lost.set_up()
        await lost.slow.poll(max_records=10, timeout=30)  # makes room, so that more is fetched
        await until(lambda: not lost.slow.assignment, "it has learned that it lost the partition")
        await lost.slow.commit()
        assert await lost.committed() is None


@pytest.mark.parametrize("column", GROUPS)
async def test_auto_commit_commits_what_was_worked_on(column: str, braid_server_shared: ServerProcess) -> None:
    async with aio.connect(server_url(column, braid_server_shared)) as client:
        topic, group = fresh(), fresh("g")
        await client.admin.create_topic(topic, 1)
        await fill(client, topic, 0, 30)
        consumer = client.consumer(auto_commit_ms=10, **OPTIONS)
        await consumer.subscribe(topic, group=group)
        first = await consumer.poll(max_records=10, timeout=30)
        second = await consumer.poll(max_records=10, timeout=30)
        assert second
        while (committed := await consumer.committed(topic, 0)) is None:  # noqa: ASYNC110 - the server's state
            await asyncio.sleep(0.01)
        assert committed == len(first)  # the second may still be worked on
        await consumer.close()
        assert (await client.admin.lag(group, topic))[0].committed == len(first) + len(second)
        with pytest.raises(RuntimeError, match="in the middle"):
            await _fail_at_work(client.consumer(auto_commit_ms=10_000, **OPTIONS), topic, group)
        assert (await client.admin.lag(group, topic))[0].committed == len(first) + len(second)


@pytest.mark.parametrize("column", GROUPS)
async def test_auto_commit_commits_nothing_before_something_was_worked_on(
    column: str, braid_server_shared: ServerProcess
) -> None:
    async with aio.connect(server_url(column, braid_server_shared)) as client:
        topic, group = fresh(), fresh("g")
        await client.admin.create_topic(topic, 1)
        await fill(client, topic, 0, 10)
        consumer = client.consumer(auto_commit_ms=600_000, **OPTIONS)
        await consumer.subscribe(topic, group=group)
        await consumer._commit_worked_on()  # what the timer calls
        assert (await client.admin.lag(group, topic))[0].committed is None
        assert len(await consumer.poll(max_records=5, timeout=30)) == 5
        await consumer._commit_worked_on()
        assert (await client.admin.lag(group, topic))[0].committed is None  # five are being worked on
        await consumer.poll(max_records=5, timeout=30)
        await consumer._commit_worked_on()
        assert (await client.admin.lag(group, topic))[0].committed == 5
        await consumer.close()


async def _fail_at_work(consumer: aio.Consumer, topic: str, group: str) -> None:
    async with consumer:
        await consumer.subscribe(topic, group=group)
        await consumer.poll(max_records=5, timeout=30)
        raise RuntimeError("in the middle of the work")


@pytest.mark.parametrize("column", GROUPS)
async def test_async_for_commits_exactly_what_it_went_through(column: str, braid_server_shared: ServerProcess) -> None:
    async with aio.connect(server_url(column, braid_server_shared)) as client:
        topic, group = fresh(), fresh("g")
        await client.admin.create_topic(topic, 1)
        await fill(client, topic, 0, 30)
        async with client.consumer(**OPTIONS) as consumer:
            await consumer.subscribe(topic, group=group)
            async for record in consumer:
                if record.offset == 12:
                    break
            await consumer.commit()
            assert await consumer.committed(topic, 0) == 13


@pytest.mark.parametrize("column", GROUPS)
def test_a_group_outlives_kill_9(column: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:

        async def test() -> None:
            async with aio.connect(server_url(column, server), backoff_max=0.2) as client:
                await client.admin.create_topic("t", 2)
                await fill(client, "t", 0, 100)
                reader = Reader(client.consumer(**OPTIONS))
                await reader.consumer.subscribe("t", group="g")
                reader.start()
                await until(lambda: len(reader.done) >= 20, "some records")
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)
                await fill(client, "t", 100, 100)
                await until(lambda: set(reader.done) == {b"%d" % at for at in range(200)}, "all 200")
                await reader.stop()

        run(test)


@pytest.mark.parametrize("column", [column for column, able in capabilities().items() if able.group_admin])
async def test_groups_can_be_looked_at(column: str, braid_server_shared: ServerProcess) -> None:
    async with aio.connect(server_url(column, braid_server_shared)) as client:
        topic, group = fresh(), fresh("g")
        await client.admin.create_topic(topic, 2)
        consumer = client.consumer(**OPTIONS)
        await consumer.subscribe(topic, group=group, member="me")
        assert group in await client.admin.list_groups()
        info = await client.admin.describe_group(group)
        assert consumer.membership is not None
        own_id = consumer.membership.member  # kafka's server gives members their ids
        assert (own_id == "me") is (column != "kafka")
        assert (info.state, info.topics, [(m.member, m.partitions) for m in info.members]) == (
            "Stable",
            (topic,),
            [(own_id, (0, 1))],
        )
        await consumer.close()
        assert (await client.admin.describe_group(group)).members == ()
