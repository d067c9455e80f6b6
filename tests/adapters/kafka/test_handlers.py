"""Requests of one connection, sent without waiting for answers: each sees what those before it did."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.adapters.kafka.client import Client, batch_of, fetch_of, produce_of

from braidlog.adapters.kafka.handlers import Effect, Order
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.messages import topics as m
from braidlog.wire.kafka.rows import Message

ROUNDS = 8


def create(topic: str) -> Message:
    return m.CreateTopicsRequest([m.CreateTopicsRequestTopic(topic, 1, 1)])


def metadata(topic: str) -> Message:
    return c.MetadataRequest([c.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)


def listed(topic: str, timestamp: int) -> Message:
    asked = d.ListOffsetsRequestPartition(0, timestamp=timestamp)
    return d.ListOffsetsRequest(-1, 0, [d.ListOffsetsRequestTopic(topic, [asked])])


def delete_records(topic: str) -> Message:
    return m.DeleteRecordsRequest([m.DeleteRecordsRequestTopic(topic, [m.DeleteRecordsRequestPartition(0, 1)])])


def commit(topic: str) -> Message:
    wanted = g.OffsetCommitRequestPartition(0, 1)
    return g.OffsetCommitRequest(group_id=topic, topics=[g.OffsetCommitRequestTopic(topic, partitions=[wanted])])


def committed(topic: str) -> Message:
    asked = [g.OffsetFetchRequestTopic(topic, partition_indexes=[0])]
    return g.OffsetFetchRequest(groups=[g.OffsetFetchRequestGroup(topic, topics=asked)])


def alter(topic: str) -> Message:
    change = m.IncrementalAlterConfigsRequestConfig("retention.ms", 0, "12345")
    return m.IncrementalAlterConfigsRequest([m.IncrementalAlterConfigsRequestResource(2, topic, [change])])


def described(topic: str) -> Message:
    return m.DescribeConfigsRequest([m.DescribeConfigsRequestResource(2, topic, ["retention.ms"])])


def produce(topic: str) -> Message:
    return produce_of((topic, 0, batch_of(b"one")))


PAIRS: dict[str, tuple[Callable[[str], Message], Callable[[str], Message], Callable[[Any], Any], Any]] = {
    "CreatePartitions Metadata": (
        lambda topic: m.CreatePartitionsRequest([m.CreatePartitionsRequestTopic(topic, 3, None)]),
        metadata,
        lambda told: len(told.topics[0].partitions),
        3,
    ),
    "DeleteTopics Metadata": (
        lambda topic: m.DeleteTopicsRequest(topic_names=[topic]),
        metadata,
        lambda told: told.topics[0].error_code,
        3,
    ),
    "Produce ListOffsets": (
        produce,
        lambda topic: listed(topic, -1),
        lambda told: told.topics[0].partitions[0].offset,
        2,
    ),
    "Produce Fetch": (
        produce,
        lambda topic: fetch_of((topic, 0, 1)),
        lambda told: len(told.responses[0].partitions[0].records) > 0,
        True,
    ),
    "DeleteRecords ListOffsets": (
        delete_records,
        lambda topic: listed(topic, -2),
        lambda told: told.topics[0].partitions[0].offset,
        1,
    ),
    "OffsetCommit OffsetFetch": (
        commit,
        committed,
        lambda told: told.groups[0].topics[0].partitions[0].committed_offset,
        1,
    ),
    "AlterConfigs DescribeConfigs": (alter, described, lambda told: told.results[0].configs[0].value, "12345"),
}
VERSIONS = {
    d.ProduceRequest: 9,
    d.FetchRequest: 12,
    m.DeleteTopicsRequest: 5,
    g.OffsetCommitRequest: 8,
    g.OffsetFetchRequest: 8,
}


def ask_both(client: Client, first: Message, second: Message) -> Any:
    """The answer to the second of two requests that are sent at once."""
    frames = (client.connection.request(each, VERSIONS.get(type(each))) for each in (first, second))
    client.socket.sendall(b"".join(frames))
    client.receive()
    return client.receive()


@pytest.mark.parametrize("pair", PAIRS)
def test_a_request_sees_what_the_one_before_it_did(braid_server_shared: ServerProcess, pair: str) -> None:
    change, look, found, expected = PAIRS[pair]
    with Client(braid_server_shared) as client:
        for turn in range(ROUNDS):
            topic = f"order-{pair.replace(' ', '-')}-{turn}"
            assert ask_both(client, create(topic), metadata(topic)).topics[0].error_code == 0, "created, then looked at"
            client.produce(topic, batch_of(b"zero"))
            assert found(ask_both(client, change(topic), look(topic))) == expected, turn


class Line:
    """Requests of one connection as their order sees them. `begun` tells which have begun, in the order in which they did."""

    def __init__(self) -> None:
        self.order = Order()
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *requests: tuple[str, Effect]) -> None:
        for name, effect in requests:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.get_running_loop().create_task(self._serve(name, effect))
        await self.settle()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def _serve(self, name: str, effect: Effect) -> None:
        if not self.order.begin(effect):
            await self.order.wait(effect, self)  # type: ignore[arg-type]  # of a world it needs the wakeups only
        self.begun.append(name)
        try:
            await self._ends[name].wait()
        finally:
            self.order.end()

    def wakeup(self) -> "Woken":
        return Woken()


class Woken:
    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    async def wait(self, timeout: float) -> bool:  # noqa: ASYNC109 - it is woken in time
        return await self._event.wait()


APPENDS, READS, CHANGES = Effect.APPENDS, Effect.READS, Effect.CHANGES


def test_produces_go_together_and_everything_else_waits_for_them() -> None:
    async def scenario() -> None:
        line = Line()
        await line.come(("a1", APPENDS), ("a2", APPENDS), ("r1", READS), ("a3", APPENDS), ("c1", CHANGES))
        assert line.begun == ["a1", "a2"]
        await line.end("a2")
        assert line.begun == ["a1", "a2"]
        await line.end("a1")
        assert line.begun == ["a1", "a2", "r1"]
        await line.come(("c2", CHANGES), ("a4", APPENDS))
        await line.end("r1")
        assert line.begun[3:] == ["a3"]
        await line.end("a3", "c1", "c2", "a4")
        assert line.begun[4:] == ["c1", "c2", "a4"]

    asyncio.run(scenario())


def test_nobody_passes_one_that_was_woken_and_has_not_run_yet() -> None:
    async def scenario() -> None:
        line = Line()
        await line.come(("c", CHANGES), ("a1", APPENDS))
        line.order.end()  # what `c` did is done: `a1` is woken, and runs in the loop's next turn
        assert not line.order.begin(APPENDS)
        await line.settle()
        assert line.begun == ["c", "a1"]
        assert line.order.begin(APPENDS)
        for task in line.tasks.values():
            task.cancel()
        await asyncio.gather(*line.tasks.values(), return_exceptions=True)

    asyncio.run(scenario())


def test_one_that_is_read_while_another_was_woken_waits_behind_it() -> None:
    async def scenario() -> None:
        line = Line()
        await line.come(("c", CHANGES), ("a1", APPENDS), ("a2", APPENDS))
        line.order.end()  # what `c` did is done: `a1` is woken, and runs in the loop's next turn
        newcomer = line.order.wait(APPENDS, line)  # type: ignore[arg-type]  # of a world it needs the wakeups only
        newcomer.send(None)  # it is served as far as it goes before anything else is, as a session does: not to its end
        await line.settle()
        assert line.begun == ["c", "a1", "a2"]
        with pytest.raises(StopIteration):  # its turn has come, too
            newcomer.send(None)
        for task in line.tasks.values():
            task.cancel()
        await asyncio.gather(*line.tasks.values(), return_exceptions=True)

    asyncio.run(scenario())


def test_those_who_wait_begin_in_the_order_in_which_they_came() -> None:
    async def scenario() -> None:
        line = Line()
        await line.come(("c", CHANGES), ("a1", APPENDS), ("a2", APPENDS), ("r", READS), ("a3", APPENDS))
        await line.end("c")
        assert line.begun == ["c", "a1", "a2"], "all that fit, before any of them has ended"
        line.tasks["r"].cancel()
        await line.settle()
        assert line.begun == ["c", "a1", "a2", "a3"], "whoever leaves lets those behind it begin"
        await line.end("a1", "a2", "a3")

    asyncio.run(scenario())


def test_who_leaves_while_it_waits_holds_nobody_up() -> None:
    async def scenario() -> None:
        line = Line()
        await line.come(("r", READS), ("c1", CHANGES), ("c2", CHANGES))
        line.tasks["c1"].cancel()
        await line.settle()
        await line.end("r")
        assert line.begun == ["r", "c2"]
        await line.end("c2")
        assert line.order.begin(CHANGES)

    asyncio.run(scenario())
