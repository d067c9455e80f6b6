"""Kafka's rules for leaders, coordinators, generations and producers, against brokers that answer by script."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.client.dialects import until
from tests.client.kafka_broker import Broker, batches, one_by_one, produced, told

from braidlog import aio
from braidlog.client.drivers.kafka.rules import refused
from braidlog.client.errors import ConnectError, Refusal, RefusedError, UnknownOutcomeError, UnsupportedError
from braidlog.wire.kafka.apis import APIS, Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Served
from braidlog.wire.kafka.consumer import assignment, read_assignment, subscription
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.messages import topics as m
from braidlog.wire.kafka.messages import transactions as t
from braidlog.wire.kafka.messages.parts import PartitionOutcome
from braidlog.wire.kafka.rows import Span

QUICK: dict[str, Any] = {"retry_timeout": 20, "backoff_min": 0.001, "backoff_max": 0.01}


def url(*brokers: Broker) -> str:
    return f"kafka://{','.join(f'127.0.0.1:{each.port}' for each in brokers)}"


# -- leaders -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [E.NOT_LEADER_OR_FOLLOWER, E.UNKNOWN_TOPIC_OR_PARTITION])
async def test_not_leader_asks_the_metadata_and_the_next_leader_gets_the_very_same_batch(code: E) -> None:
    """One that does not know the topic has not heard of it yet, if another says that it leads."""
    async with Broker({d.ProduceRequest: produced()}) as new, Broker() as old:
        old.script[d.ProduceRequest] = produced(code, -1)
        # How many partitions; who leads (it is told in the same answer); then, after the refusal, who leads now.
        old.script[c.MetadataRequest] = one_by_one(told(old, new), told(new, old))
        async with aio.connect(url(old), **QUICK) as client:
            assert (await client.producer().send_and_wait("t", b"v", key=b"k")).offset == 41
            assert len(old.heard(c.MetadataRequest)) == 2
            assert batches(old) == batches(new)
            assert len(batches(new)) == 1
            assert all(not each.allow_auto_topic_creation for each in old.heard(c.MetadataRequest))


async def test_a_topic_that_is_gone_is_told_once_the_metadata_says_so() -> None:
    async with Broker() as broker:
        broker.script[d.ProduceRequest] = produced(E.UNKNOWN_TOPIC_OR_PARTITION, -1)
        gone = told(broker, code=E.UNKNOWN_TOPIC_OR_PARTITION, partitions=0)
        broker.script[c.MetadataRequest] = one_by_one(told(broker), gone)
        async with aio.connect(url(broker), **QUICK) as client:
            with pytest.raises(RefusedError) as caught:
                await client.producer().send_and_wait("t", b"v")
            assert caught.value.reason is Refusal.TOPIC_NOT_FOUND
            assert len(broker.heard(d.ProduceRequest)) == 1


async def test_a_leader_that_is_gone_is_looked_for() -> None:
    async with Broker({d.ProduceRequest: produced()}) as new, Broker() as home, Broker() as gone:
        gone.die()
        home.script[c.MetadataRequest] = one_by_one(told(gone, home), told(new, home))
        async with aio.connect(url(home), **QUICK) as client:
            assert (await client.producer().send_and_wait("t", b"v")).offset == 41
            assert len(batches(new)) == 1


async def test_a_partition_without_a_leader_is_waited_for() -> None:
    async with Broker({d.ProduceRequest: produced()}) as broker:
        nobody = c.MetadataResponsePartition(E.LEADER_NOT_AVAILABLE, 0, -1)
        whole = told(broker)
        topic = c.MetadataResponseTopic(0, "t", partitions=[nobody])
        without = msgspec.structs.replace(whole, topics=[topic])
        broker.script[c.MetadataRequest] = one_by_one(without, without, without, whole)
        async with aio.connect(url(broker), **QUICK) as client:
            assert (await client.producer().send_and_wait("t", b"v")).offset == 41
            assert len(broker.heard(c.MetadataRequest)) == 4


async def test_brokers_that_were_told_of_are_asked_when_the_urls_own_are_gone() -> None:
    async with Broker() as other, Broker() as home:
        home.script[c.MetadataRequest] = told(other, home)
        other.script[c.MetadataRequest] = told(other)
        async with aio.connect(url(home), **QUICK) as client:
            await client.admin.list_topics()
            home.die()
            assert await client.admin.list_topics() == ["t"]
            assert other.heard(c.MetadataRequest)


async def test_not_controller_asks_the_metadata() -> None:
    made = m.CreateTopicsResponse(topics=[m.CreateTopicsResponseTopic("t")])
    refusal = m.CreateTopicsResponse(topics=[m.CreateTopicsResponseTopic("t", error_code=E.NOT_CONTROLLER)])
    async with Broker({m.CreateTopicsRequest: made}) as new, Broker({m.CreateTopicsRequest: refusal}) as old:
        old.script[c.MetadataRequest] = one_by_one(told(old, new), told(new, old))
        async with aio.connect(url(old), **QUICK) as client:
            await client.admin.create_topic("t")
            assert len(old.heard(m.CreateTopicsRequest)) == len(new.heard(m.CreateTopicsRequest)) == 1


async def test_a_topic_that_was_made_is_waited_for_until_brokers_know_it() -> None:
    made = m.CreateTopicsResponse(topics=[m.CreateTopicsResponseTopic("t")])
    async with Broker({m.CreateTopicsRequest: made}) as broker:
        unknown = told(broker, partitions=0, code=E.UNKNOWN_TOPIC_OR_PARTITION)
        broker.script[c.MetadataRequest] = one_by_one(unknown, unknown, unknown, told(broker))
        async with aio.connect(url(broker), **QUICK) as client:
            await client.admin.create_topic("t")
            assert len(broker.heard(c.MetadataRequest)) == 4
            assert len(broker.heard(m.CreateTopicsRequest)) == 1


# -- producers -----------------------------------------------------------------------------------------------------


async def test_a_lost_answer_is_asked_for_with_the_very_same_batch() -> None:
    async with Broker({d.ProduceRequest: one_by_one(None, None, produced())}) as broker:
        broker.script[c.MetadataRequest] = told(broker)
        async with aio.connect(url(broker) + "?compression=gzip", **QUICK) as client:
            assert (await client.producer().send_and_wait("t", b"v" * 1000)).offset == 41
            first, second, third = batches(broker)
            assert first == second == third
            assert len(broker.heard(t.InitProducerIdRequest)) == 1


async def test_sequences_begin_at_0_and_go_on_by_records() -> None:
    async with Broker({d.ProduceRequest: produced()}) as broker:
        broker.script[c.MetadataRequest] = told(broker)
        async with aio.connect(url(broker), **QUICK) as client:
            producer = client.producer()
            await producer.send_many("t", [b"v", b"w"])
            await producer.flush()
            await producer.send_and_wait("t", b"x")
            plain = client.producer(idempotent=False)
            await plain.send_and_wait("t", b"y")
        # producer id i64, epoch i16, base sequence i32, count i32: bytes 43 to 61 of a batch
        assert [batch[43:61] for batch in batches(broker)] == [
            _head(70, 3, 0, 2),
            _head(70, 3, 2, 1),
            _head(-1, -1, -1, 1),
        ]
        assert [message.acks for message in broker.heard(d.ProduceRequest)] == [-1, -1, 1]
        assert len(broker.heard(t.InitProducerIdRequest)) == 1


def _head(producer: int, epoch: int, sequence: int, count: int) -> bytes:
    fields = ((producer, 8), (epoch, 2), (sequence, 4), (count, 4))
    return b"".join(value.to_bytes(size, "big", signed=True) for value, size in fields)


async def test_a_fenced_producer_is_told_and_its_successor_has_a_new_id() -> None:
    ids = one_by_one(*(t.InitProducerIdResponse(producer_id=number, producer_epoch=0) for number in (70, 71)))
    script = {
        d.ProduceRequest: one_by_one(produced(E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1), produced()),
        t.InitProducerIdRequest: ids,
    }
    async with Broker(script) as broker:  # type: ignore[arg-type]
        broker.script[c.MetadataRequest] = told(broker)
        async with aio.connect(url(broker), **QUICK) as client:
            producer = client.producer()
            with pytest.raises(RefusedError, match="OUT_OF_ORDER_SEQUENCE_NUMBER") as caught:
                await producer.send_and_wait("t", b"v")
            assert caught.value.reason is Refusal.FENCED
            assert (await producer.send_and_wait("t", b"v")).offset == 41
            assert [batch[43:57] for batch in batches(broker)] == [
                (70).to_bytes(8, "big") + bytes(2) + bytes(4),
                (71).to_bytes(8, "big") + bytes(2) + bytes(4),
            ]


async def test_without_an_identity_a_lost_answer_is_told_and_a_lost_question_before_it_is_not() -> None:
    async with Broker({d.ProduceRequest: one_by_one(produced(), None, produced())}) as broker:
        # The leader is asked for: this answer is lost, and yet nothing of the batch was sent.
        broker.script[c.MetadataRequest] = told(broker)
        async with aio.connect(url(broker), **QUICK) as client:
            producer = client.producer(idempotent=False)
            await producer.send_and_wait("t", b"v")
            driver: Any = client._driver
            driver._leaders.clear()
            broker.script[c.MetadataRequest] = one_by_one(None, None, told(broker))
            with pytest.raises(UnknownOutcomeError):
                await producer.send_and_wait("t", b"v")  # sent, and its answer lost
            assert len(broker.heard(d.ProduceRequest)) == 2


# -- versions ------------------------------------------------------------------------------------------------------


def served(**last: int) -> dict[Key, Span]:
    """All APIs, some of them up to an older version only."""
    return {api.key: Span(api.versions.first, last.get(api.name, api.versions.last)) for api in APIS}


async def test_an_old_server_is_asked_twice_for_its_versions_and_then_in_its_own() -> None:
    old = served(ApiVersions=0, Produce=3, Metadata=1, InitProducerId=0)
    async with Broker({d.ProduceRequest: produced()}, old) as broker:
        broker.script[c.MetadataRequest] = told(broker)
        async with aio.connect(url(broker), **QUICK) as client:
            assert (await client.producer().send_and_wait("t", b"v")).offset == 41
        assert broker.versions(c.ApiVersionsRequest) == {0}
        assert (broker.versions(d.ProduceRequest), broker.versions(c.MetadataRequest)) == ({3}, {1})


async def test_a_server_without_a_version_in_common_is_told_by_name() -> None:
    theirs: Served = {key: versions for key, versions in served().items() if key is not Key.METADATA}
    async with Broker({}, theirs) as broker, aio.connect(url(broker), **QUICK) as client:
        with pytest.raises(UnsupportedError, match="no common version of Metadata"):
            await client.admin.list_topics()


async def test_a_server_that_is_no_kafka() -> None:
    async def shout(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectError, match="does not speak the dialect"):
            await aio.connect(f"kafka://127.0.0.1:{port}", retry_timeout=0.05)


# -- groups --------------------------------------------------------------------------------------------------------


class Group:
    """A coordinator's script: every join is a generation, and its one member leads."""

    def __init__(self) -> None:
        self.generation = 0
        self.heartbeats: list[int] = []
        self.joined: list[str] = []

    def join(self, message: g.JoinGroupRequest) -> g.JoinGroupResponse:
        self.joined.append(message.member_id)
        if not message.member_id:
            return g.JoinGroupResponse(error_code=E.MEMBER_ID_REQUIRED, member_id=f"given-{len(self.joined)}")
        self.generation += 1
        others = g.JoinGroupResponseMember("zz-other", metadata=subscription(["t", "u"]))
        own = g.JoinGroupResponseMember(message.member_id, metadata=bytes(message.protocols[0].metadata))
        return g.JoinGroupResponse(
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name="range",
            leader=message.member_id,
            member_id=message.member_id,
            members=[others, own],
        )

    def sync(self, message: g.SyncGroupRequest) -> g.SyncGroupResponse:
        for each in message.assignments:
            if each.member_id == message.member_id:
                return g.SyncGroupResponse(assignment=each.assignment)
        return g.SyncGroupResponse(assignment=assignment({}))

    def heartbeat(self, _: g.HeartbeatRequest) -> g.HeartbeatResponse:
        return g.HeartbeatResponse(error_code=self.heartbeats.pop(0) if self.heartbeats else 0)

    def script(self) -> dict[Any, Any]:
        return {
            g.JoinGroupRequest: self.join,
            g.SyncGroupRequest: self.sync,
            g.HeartbeatRequest: self.heartbeat,
            g.LeaveGroupRequest: g.LeaveGroupResponse(),
            g.OffsetFetchRequest: fetched_offsets,
            g.OffsetCommitRequest: g.OffsetCommitResponse(
                topics=[g.OffsetCommitResponseTopic("t", partitions=[PartitionOutcome(0)])]
            ),
            d.ListOffsetsRequest: d.ListOffsetsResponse(
                topics=[d.ListOffsetsResponseTopic("t", [d.ListOffsetsResponsePartition(0, offset=0)])]
            ),
            d.FetchRequest: d.FetchResponse(
                responses=[d.FetchResponseTopic("t", partitions=[d.FetchResponsePartition()])]
            ),
        }


