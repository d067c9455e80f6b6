"""What a row says is what its request needs: no route of any dialect uses a group, a transactional id or a key without a rule.

Administration that takes longer than its request allows is answered item by item; what waits in line is not done later.
"""

from collections.abc import Iterator
from enum import Enum
from functools import cache
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from tests.adapters.one_of_three import CONVERSATION
from tests.broker.node import Node, batch_of
from tests.broker.three_nodes import TOPIC, three_nodes
from tests.model.manual_world import Job

from braidlog.adapters.contract import answer_of
from braidlog.adapters.kafka.errors import code_of
from braidlog.adapters.kafka.metadata import MAKING_MS
from braidlog.adapters.routing import SECONDS_USUAL, Denied, Route
from braidlog.cluster.metadata.events import FenceNode
from braidlog.coordinator.offsets import Commit
from braidlog.model.errors import BrokerError, Reason
from braidlog.security.authorization import ANONYMOUS, Authorize, Kind, NotAuthorizedError, Operation, Rule
from braidlog.server.adapters import make_adapter
from braidlog.wire.cursus import requests as cursus
from braidlog.wire.cursus.batch import Spelling
from braidlog.wire.cursus.messages import BY_REQUEST, Request
from braidlog.wire.dialect import dialects
from braidlog.wire.flux import messages as flux
from braidlog.wire.kafka.apis import BY_KEY
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import ClientConnection, ServerConnection
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.messages import nodes, topics
from braidlog.wire.kafka.messages import placement as p
from braidlog.wire.kafka.messages import security as s
from braidlog.wire.kafka.messages import transactions as t
from braidlog.wire.kafka.messages.parts import TopicPartitions
from braidlog.wire.kafka.rows import Message
from braidlog.wire.mlog import messages as mlog
from braidlog.wire.rustlog import messages as rustlog

THEIRS = "theirs"
EVERY_TOPIC = Rule("mallory", [operation for operation in Operation if operation is not Operation.ALL], "*")

FIELDS: dict[str, dict[str, Kind]] = {
    "kafka": {
        "group_id": Kind.GROUP,
        "groups_names": Kind.GROUP,
        "groups": Kind.GROUP,
        "transactional_id": Kind.TRANSACTIONAL_ID,
        "transactional_ids": Kind.TRANSACTIONAL_ID,
        "sink": Kind.TRANSACTIONAL_ID,
        "coordinator_keys": Kind.GROUP,
    },
    "cursus": {"group": Kind.GROUP, "transactional_id": Kind.TRANSACTIONAL_ID},
    "flux": {"group": Kind.GROUP},
    "mlog": {"consumer_id": Kind.GROUP},
    "rustlog": {"group": Kind.GROUP, "group_id": Kind.GROUP},
    "mayfly": {"key": Kind.KEY},
}
"""The fields of requests that name what is somebody's, per dialect. (`key` of a Cursus stream is of a topic.)"""


# -- a request of any type, with every such field filled in --------------------------------------------------------


def sample(kind: Any, fields: dict[str, Kind], name: str = "", depth: int = 0) -> Any:  # noqa: PLR0911 - one per form of type
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return sample(args[0], fields, name, depth)
    if origin in (Union, UnionType):
        return sample(next(each for each in args if each is not NoneType), fields, name, depth)
    if origin in (list, tuple):
        return origin([sample(args[0], fields, name, depth)])
    if kind is str:
        return THEIRS if name in fields else "mine"
    if kind is bytes:
        return THEIRS.encode() if name in fields else b"mine"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return struct_of(kind, fields, depth)
    return kind() if kind in (int, float, bool) else None


def struct_of(kind: type[msgspec.Struct], fields: dict[str, Kind], depth: int = 0) -> Any:
    """With their defaults but for those that have none, name something, or hold others."""
    hints = get_type_hints(kind, include_extras=True)
    chosen = {}
    for each in msgspec.structs.fields(kind):
        has_default = each.default is not msgspec.NODEFAULT or each.default_factory is not msgspec.NODEFAULT
        if not has_default or each.name in (*fields, "topic") or holds_structs(hints[each.name]):
            chosen[each.name] = sample(hints[each.name], fields, each.name, depth + 1)
    return kind(**chosen)


