"""The log of schemas on three nodes: each may write, one at a time, and what was written is there after its leader's crash."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.test_three_nodes import NODES, SECONDS_MAX, ThreeNodes, three_nodes
from tests.server.etcd.members import Member, members

from braidlog.broker.schemas.schema_log import TOPIC, Place
from braidlog.codec.batch.records import encode_batch
from braidlog.model.errors import BrokerError, Reason
from braidlog.partition.hosted_log import Role
from braidlog.registry import changes
from braidlog.registry.changes import Wanted
from braidlog.registry.framing import head
from braidlog.registry.registry_state import State

PASSING = {Reason.NOT_LEADER, Reason.NOT_ENOUGH_REPLICAS, Reason.ACKS_TIMED_OUT, Reason.TIMED_OUT, Reason.UNAVAILABLE}
EACH = 8


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with members(tmp_path_factory.mktemp("etcd"), 1) as started:
        yield started[0]


class Writer:
    """A registry on one node, as its process beside it works."""

    def __init__(self, nodes: ThreeNodes, number: int) -> None:
        self.nodes, self.number = nodes, number
        self.state, self.place = State(), Place()
        self.conflicts = 0

    async def read(self) -> State:
        log = self.nodes.services(self.number).schema_log
        while True:
            page = await log.read(self.place)
            if (page.topic_id, page.begin) != self.place:
                self.state = State()
            self.state.apply(page.entries)
            self.place = Place(page.topic_id, page.next_offset)
            if page.next_offset >= page.end:
                return self.state

    async def register(self, subject: str, size: int) -> int:
        wanted = Wanted(f'{{"type":"fixed","name":"F","size":{size}}}')
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                try:
                    made = changes.register(await self.read(), subject, wanted)
                    if made.entries:
                        await self.nodes.services(self.number).schema_log.append(self.place, made.entries)
                except BrokerError as error:
                    if error.reason is Reason.VERSION_CONFLICT:
                        self.conflicts += 1
                    elif error.reason not in PASSING:
                        raise
                    await asyncio.sleep(0.01)
                else:
                    return int(made.answer["id"])


async def checked_at_every_leader(nodes: ThreeNodes, writers: dict[int, Writer]) -> None:
    """Topics that ask for schemas, some of them led where the log of schemas is not: what one node registered the next one takes,
    and nobody takes what is not registered."""
    led = set()
    for number in NODES:
        topic = f"checked{number}"
        await nodes.services(1).topics.create(topic, 1, settings={"value_schema_check": True})
        await nodes.until(lambda topic=topic: all(topic in nodes.services(each).hosting.topics for each in NODES))  # type: ignore[misc]
        schema_id = await writers[number].register(f"{topic}-value", 7)

        def leads(each: int, topic: str = topic) -> bool:
            hosted = nodes.services(each).hosting.hosted(topic, 0)
            return hosted is not None and hosted.role is Role.LEADER

        await nodes.until(lambda leads=leads: any(map(leads, NODES)))  # type: ignore[misc]
        leader = next(filter(leads, NODES))
        led.add(leader)
        append = nodes.services(leader).append
        for value, is_taken in ((head(schema_id), True), (head(4711), False), (b"bare", False), (None, True)):
            batch = encode_batch([value], base_timestamp=1)
            with contextlib.nullcontext() if is_taken else pytest.raises(BrokerError, match="schema"):
                await append.append(topic, 0, batch, timeout_ms=60_000)
    assert len(led) > 1


def test_no_two_schemas_get_one_id_whichever_nodes_are_asked_and_whoever_dies(tmp_path: Path, etcd: Member) -> None:
    async def scene() -> None:
        async with three_nodes(tmp_path, etcd, "schemas") as nodes:
            writers = {number: Writer(nodes, number) for number in NODES}
            assert await writers[1].read() is writers[1].state, "nobody has written yet"
            given: dict[int, int] = {}

            async def work(number: int, sizes: range) -> None:
                for size in sizes:
                    given[size] = await writers[number].register(f"s{size}", size)

            await asyncio.gather(*(work(number, range(number * 100, number * 100 + EACH)) for number in NODES))
            assert sorted(given.values()) == list(range(1, len(NODES) * EACH + 1)), "each its own, and none left out"
            assert sum(each.conflicts for each in writers.values()), "they were in each other's way"
            leader = nodes.services(1).metadata.image.assignment(TOPIC, 0).leader
            assert leader is not None
            await checked_at_every_leader(nodes, writers)
            await nodes.crash(leader)
            others = [number for number in NODES if number != leader]
            await asyncio.gather(*(work(number, range(number * 1000, number * 1000 + EACH)) for number in others))
            assert len({*given.values()}) == len(given)
            for number in others:
                async with asyncio.timeout(SECONDS_MAX):
                    while len((await writers[number].read()).schemas) < len(given):  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0.01)
                fresh = Writer(nodes, number)
                found = await fresh.read()
                assert {size: each.id for size in given for each in found.versions(f"s{size}", deleted=True)} == given
            await nodes.start(leader)

    asyncio.run(scene())