def fetched_offsets(message: g.OffsetFetchRequest) -> g.OffsetFetchResponse:
    topics = [g.OffsetFetchResponseTopic("t", partitions=[g.OffsetFetchResponsePartition(0, -1)])]
    return g.OffsetFetchResponse(topics=topics, groups=[g.OffsetFetchResponseGroup("g", topics)])


def coordinated(by: Broker, code: int = 0) -> c.FindCoordinatorResponse:
    one = c.FindCoordinatorResponseCoordinator("g", 1, "127.0.0.1", by.port, code)
    return c.FindCoordinatorResponse(error_code=code, host="127.0.0.1", port=by.port, coordinators=[one])


def of_two_topics(broker: Broker) -> c.MetadataResponse:
    first, second = told(broker, partitions=3), told(broker, topic="u", partitions=2)
    return msgspec.structs.replace(first, topics=[*first.topics, *second.topics])


def script_of(group: Group, broker: Broker) -> None:
    broker.script.update(group.script())
    broker.script[c.FindCoordinatorRequest] = coordinated(broker)
    broker.script[c.MetadataRequest] = lambda message: (
        of_two_topics(broker) if message.topics and len(message.topics) > 1 else told(broker, partitions=3)
    )


async def test_the_leader_shares_out_what_everybody_reads() -> None:
    group = Group()
    async with Broker() as broker:
        script_of(group, broker)
        async with aio.connect(url(broker), **QUICK) as client:
            consumer = client.consumer()
            await consumer.subscribe("t", group="g")
            assert consumer.assignment == {("t", 0), ("t", 1)}
            assert group.joined == ["", "given-1"]
            (synced,) = broker.heard(g.SyncGroupRequest)
            assert {
                each.member_id: {
                    part.topic: part.partitions for part in read_assignment(each.assignment).assigned_partitions
                }
                for each in synced.assignments
            } == {"given-1": {"t": [0, 1]}, "zz-other": {"t": [2], "u": [0, 1]}}
            assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
            await consumer.close()
            (left,) = broker.heard(g.LeaveGroupRequest)
            assert [each.member_id for each in left.members] == ["given-1"]