def holds_structs(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return True
    return any(holds_structs(each) for each in get_args(kind))


def kinds_in(value: Any, fields: dict[str, Kind]) -> Iterator[Kind]:
    """What a filled-in message names."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from kinds_in(each, fields)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            if name in fields and inner in (THEIRS, THEIRS.encode(), [THEIRS]):
                yield fields[name]
            yield from kinds_in(inner, fields)


# -- every route of every dialect ----------------------------------------------------------------------------------


class Reached(Exception):  # noqa: N818 - not an error: the handler's turn
    def __init__(self, denied: Denied) -> None:
        super().__init__()
        self.denied = denied


async def reached(_: Any, __: Any, ___: Any, *given: Any) -> None:
    raise Reached(next((each for each in given if isinstance(each, Denied)), Denied()))


@cache
def node_with_shards() -> Node:
    node = Node()
    node.run(node.services.coordinators.ensure_shards())
    return node


def routes() -> Iterator[Any]:
    """Dialect, route, message, and each kind of thing that the message names."""
    node = Node()
    for dialect in dialects():
        adapter: Any = make_adapter(dialect, node.services)
        table = adapter.table if hasattr(adapter, "table") else adapter.routes
        for key, route in table.items():
            message_type = BY_KEY[key].request if dialect == "kafka" else key
            if message_type.__name__ in ("Batch", "RejectedRequest"):
                continue  # names only a topic; is no request
            message = struct_of(message_type, FIELDS[dialect])
            for kind in sorted(set(kinds_in(message, FIELDS[dialect]))):
                yield pytest.param(dialect, route, message, kind, id=f"{dialect}-{message_type.__name__}-{kind}")


def refusal(dialect: str, route: Route, message: Any, *rules: Rule) -> set[Kind]:
    """What the request is refused for, as a whole or in part, before its handler runs."""
    services = msgspec.structs.replace(node_with_shards().services, authorize=Authorize({}, rules))
    adapter: Any = make_adapter(dialect, services)
    request = (
        message if dialect in ("flux", "mlog") else SimpleNamespace(message=message, api=SimpleNamespace(name="asked"))
    )
    probing = msgspec.structs.replace(route, handler=reached)
    talk: Any = SimpleNamespace(principal="mallory", peer="there:1")
    coroutine = answer_of(adapter.serve, probing, talk, request)
    try:
        coroutine.send(None)
    except NotAuthorizedError as error:
        return {error.kind}
    except Reached as at:
        return {resource[0] for resource in at.denied if isinstance(resource, tuple)}
    raise AssertionError("a request is authorised at once")


def about(kind: Kind, pattern: str, *operations: Operation, deny: bool = False) -> Rule:
    named: dict[str, Any] = {kind.value: pattern}
    return Rule("mallory", list(operations), deny=deny, **named)


ROUTES = list(routes())


@pytest.mark.parametrize(("dialect", "route", "message", "kind"), ROUTES)
def test_what_a_request_names_needs_a_rule(dialect: str, route: Route, message: Any, kind: Kind) -> None:
    others = [about(each, "*", Operation.ALL) for each in Kind if each not in (kind, Kind.TOPIC)]
    assert refusal(dialect, route, message, EVERY_TOPIC, *others) == {kind}
    prefix = "brai*" if hasattr(message, "sink") else "thei*"
    operations = (Operation.READ, Operation.WRITE, Operation.DELETE)
    allowed = about(kind, "*" if hasattr(message, "stages") else prefix, *operations)
    assert refusal(dialect, route, message, EVERY_TOPIC, *others, allowed) == set()
    denied = about(kind, "*", Operation.ALL, deny=True)
    assert refusal(dialect, route, message, EVERY_TOPIC, *others, allowed, denied) == {kind}


def test_every_door_has_something_to_guard() -> None:
    """The walk finds what it looks for: as many requests as name something, on each door."""
    found = [(each.values[0], each.values[3]) for each in ROUTES]
    counts = {(dialect, kind): found.count((dialect, kind)) for dialect, kind in found}
    assert counts == {
        ("kafka", Kind.GROUP): 13,
        ("kafka", Kind.TRANSACTIONAL_ID): 10,
        ("cursus", Kind.GROUP): 15,
        ("cursus", Kind.TRANSACTIONAL_ID): 7,
        ("flux", Kind.GROUP): 6,
        ("mlog", Kind.GROUP): 5,
        ("rustlog", Kind.GROUP): 3,
        ("mayfly", Kind.KEY): 19,
    }


OPEN = {
    "cursus": {"Auth", "Exit", "GetProtocolInfo", "Help"},
    "flux": {"Ping"},
    "mayfly": {"Auth", "Ping", "Quit", "RejectedRequest"},
    "mlog": set(),
    "rustlog": {"Ping"},
}
"""What is answered before one has said who one is. Kafka's door closes upon, whatever it is; Mayfly's answers AUTH alone."""


@pytest.mark.parametrize("dialect", sorted(OPEN))
def test_nothing_else_is_answered_before_one_has_said_who_one_is(dialect: str) -> None:
    services = msgspec.structs.replace(Node().services, authorize=Authorize({"alice": "00" * 32}, []))
    adapter: Any = make_adapter(dialect, services)
    table = adapter.table if hasattr(adapter, "table") else adapter.routes
    talk: Any = SimpleNamespace(principal=ANONYMOUS, peer="there:1")
    refused = {}
    for kind, route in table.items():
        probing = msgspec.structs.replace(route, handler=reached)
        with pytest.raises((Reached, BrokerError)) as caught:
            answer_of(adapter.serve, probing, talk, SimpleNamespace(message=None)).send(None)
        refused[kind.__name__] = getattr(caught.value, "reason", None)
    assert {name for name, reason in refused.items() if reason is None} == OPEN[dialect]
    assert set(refused.values()) <= {None, Reason.NOT_AUTHENTICATED}


# -- with the handlers: lists, and answers for each ----------------------------------------------------------------


class Doors:
    """One node with a group and a transaction that are alice's; mallory may use every topic."""

    def __init__(self) -> None:
        self.node = Node()
        self.node.create("orders")
        self.node.append("orders", b"x")
        services = self.node.services
        self.node.run(self.node.offsets.commit("alices", [Commit("orders", 0, 1)]))
        self.transaction = self.node.run(self.node.transactions.begin_producer("alices"))
        self.rules = [Rule("alice", [Operation.ALL], "*", "alices", "alices"), EVERY_TOPIC]
        self.services = msgspec.structs.replace(services, authorize=Authorize({}, self.rules))

    def allow(self, rule: Rule) -> None:
        self.services = msgspec.structs.replace(self.services, authorize=Authorize({}, [*self.rules, rule]))

    def ask(self, dialect: str, principal: str, message: Any, **more: Any) -> Any:
        adapter: Any = make_adapter(dialect, self.services)
        talk: Any = SimpleNamespace(principal=principal, address=("here", 1), peer="there:1", is_forwarded=False)
        table = adapter.table if hasattr(adapter, "table") else adapter.routes
        if dialect == "kafka":
            api = next(api for api in BY_KEY.values() if api.request is type(message))
            request = SimpleNamespace(message=message, version=api.versions.last, key=api.key, api=api)
            route = table[api.key]
        else:
            request, route = SimpleNamespace(message=message, **more), table[type(message)]
        return self.node.run(answer_of(adapter.serve, route, talk, request))


@pytest.fixture
def doors() -> Doors:
    return Doors()


def test_lists_show_what_is_ones_own(doors: Doors) -> None:
    for principal, shown in (("alice", ["alices"]), ("mallory", [])):
        groups = doors.ask("kafka", principal, g.ListGroupsRequest()).groups
        assert [each.group_id for each in groups] == shown
        transactions = doors.ask("kafka", principal, t.ListTransactionsRequest()).transaction_states
        assert [each.transactional_id for each in transactions] == shown
        assert list(doors.ask("cursus", principal, cursus.ListGroups()).groups) == shown
        assert ("alices" in doors.ask("rustlog", principal, rustlog.MetricsFetch()).metrics) == bool(shown)


def test_each_group_and_id_of_a_request_has_an_answer_of_its_own(doors: Doors) -> None:
    names = ["alices", "bobs"]
    refused, fine = (30, 53), 0
    described = doors.ask("kafka", "alice", g.DescribeGroupsRequest(names)).groups
    assert [each.error_code for each in described] == [fine, refused[0]]
    fetched = doors.ask("kafka", "alice", g.OffsetFetchRequest(groups=[g.OffsetFetchRequestGroup(n) for n in names]))
    assert [each.error_code for each in fetched.groups] == [fine, refused[0]]
    deleted = doors.ask("kafka", "mallory", g.DeleteGroupsRequest(names)).results
    assert [each.error_code for each in deleted] == [refused[0], refused[0]]
    assert doors.node.offsets.group_offsets("alices"), "and it is still there"
    told = doors.ask("kafka", "alice", t.DescribeTransactionsRequest(names)).transaction_states
    assert [each.error_code for each in told] == [fine, refused[1]]
    for key_type, code in enumerate(refused):
        found = doors.ask("kafka", "alice", c.FindCoordinatorRequest(key_type=key_type, coordinator_keys=names))
        assert [each.error_code for each in found.coordinators] == [fine, code]


def test_nobody_ends_or_fences_anothers_transaction(doors: Doors) -> None:
    begun = doors.transaction
    attempts = [
        ("kafka", t.InitProducerIdRequest("alices", 60_000)),
        ("kafka", t.EndTxnRequest("alices", begun.producer_id, begun.epoch, committed=False)),
        ("cursus", cursus.InitProducerId("alices")),
        ("cursus", cursus.EndTxn("alices", str(begun.producer_id), begun.epoch, "abort")),
    ]
    for dialect, message in attempts:
        with pytest.raises(NotAuthorizedError, match="'mallory' may not write transactional id 'alices'"):
            doors.ask(dialect, "mallory", message)
    assert doors.node.transactions.find("alices").epoch == begun.epoch
    assert doors.ask("kafka", "alice", attempts[0][1]).producer_epoch > begun.epoch


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("said", [None, "mine"])
def test_nobody_writes_as_anothers_producer(doors: Doors, said: str | None, transactional: bool) -> None:
    """Not into its transaction, nor with a later epoch that would fence it; whatever id the request says."""
    begun = doors.transaction
    doors.node.run(doors.node.transactions.add_partitions("alices", begun.producer_id, begun.epoch, [("orders", 0)]))
    batch = batch_of(
        b"forged", producer=(begun.producer_id, begun.epoch + (not transactional), 0), transactional=transactional
    )
    topic = d.ProduceRequestTopic("orders", partition_data=[d.ProduceRequestPartition(0, batch)])
    forged = d.ProduceRequest(said, -1, 1000, [topic])
    doors.allow(Rule("mallory", [Operation.WRITE], transactional_id="mine"))
    with pytest.raises(NotAuthorizedError, match="'mallory' may not write transactional id 'alices'"):
        doors.ask("kafka", "mallory", forged)
    assert doors.node.services.hosting.partition("orders", 0).end_offset == 1


TIMEOUT_MS = 5_000


def asked(node: Node, message: Message) -> Job[Any]:
    """A request of Kafka's, under way."""
    adapter = make_adapter("kafka", node.services)
    connection = adapter.open()
    assert isinstance(connection, ServerConnection)
    connection.receive(ClientConnection("c").request(message))
    return node.spawn(answer_of(adapter.handle, CONVERSATION, connection.next_event()))


def creating(*names: str) -> topics.CreateTopicsRequest:
    return topics.CreateTopicsRequest([topics.CreateTopicsRequestTopic(name, 1, -1) for name in names], TIMEOUT_MS)


REQUESTS = {
    "CreateTopics": creating("one", "two"),
    "DeleteTopics": topics.DeleteTopicsRequest([topics.DeleteTopicsRequestTopic(TOPIC)], timeout_ms=TIMEOUT_MS),
    "CreatePartitions": topics.CreatePartitionsRequest([topics.CreatePartitionsRequestTopic(TOPIC, 3)], TIMEOUT_MS),
    "ElectLeaders": p.ElectLeadersRequest(0, [TopicPartitions(TOPIC, [0])], TIMEOUT_MS),
    "AlterPartitionReassignments": p.AlterPartitionReassignmentsRequest(
        TIMEOUT_MS,
        topics=[
            p.AlterPartitionReassignmentsRequestTopic(TOPIC, [p.AlterPartitionReassignmentsRequestPartition(0, [1, 2])])
        ],
    ),
}


def codes(answer: Any) -> list[int]:
    """Of the items of an answer."""
    if isinstance(answer, p.ElectLeadersResponse):
        return [each.error_code for topic in answer.replica_election_results for each in topic.partition_result]
    if isinstance(answer, p.AlterPartitionReassignmentsResponse):
        return [each.error_code for topic in answer.responses for each in topic.partitions]
    fields = ("topics", "responses", "results")
    return [each.error_code for name in fields for each in getattr(answer, name, ())]


@pytest.mark.parametrize("name", REQUESTS)
def test_what_waits_in_line_is_timed_out_item_by_item_and_never_done(name: str) -> None:
    node = three_nodes(leader=2)
    before = node.services.metadata.image.topics[TOPIC]
    with node.runtime.holding_syncs():
        first = node.spawn(node.services.topics.create("ahead", 1))
        job = asked(node, REQUESTS[name])
        node.runtime.advance(TIMEOUT_MS - 1)
        assert not job.is_done
        node.runtime.advance(1)
        assert {*codes(job.result())} == {E.REQUEST_TIMED_OUT}
    assert first.is_done
    node.runtime.settle()
    assert node.services.metadata.image.topics[TOPIC] == before
    assert not node.services.hosting.exists("one")


def test_what_has_begun_is_timed_out_and_may_be_done_later() -> None:
    node = three_nodes()
    with node.runtime.holding_syncs():
        job = asked(node, creating("one", "two"))
        node.runtime.advance(TIMEOUT_MS)
        one, two = job.result().topics
        assert (one.error_code, two.error_code) == (E.REQUEST_TIMED_OUT, E.REQUEST_TIMED_OUT)
        assert "it may still complete: check the result before you retry" in one.error_message
        assert "nothing was changed" in two.error_message
    node.runtime.settle()
    assert node.services.hosting.exists("one")
    assert not node.services.hosting.exists("two")


def test_what_is_done_in_time_is_answered_as_done() -> None:
    node = three_nodes()
    job = asked(node, creating("one", "two"))
    node.runtime.advance(TIMEOUT_MS - 1)
    assert codes(job.result()) == [E.NONE, E.NONE]


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_request_that_names_no_time_has_the_usual_one(timeout_ms: int) -> None:
    node = three_nodes()
    with node.runtime.holding_syncs():
        job = asked(node, topics.CreateTopicsRequest([topics.CreateTopicsRequestTopic("one", 1, -1)], timeout_ms))
        node.runtime.advance(int(SECONDS_USUAL * 1000) - 1)
        assert not job.is_done
        node.runtime.advance(1)
        assert codes(job.result()) == [E.REQUEST_TIMED_OUT]


def test_topics_that_one_metadata_request_makes_share_a_time_and_are_asked_for_again() -> None:
    node = three_nodes()
    with node.runtime.holding_syncs():
        topics = [c.MetadataRequestTopic(name=name) for name in ("one", "two")]
        job = asked(node, c.MetadataRequest(topics, allow_auto_topic_creation=True))
        node.runtime.advance(MAKING_MS)
        assert codes(job.result()) == [E.LEADER_NOT_AVAILABLE, E.LEADER_NOT_AVAILABLE]


QUOTA = s.AlterClientQuotasRequestEntry(
    [s.QuotaEntity("user", "ann")], [s.AlterClientQuotasRequestOp("producer_byte_rate", 1.0)]
)
UNTIMED = [
    p.UnregisterBrokerRequest(3),
    nodes.DrainNodeRequest(2),
    s.AlterUserScramCredentialsRequest(
        upsertions=[s.AlterUserScramCredentialsRequestUpsertion("ann", 1, 4096, bytes(16), bytes(32))]
    ),
    s.AlterClientQuotasRequest([QUOTA]),
]


@pytest.mark.parametrize("message", UNTIMED, ids=lambda message: type(message).__name__)
def test_what_has_no_field_for_a_time_has_the_usual_one(message: Message) -> None:
    node = three_nodes()
    node.services.metadata.change_exclusively([FenceNode(node=3, incarnation=1)])
    job = asked(node, topics.DeleteTopicsRequest([topics.DeleteTopicsRequestTopic(TOPIC)]))
    node.runtime.settle()
    assert codes(job.result()) == [E.NONE], "node 3 holds nothing but its share of the coordinators' topic"
    with node.runtime.holding_syncs():
        job = asked(node, message)
        node.runtime.advance(int(SECONDS_USUAL * 1000) - 1)
        assert not job.is_done
        node.runtime.advance(1)
        try:
            found = codes(job.result())
        except BrokerError as error:  # the adapter makes an answer of it
            found = [code_of(error)]
        assert {*found} == {E.REQUEST_TIMED_OUT}


@pytest.mark.parametrize(
    ("dialect", "request_"),
    [
        ("flux", flux.CreateTopic(correlation_id="1", topic="one", partitions=1, replication_factor=1)),
        ("mlog", mlog.CreateTopicRequest("one", 0, "")),
        ("flux", flux.ElectTopicLeaders(correlation_id="1", topic=TOPIC)),
        ("flux", flux.FenceBroker(correlation_id="1", broker_id=3)),
        ("cursus", Request(BY_REQUEST[cursus.ElectLeader], cursus.ElectLeader(TOPIC, 0, "3"), Spelling.CLIENTS)),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_administration_in_a_protocol_without_a_time_has_a_bound(dialect: str, request_: object) -> None:
    node = three_nodes(leader=2)
    adapter = make_adapter(dialect, node.services)
    with node.runtime.holding_syncs():
        job = node.spawn(answer_of(adapter.handle, CONVERSATION, request_))
        node.runtime.advance(int(SECONDS_USUAL * 1000))
        with pytest.raises(BrokerError, match="not done within 60 s") as caught:
            job.result()
        assert caught.value.reason is Reason.TIMED_OUT
