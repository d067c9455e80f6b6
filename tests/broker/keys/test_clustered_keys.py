"""Keys in slots on three nodes, with their sockets, disks and a real etcd: written while nodes are killed and come back."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import pytest
from tests.broker.keys.test_key_service import KvNode
from tests.broker.three_nodes import registered
from tests.cluster.test_three_nodes import NODES, SECONDS_MAX, ThreeNodes
from tests.histories.history import Action, Call, Outcome
from tests.histories.linearizability import check_calls
from tests.server.etcd.members import Member as EtcdMember
from tests.server.etcd.members import members
from tests.server.etcd.test_etcd_metadata import config_for

from braidlog.broker.keys import slot_service
from braidlog.broker.keys.clustered_keys import WAIT_SECONDS, ClusteredKeys, KeyServiceContext
from braidlog.cluster.metadata.events import FenceNode
from braidlog.codec.batch.records import decode_batch
from braidlog.kv.engine import operations as o
from braidlog.kv.engine.key_scan import Scan
from braidlog.kv.engine.operations import Level
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.feed.feed_records import OPERATION, SEQUENCE
from braidlog.kv.replicated.slots import FEED_TOPIC, KEY_LOGS, LOG_TOPIC, log_of, placements, slot_of
from braidlog.model.errors import BrokerError, NotLeaderError, Reason
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.model.settings import Flush
from braidlog.partition.hosted_log import Role
from braidlog.partition.internal.system_topic import read_published
from braidlog.partition.key_log import TailFolder
from braidlog.partition.partition import Partition
from braidlog.server.node import Server

COUNTERS = [b"counter %d" % at for at in range(12)]
CALLS = 25
NOTHING_DONE = {Reason.NOT_LEADER, Reason.NOT_ENOUGH_REPLICAS, Reason.UNAVAILABLE}


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    with members(tmp_path_factory.mktemp("etcd"), 1) as started:
        yield started[0]


class KeyNodes(ThreeNodes):
    """Whose keys are in slots."""

    def __init__(self, folder: Path, etcd: str, prefix: str) -> None:
        super().__init__(folder, etcd, prefix)
        self.calls: dict[bytes, list[Call]] = defaultdict(list)

    async def start(self, number: int) -> None:
        config = config_for(self._folder / str(number), self._etcd, self._prefix, node=str(number))
        kv = msgspec.structs.replace(config.kv, feed_linger_ms=5)
        server = Server(msgspec.structs.replace(config, kv=kv))
        await server.start()
        self.servers[number] = server

    def leader_of(self, key: bytes) -> int | None:
        slot = self.services(next(iter(self.servers))).routing.assignment(LOG_TOPIC, log_of(slot_of(key), KEY_LOGS))
        return None if slot is None else slot.leader

    async def ask(self, operation: o.Operation[Any], level: Level = Level.QUORUM) -> Any:
        """Of whoever leads; again as long as nothing was done."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                leader = self.leader_of(operation.key)
                if leader in self.servers:
                    assert leader is not None
                    try:
                        return await self.services(leader).keyvalue.execute(operation, level)
                    except BrokerError as error:
                        if error.reason not in NOTHING_DONE:
                            raise
                await asyncio.sleep(0.02)

    async def is_surely_done(self, operation: o.Operation[Any]) -> bool:
        """False: it may have been done, and its leader cannot tell."""
        try:
            await self.ask(operation)
        except BrokerError as error:
            if error.reason is not Reason.TIMED_OUT:
                raise
            return False
        return True

    async def call(self, client: int, operation: o.Operation[Any], action: Action, argument: int | None) -> None:
        """As one call of a history."""
        start = time.monotonic()
        answer, outcome = None, Outcome.ACKNOWLEDGED
        try:
            answer = int(await self.ask(operation))
        except BrokerError as error:
            if error.reason is not Reason.KEY_NOT_FOUND:
                outcome = Outcome.UNKNOWN
        key = operation.key.decode()
        end = time.monotonic()
        self.calls[operation.key].append(Call(str(client), key, action, argument, start, end, outcome, answer))

    async def client(self, number: int) -> None:
        for at in range(CALLS):
            key = COUNTERS[(number + at) % len(COUNTERS)]
            if at % 4 == 3:
                await self.call(number, o.Get(key), Action.GET, None)
            else:
                await self.call(number, o.Increment(key), Action.INCREMENT, 1)

    async def settled(self) -> None:
        """Every slot and every feed is led, by replicas that are all in sync."""

        def is_so() -> bool:
            image = self.services(next(iter(self.servers))).metadata.image
            known = [each for name in (LOG_TOPIC, FEED_TOPIC) for each in image.topics[name].assignments]
            return all(len(each.in_sync) == len(NODES) and each.leader is not None for each in known)

        await self.until(is_so)

    def feed(self, slot: int) -> Partition | None:
        for number in self.servers:
            hosted = self.services(number).hosting.hosted(FEED_TOPIC, slot)
            if isinstance(hosted, Partition) and hosted.role is Role.LEADER:
                return hosted
        return None

    def told(self, key: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
        """What the feed tells of a key: number, operation, value."""
        hosted, found = self.feed(log_of(slot_of(key), KEY_LOGS)), []
        assert hosted is not None
        for data, position, _ in read_published(hosted, 0):
            for row in decode_batch(data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
                headers = dict(row[4])
                if row[2] == key:
                    found.append((int(headers[SEQUENCE] or 0), headers[OPERATION], row[3]))
        return found


class Member(NamedTuple):
    """One of three nodes in its metadata, that takes part in keeping keys; the slots are led by nobody."""

    node: KvNode
    around: KeyServiceContext
    keys: ClusteredKeys

    @property
    def has_slots(self) -> bool:
        return self.node.services.routing.has_slots


def member(name: str, *, flush: Flush = Flush.ACK) -> Member:
    node = KvNode(name=name, kv=KeyValueSettings(feed=False, flush=flush))
    services = node.services
    services.metadata.change_exclusively([registered(number) for number in NODES])
    tails = TailFolder(node.disk, "/tails")
    around = KeyServiceContext(b"." * 16, services.routing, tails, node.runtime, lambda work, _: node.spawn(work))
    return Member(node, around, node.kv.join_cluster(around))


def placed(one: Member) -> list[tuple[int, ...]]:
    return [each.replicas for each in one.node.services.metadata.image.topics[LOG_TOPIC].assignments]


@pytest.mark.parametrize("name", ["1", "2"])
def test_any_node_makes_the_slots_with_the_first_request(name: str) -> None:
    burst = o.Columns(True, bytes([o.Kind.SET]), [b"k"], [b"v"])
    for kind in ("operation", "burst", "scan"):
        one = member(name)
        keyvalue = one.node.kv
        if kind == "burst":
            assert isinstance(one.node.run(keyvalue.execute_columns(burst)).found[0], NotLeaderError)
        else:
            work = (
                keyvalue.execute(o.Set(b"k", b"v")) if kind == "operation" else keyvalue.scan(Scan(0, 0, b"", b"", 1))
            )
            with pytest.raises(NotLeaderError):
                one.node.run(work)
        topic = one.node.services.metadata.image.topics[LOG_TOPIC]
        assert placed(one) == placements(KEY_LOGS, NODES, 3)
        assert (topic.min_in_sync, topic.settings.flush, topic.settings.compact) == (2, Flush.ACK, False)


def test_the_controller_makes_the_slots_when_there_are_nodes_enough_or_time_is_up() -> None:
    for name in ("1", "2"):
        one = member(name)
        one.node.run(one.keys.run_maintenance())
        assert one.has_slots == (name == "1"), "one node makes them unasked"
    one = member("1")
    one.node.services.metadata.change_exclusively([FenceNode(node=3, incarnation=1)])
    one.node.run(one.keys.run_maintenance())
    assert not one.has_slots
    one.node.runtime.advance(round(WAIT_SECONDS * 1000) + 1)
    one.node.run(one.keys.run_maintenance())
    assert placed(one) == placements(KEY_LOGS, (1, 2), 3)


def test_slots_are_flushed_as_their_keys_and_the_controller_says() -> None:
    one = member("1", flush=Flush.INTERVAL)
    one.node.run(one.keys.ensure_slots())
    topic = one.node.services.metadata.image.topics[LOG_TOPIC]
    assert (topic.settings.flush, topic.settings.delete) == (Flush.INTERVAL, False)
    one.node.kv.settings = KeyValueSettings(feed=False)
    one.node.run(one.node.kv.join_cluster(one.around).run_maintenance())
    topic = one.node.services.metadata.image.topics[LOG_TOPIC]
    assert (topic.settings.flush, topic.settings.delete) == (Flush.ACK, False)
    assert topic.unflushed == NODES, "none has promised yet that what it wrote before is on its disk"


def test_keys_go_on_when_nodes_die_and_the_feed_tells_each_change_once(
    tmp_path: Path, etcd: EtcdMember, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_service, "ANSWER_SECONDS_MAX", SECONDS_MAX)  # of a machine that has other things to do

    async def scene() -> None:
        nodes = KeyNodes(tmp_path, etcd.url, "keys")
        try:
            async with asyncio.timeout(4 * SECONDS_MAX):
                for number in NODES:
                    await nodes.start(number)
                await go_on(nodes, caplog)
        finally:
            for number in list(nodes.servers):
                await nodes.stop(number)

    asyncio.run(scene())


async def go_on(nodes: KeyNodes, caplog: pytest.LogCaptureFixture) -> None:
    await asyncio.gather(*map(nodes.client, range(4)))
    await nodes.until(
        lambda: all(len(list(nodes.services(each).hosting.opened(FEED_TOPIC))) == KEY_LOGS for each in NODES)
    )
    placed_at = nodes.services(1).metadata.image.topics[LOG_TOPIC].assignments
    assert {placed_at[log_of(slot_of(key), KEY_LOGS)].replicas[0] for key in COUNTERS} == {*NODES}, (
        "keys are on all nodes"
    )
    await nodes.until(lambda: nodes.leader_of(COUNTERS[0]) is not None)
    killed = nodes.leader_of(COUNTERS[0])
    assert killed is not None
    clients = [asyncio.create_task(nodes.client(number)) for number in range(4, 8)]
    await nodes.crash(killed)
    await asyncio.gather(*clients)
    await nodes.start(killed)
    await nodes.settled()
    caplog.clear()
    clients = [asyncio.create_task(nodes.client(number)) for number in range(10, 12)]
    await nodes.stop(killed)
    await asyncio.gather(*clients)
    unknown = [each for calls in nodes.calls.values() for each in calls if each.outcome is Outcome.UNKNOWN]
    is_starved = any(words in caplog.text for words in ("silent", "for dead", "not served by others"))
    assert is_starved or not [each for each in unknown if each.client in ("10", "11")], (
        "who leaves leaves nobody in doubt"
    )
    await nodes.start(killed)
    await nodes.settled()
    await asyncio.gather(*map(nodes.client, range(8, 10)))
    for key in COUNTERS:
        assert not list(check_calls(key.decode(), nodes.calls[key]))
        await all_read(nodes, key)
        await fed_once(nodes, key)
    await other_kinds(nodes)
    await salvaged(nodes)


async def salvaged(nodes: KeyNodes) -> None:
    """What a node that was cut off had acknowledged at ONE counts in the end, once."""
    key = b"salvaged"
    assert await nodes.ask(o.Increment(key)) == 1
    leader = nodes.leader_of(key)
    assert leader is not None
    cluster = nodes.servers[leader]._cluster
    assert cluster is not None
    incarnation = nodes.services(leader).metadata.image.cluster.nodes()[leader].incarnation
    with mock.patch.object(cluster.peers, "send"):
        for _ in range(3):
            await nodes.services(leader).keyvalue.execute(o.Increment(key), Level.ONE)
        other = next(number for number in NODES if number != leader)
        await nodes.services(other).metadata.change(lambda _: [FenceNode(node=leader, incarnation=incarnation)])
        await nodes.until(lambda: nodes.leader_of(key) not in (None, leader))
    # Who was fenced twice within a minute, as the node that died and left was, leads nothing for a while: if elected in the
    # event that registers the cut-off node, another takes over from it at once, and who has just asked it is left in doubt.
    is_certain = await nodes.is_surely_done(o.Increment(key))
    kept = nodes.services(leader).keyvalue.slots
    assert kept is not None
    known = (b"5",) if is_certain else (b"4", b"5")
    async with asyncio.timeout(SECONDS_MAX):
        while await nodes.ask(o.Get(key)) not in known or await kept.tails():  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0.05)
    count = int(await nodes.ask(o.Get(key)))
    assert b"%d" % count in known
    await nodes.until(lambda: bool(nodes.feed(log_of(slot_of(key), KEY_LOGS))) and len(nodes.told(key)) == count)
    assert sorted(row[2] or b"" for row in nodes.told(key)) == [b"%d" % at for at in range(1, count + 1)]


async def all_read(nodes: KeyNodes, key: bytes) -> None:
    """At ONE any replica answers, with what it has."""
    value = await nodes.ask(o.Get(key), Level.ALL)
    for number in NODES:
        assert await nodes.services(number).keyvalue.execute(o.Get(key), Level.ONE) == value


async def fed_once(nodes: KeyNodes, key: bytes) -> None:
    value = await nodes.ask(o.Get(key))
    await nodes.until(lambda: bool(nodes.feed(log_of(slot_of(key), KEY_LOGS))) and nodes.told(key)[-1:][0][2] == value)
    told = nodes.told(key)
    assert [row[2] for row in told] == [b"%d" % at for at in range(1, int(value) + 1)]
    assert [row[0] for row in told] == sorted({row[0] for row in told})
    assert {row[1] for row in told} == {b"incrby"}


async def other_kinds(nodes: KeyNodes) -> None:
    """Of a list the feed ends with the whole; a burst is answered for each; a key goes everywhere at its time."""
    key = b"list"
    for at in range(5):
        await nodes.ask(o.Push(key, o.End.RIGHT, (b"%d" % at,)))
    await nodes.until(lambda: bool(nodes.told(key)) and len(nodes.told(key)) == 5)
    last = nodes.told(key)[-1][2]
    assert last is not None
    assert last.endswith(b"4")
    assert int.from_bytes(last[:4], "big") == 5
    names = [b"burst %d" % at for at in range(40)]
    burst = o.Columns(True, bytes([o.Kind.SET]) * 40, names, [b"x"] * 40)
    answers = [(await nodes.services(number).keyvalue.execute_columns(burst)).found for number in NODES]
    for each in zip(*answers, strict=True):
        assert sorted(isinstance(answer, NotLeaderError) for answer in each) == [False, True, True]
    keys = sum(nodes.services(number).keyvalue.stats().keys for number in NODES)
    assert keys == len(COUNTERS) + 1 + 40
    await nodes.ask(o.Expire(key, 1))
    await nodes.until(lambda: not any(key in space.data for space in nodes.services(1).keyvalue.keyspaces()))
    done = await nodes.services(2).keyvalue.snapshot()
    assert done.keys == nodes.services(2).keyvalue.stats().keys
    assert await nodes.ask(o.Increment(COUNTERS[0]))
    assert len(nodes.services(1).keyvalue.keyspaces()) == KEY_LOGS