@pytest.mark.parametrize(
    ("code", "joins"),
    [
        (E.REBALANCE_IN_PROGRESS, ["given-1"]),
        (E.ILLEGAL_GENERATION, ["given-1"]),
        (E.UNKNOWN_MEMBER_ID, ["", "given-3"]),
    ],
)
async def test_who_is_told_to_join_again_does_so_under_the_id_that_is_known(code: E, joins: list[str]) -> None:
    group = Group()
    async with Broker() as broker:
        script_of(group, broker)
        async with aio.connect(url(broker), **QUICK) as client:
            consumer = client.consumer(heartbeat_seconds=0.01)
            await consumer.subscribe("t", group="g")
            group.heartbeats = [0, code, 0]
            await until(lambda: group.generation == 2, "a second generation")
            assert group.joined == ["", "given-1", *joins]
            await until(lambda: consumer.membership and consumer.membership.generation == 2, "its membership")
            await consumer.commit({("t", 0): 5})
            (commit,) = broker.heard(g.OffsetCommitRequest)
            assert (commit.generation_id_or_member_epoch, commit.member_id) == (2, joins[-1])


async def test_another_coordinator_is_looked_for() -> None:
    group = Group()
    async with Broker() as new, Broker() as old:
        script_of(group, new)
        script_of(group, old)
        new.script[c.MetadataRequest] = old.script[c.MetadataRequest]
        old.script[g.JoinGroupRequest] = g.JoinGroupResponse(error_code=E.NOT_COORDINATOR)
        old.script[c.FindCoordinatorRequest] = one_by_one(
            coordinated(old, E.COORDINATOR_NOT_AVAILABLE), coordinated(old), coordinated(new)
        )
        async with aio.connect(url(old), **QUICK) as client:
            await client.consumer().subscribe("t", group="g")
            assert len(old.heard(c.FindCoordinatorRequest)) == 3
            assert len(old.heard(g.JoinGroupRequest)) == 1
            assert group.joined == ["", "given-1"]


