"""Every door that makes something for a client counts it for who asked, and refuses one too many in its own words."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.broker.node import Node

from braidlog.adapters.contract import answer_of
from braidlog.codec.batch.records import encode_batch
from braidlog.coordinator.state_limits import StateKind, StateLimits, StateUsage
from braidlog.model.errors import BrokerError, Reason
from braidlog.server.adapters import make_adapter
from braidlog.wire.cursus import requests as cursus
from braidlog.wire.cursus.batch import Batch, BatchRecord
from braidlog.wire.flux import messages as flux
from braidlog.wire.kafka.apis import BY_KEY
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.messages import topics as kt
from braidlog.wire.kafka.messages import transactions as t
from braidlog.wire.mlog import messages as mlog
from braidlog.wire.rustlog import messages as rustlog
from braidlog.wire.rustlog.messages import Form


class Talk:
    """Alice's conversation."""

    principal, address, peer = "alice", ("here", 1), "there:1"


class Doors:
    """The doors of one node, without sockets; alice is who asks."""

    def __init__(self, **limits: Any) -> None:
        self.holdings = StateUsage(StateLimits(**limits))
        self.node = Node(holdings=self.holdings)
        self.node.create("orders")
        self.node.create("events", settings={"event_streams": True})
        self.node.run(self.node.services.streams.append("events", b"x", 0, b"x"))
        self.node.run(self.node.services.streams.append("events", b"y", 0, b"x"))
        self._adapters: dict[str, Any] = {}

    def ask(self, dialect: str, message: Any) -> Any:
        """The answer; a refusal as the service said it."""
        adapter: Any = self._adapters.setdefault(dialect, make_adapter(dialect, self.node.services))
        talk: Any = Talk()
        table = adapter.table if hasattr(adapter, "table") else adapter.routes
        if dialect == "kafka":
            api = next(api for api in BY_KEY.values() if api.request is type(message))
            version, route = api.versions.last, table[api.key]
            request: Any = SimpleNamespace(
                message=message, version=version, key=api.key, api=api, client_id="c", parts=1
            )
        else:
            route = table[type(message)]
            request = SimpleNamespace(message=message, form=Form.JSON) if dialect in ("cursus", "rustlog") else message
        job = self.node.spawn(answer_of(adapter.serve, route, talk, request))
        self.node.runtime.advance(1000)
        return job.result()


def code_of(answer: Any) -> E | None:
    """The first error in an answer of Kafka's."""
    if isinstance(answer, list | tuple):
        return next((found for each in answer if (found := code_of(each)) is not None), None)
    if not isinstance(answer, msgspec.Struct):
        return None
    code = E(getattr(answer, "error_code", E.NONE))
    return code_of([getattr(answer, name) for name in answer.__struct_fields__]) if code is E.NONE else code


def refusal(doors: Doors, dialect: str, message: Any) -> Reason | E | None:
    try:
        answer = doors.ask(dialect, message)
    except BrokerError as error:
        return error.reason
    return code_of(answer) if dialect == "kafka" else None


class Way(NamedTuple):
    dialect: str
    kind: StateKind
    message: Callable[[str], Any]
    """The request that makes something of this name."""


def kafka_commit(group: str) -> g.OffsetCommitRequest:
    partition = g.OffsetCommitRequestPartition(0, 0)
    return g.OffsetCommitRequest(group, topics=[g.OffsetCommitRequestTopic("orders", partitions=[partition])])


def kafka_join(group: str) -> g.JoinGroupRequest:
    return g.JoinGroupRequest(
        group, 6000, 6000, protocol_type="consumer", protocols=[g.JoinGroupRequestProtocol("range", b"")]
    )


def cursus_batch(name: str) -> Batch:
    return Batch("orders", 0, (BatchRecord(b"x", producer_id=name, sequence=1),), "1", True, 1, 1)


GROUPS, IDS = StateKind.GROUPS, StateKind.TRANSACTIONAL_IDS
WAYS = {
    "kafka-commit": Way("kafka", GROUPS, kafka_commit),
    "kafka-join": Way("kafka", GROUPS, kafka_join),
    "kafka-begin": Way("kafka", IDS, lambda name: t.InitProducerIdRequest(name, 1000)),
    "cursus-register": Way("cursus", GROUPS, lambda name: cursus.RegisterGroup(topic="orders", group=name)),
    "cursus-join": Way("cursus", GROUPS, lambda name: cursus.JoinGroup(topic="orders", group=name, member="m")),
    "cursus-commit": Way(
        "cursus", GROUPS, lambda name: cursus.CommitOffset(topic="orders", partition=0, group=name, offset=0)
    ),
    "cursus-begin": Way("cursus", IDS, lambda name: cursus.InitProducerId(transactional_id=name)),
    "cursus-snapshot": Way(
        "cursus",
        StateKind.SNAPSHOTS,
        lambda name: cursus.SaveSnapshot(topic="events", key=name, version=1, message=b"x"),
    ),
    "cursus-produce": Way("cursus", StateKind.NAMED_PRODUCERS, cursus_batch),
    "flux-join": Way("flux", GROUPS, lambda name: flux.Join("1", name, "orders", "m")),
    "mlog-commit": Way("mlog", GROUPS, lambda name: mlog.CommitOffsetRequest("orders", name, 0)),
    "rustlog-commit": Way(
        "rustlog", GROUPS, lambda name: rustlog.OffsetCommit(group=name, topic="orders", partition=0, offset=0)
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_what_a_door_makes_is_counted_for_who_asked_and_has_a_limit(name: str) -> None:
    dialect, kind, message = WAYS[name]
    doors = Doors(**{f"{kind}_max": 1})
    assert refusal(doors, dialect, message("x")) in (None, E.MEMBER_ID_REQUIRED)
    assert doors.holdings.used_by(kind, "alice") == 1
    assert refusal(doors, dialect, message("y")) in (Reason.QUOTA_EXCEEDED, E.POLICY_VIOLATION)
    assert doors.holdings.used(kind) == 1


def kafka_produce(name: str) -> d.ProduceRequest:
    batch = encode_batch([b"x"], base_timestamp=0, producer_id=ord(name), producer_epoch=0, base_sequence=0)
    partition = d.ProduceRequestPartition(0, batch)
    topic = d.ProduceRequestTopic("orders", partition_data=[partition])
    return d.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])


