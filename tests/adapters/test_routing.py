"""What a row says is what its request needs: no route of any dialect uses a group, a transactional id or a key without a rule."""

from collections.abc import Iterator
from enum import Enum
from functools import cache
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from tests.broker.node import Node, batch_of

from braidlog.adapters.contract import answer_of
from braidlog.adapters.routing import Denied, Route
from braidlog.broker.access.authorize import ANONYMOUS, Authorize, Kind, NotAuthorizedError, Operation, Rule
from braidlog.coordinator.offsets import Commit
from braidlog.model.errors import BrokerError, Reason
from braidlog.server.doors import make_adapter
from braidlog.wire.cursus import requests as cursus
from braidlog.wire.dialect import dialects
from braidlog.wire.kafka.apis import BY_KEY
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.messages import transactions as t
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
            if message_type.__name__ in ("Batch", "Unserved"):
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
    "mayfly": {"Auth", "Ping", "Quit", "Unserved"},
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
    assert doors.node.offsets.of_group("alices"), "and it is still there"
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