async def test_commits_of_nobody_in_particular_and_refusals_of_one_partition() -> None:
    group = Group()
    async with Broker() as broker:
        script_of(group, broker)
        async with aio.connect(url(broker), **QUICK) as client:
            consumer = client.consumer()
            await consumer.assign("t", [0], group="g", start=0)
            await consumer.commit({("t", 0): 3})
            refusal = PartitionOutcome(0, E.OFFSET_METADATA_TOO_LARGE)
            broker.script[g.OffsetCommitRequest] = g.OffsetCommitResponse(
                topics=[g.OffsetCommitResponseTopic("t", partitions=[refusal])]
            )
            with pytest.raises(RefusedError, match="OFFSET_METADATA_TOO_LARGE"):
                await consumer.commit({("t", 0): 4})
            first, _ = broker.heard(g.OffsetCommitRequest)
            assert (first.generation_id_or_member_epoch, first.member_id) == (-1, "")


async def test_groups_of_an_old_server() -> None:
    """One key and one group a request, members that leave one by one, ids given by the first join."""
    group = Group()
    old = served(FindCoordinator=0, OffsetFetch=1, OffsetCommit=2, JoinGroup=0, LeaveGroup=0, Heartbeat=0, SyncGroup=0)
    async with Broker(served=old) as broker:
        script_of(group, broker)

        def join(message: g.JoinGroupRequest) -> g.JoinGroupResponse:
            return group.join(msgspec.structs.replace(message, member_id=message.member_id or "old-1"))

        broker.script[g.JoinGroupRequest] = join
        async with aio.connect(url(broker), **QUICK) as client:
            consumer = client.consumer(heartbeat_seconds=0.01)
            await consumer.subscribe("t", group="g")
            assert consumer.assignment == {("t", 0), ("t", 1)}
            await until(lambda: broker.heard(g.HeartbeatRequest), "a heartbeat")
            await consumer.commit({("t", 0): 5})
            await consumer.close()
        assert [each.key for each in broker.heard(c.FindCoordinatorRequest)] == ["g"]
        assert [each.member_id for each in broker.heard(g.LeaveGroupRequest)] == ["old-1"]
        assert broker.heard(g.OffsetFetchRequest)[0].topics[0].partition_indexes == [0]
        assert broker.heard(g.OffsetCommitRequest)[0].member_id == "old-1"