PRODUCE: dict[str, Callable[[str], Any]] = {"kafka": kafka_produce, "cursus": cursus_batch}


@pytest.mark.parametrize("dialect", PRODUCE)
def test_idempotent_producers_have_a_limit_on_every_door_that_has_them(dialect: str) -> None:
    doors = Doors(producers_max=1)
    assert refusal(doors, dialect, PRODUCE[dialect]("x")) is None
    assert refusal(doors, dialect, PRODUCE[dialect]("y")) in (Reason.QUOTA_EXCEEDED, E.POLICY_VIOLATION)
    assert refusal(doors, dialect, PRODUCE[dialect]("x")) is None, "a retry"
    assert doors.node.values("orders") == [b"x"]


MEMBERS: dict[str, Callable[[str], Any]] = {
    "kafka": lambda _: kafka_join("g"),
    "cursus": lambda name: cursus.JoinGroup(topic="orders", group="g", member=name),
    "flux": lambda name: flux.Join("1", "g", "orders", name),
}


@pytest.mark.parametrize("dialect", MEMBERS)
def test_a_group_is_full_on_every_door_that_has_members(dialect: str) -> None:
    doors = Doors(members_per_group_max=2)
    for name in "ab":
        assert refusal(doors, dialect, MEMBERS[dialect](name)) in (None, E.MEMBER_ID_REQUIRED)
    assert refusal(doors, dialect, MEMBERS[dialect]("c")) in (Reason.GROUP_FULL, E.GROUP_MAX_SIZE_REACHED)


CREATE: dict[str, Callable[[str], Any]] = {
    "kafka": lambda name: kt.CreateTopicsRequest([kt.CreateTopicsRequestTopic(name, 1, 1)]),
    "cursus": lambda name: cursus.Create(topic=name, partitions=1),
    "flux": lambda name: flux.CreateTopic("1", name, 1, 1),
    "mlog": mlog.CreateTopicRequest,
    "rustlog": lambda name: rustlog.CreateTopic(topic=name, partition_count=1),
}


@pytest.mark.parametrize("dialect", CREATE)
def test_a_topic_is_its_makers_and_partitions_have_a_limit(dialect: str) -> None:
    doors = Doors(partitions_max=3)
    assert refusal(doors, dialect, CREATE[dialect]("x")) is None
    assert doors.node.services.hosting.meta("x").created_by == "alice"
    assert refusal(doors, dialect, CREATE[dialect]("y")) in (Reason.QUOTA_EXCEEDED, E.POLICY_VIOLATION)
    assert not doors.node.services.hosting.exists("y")


# -- topics that are made by being used ----------------------------------------------------------------------------


def metadata(*names: str) -> c.MetadataRequest:
    return c.MetadataRequest([c.MetadataRequestTopic(name=name) for name in names])


def test_one_metadata_with_a_thousand_names_makes_a_few_topics() -> None:
    doors = Doors(topics_per_second=1.0, topics_burst=3)
    names = [f"t{number}" for number in range(1000)]
    answer = doors.ask("kafka", metadata(*names))
    codes = [each.error_code for each in answer.topics]
    assert codes == [E.NONE] * 3 + [E.LEADER_NOT_AVAILABLE] * 997
    assert len(doors.node.services.hosting.names()) == 2 + 3
    doors.node.runtime.advance(1000)
    assert refusal(doors, "kafka", metadata("t3")) is None, "who asks again gets it in time"
    assert doors.node.services.hosting.meta("t3").created_by == "alice"


def test_flux_makes_topics_at_the_same_rate() -> None:
    doors = Doors(topics_per_second=0.001, topics_burst=1)
    assert refusal(doors, "flux", flux.Join("1", "g", "new", "m")) is None
    assert refusal(doors, "flux", flux.Join("1", "g", "newer", "m")) is Reason.UNAVAILABLE
    assert refusal(doors, "flux", flux.Join("1", "g", "new", "m")) is None