# -- records out ---------------------------------------------------------------------------------------------------


async def test_records_that_are_no_batches_are_told_and_never_handed_out() -> None:
    group = Group()
    async with Broker() as broker:
        script_of(group, broker)
        part = d.FetchResponsePartition(high_watermark=9, records=bytes(80))
        broker.script[d.FetchRequest] = d.FetchResponse(responses=[d.FetchResponseTopic("t", partitions=[part])])
        async with aio.connect(url(broker), **QUICK) as client:
            consumer = client.consumer()
            await consumer.assign("t", [0], start=0)
            with pytest.raises(RefusedError, match="magic"):
                await consumer.poll(timeout=30)


async def test_an_answer_of_another_shape_is_an_error_of_the_client() -> None:
    async with Broker({d.ProduceRequest: d.ProduceResponse([])}) as broker:
        broker.script[c.MetadataRequest] = told(broker)
        async with aio.connect(url(broker), **QUICK) as client:
            producer = client.producer(idempotent=False)
            with pytest.raises(UnknownOutcomeError, match="0 parts"):
                await producer.send_and_wait("t", b"v")


def test_codes_without_a_name_are_failures_of_which_nothing_is_known() -> None:
    assert refused(9999).reason is Refusal.FAILED
    assert str(refused(9999, "odd")) == "odd (kafka code 9999)"
    assert str(refused(6, about="t/0")) == "t/0: another node is the leader (NOT_LEADER_OR_FOLLOWER)"
    unreached = "t/0: the leader cannot be reached; try again (BROKER_NOT_AVAILABLE)"
    assert str(refused(8, about="t/0")) == unreached
