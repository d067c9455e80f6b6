"""What needs a node with more in it than one can ask for over the socket: permissions, transactions, followers, broken disks."""

import logging
from typing import Any

import msgspec
import pytest
from tests.adapters.kafka.client import batch_of, fetch_of, produce_of, values_of
from tests.adapters.kafka.largest import WIDE, made
from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.adapters.contract import answer_of
from braidlog.adapters.kafka.errors import CODES, code_of
from braidlog.adapters.kafka.handlers import PARTS_AT_ONCE, Effect, KafkaAdapter
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.model.runtime.cooperative import SLICE
from braidlog.partition.hosted_log import Role
from braidlog.security.authorization import Authorize, NotAuthorizedError, Operation, Rule
from braidlog.security.quota_changes import QuotaChanges
from braidlog.security.quotas import Quotas, Rates
from braidlog.wire.kafka.apis import APIS, BY_KEY, BY_REQUEST, OWN, OWN_CLIENT, Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request, ServerConnection
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.messages import security as s
from braidlog.wire.kafka.messages import transactions as t
from braidlog.wire.kafka.rows import UNASKED


class Talk:
    """A conversation as a handler sees it."""

    def __init__(self, principal: str = "anonymous") -> None:
        self.principal = principal
        self.address = ("here.example", 9092)
        self.peer = "there"
        self.client_id = ""
        self.is_closing = False
        self.connection = ServerConnection()
        self.held_bytes = 0

    def hold(self, more_bytes: int) -> None:
        self.held_bytes += more_bytes

    async def verify_proof(self, holds: Any) -> bool:
        return bool(await holds())

    def close(self) -> None:
        self.is_closing = True


class Door:
    """`door.ask(message)` serves it as if it had come over a socket."""

    def __init__(self, node: Node | None = None, *rules: Rule, tokens: bool = False, **creating: Any) -> None:
        self.node = node or Node()
        authorize = Authorize({"alice": "00" * 32} if tokens else {}, rules)
        self.services = msgspec.structs.replace(self.node.services, authorize=authorize)
        self.adapter = KafkaAdapter(self.services.only(KafkaAdapter.uses), **creating)

    def request(self, message: Any, version: int | None = None) -> Request:
        api = BY_REQUEST[type(message)]
        return Request(api, api.versions.last if version is None else version, 1, "test", message)

    def ask(self, message: Any, version: int | None = None, *, talk: Any = None) -> Any:
        return self.node.run(self.begin(self.request(message, version), talk))

    def begin(self, request: Request, talk: Any = None) -> Any:
        conversation: Any = talk or Talk("alice")
        return answer_of(self.adapter.handle, conversation, request)


def codes(answer: Any) -> list[int]:
    return [partition.error_code for topic in answer.responses for partition in topic.partitions]


def produced(answer: d.ProduceResponse) -> list[int]:
    return [partition.error_code for topic in answer.responses for partition in topic.partition_responses]


# -- tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_row(reason: Reason) -> None:
    assert code_of(BrokerError(reason, "")) is CODES[reason]


def test_faults_are_told_by_number_and_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert code_of(StorageFault("it is broken", "/somewhere")) is E.KAFKA_STORAGE_ERROR
    assert "/somewhere: it is broken" in caplog.text
    assert code_of(ProtocolError("no")) is E.CORRUPT_MESSAGE
    with pytest.raises(AssertionError):
        code_of(AssertionError("we are wrong"))


def test_what_is_told_is_what_has_a_route() -> None:
    door = Door()
    told = {each.api_key for each in door.ask(c.ApiVersionsRequest()).api_keys}
    own = {int(api.key) for api in OWN}
    assert told == {int(key) for key in door.adapter.table} - own
    told_ours = {each.api_key for each in door.ask(c.ApiVersionsRequest(OWN_CLIENT)).api_keys}
    assert told_ours == told | own
    assert {Key.API_VERSIONS, Key.METADATA, Key.PRODUCE, Key.FETCH, Key.LIST_OFFSETS, Key.INIT_PRODUCER_ID} <= told


OPEN = {
    Key.API_VERSIONS,
    Key.SASL_HANDSHAKE,
    Key.SASL_AUTHENTICATE,
    Key.DESCRIBE_CLUSTER,
    Key.LIST_GROUPS,
    Key.LIST_TRANSACTIONS,
}
"""What everyone who has said who it is may ask, and what is asked before. Lists leave out what one may not know of."""


def test_every_row_says_what_it_needs_but_the_open_ones() -> None:
    table = Door().adapter.table
    assert {key for key, row in table.items() if row.operation is None and not row.needs and not row.each} == OPEN


@pytest.mark.parametrize("key", [key for key, row in Door().adapter.table.items() if row.operation is not None])
def test_a_row_is_authorised_before_its_handler_runs(key: Key) -> None:
    """The handler would fail on this message, had it run."""
    door = Door(None, Rule("bob", [Operation.ALL]))
    with refused_with(Reason.NOT_AUTHORIZED):
        door.node.run(door.begin(Request(BY_KEY[key], BY_KEY[key].versions.last, 1, None, object())))


SERVED = [
    pytest.param(api, version, id=f"{api.name}-v{version}")
    for api in (*APIS, *OWN)
    if api.key in Door().adapter.table
    for version in range(api.versions.first, api.versions.last + 1)
]


@pytest.mark.parametrize(("api", "version"), SERVED)
def test_every_route_can_say_that_it_failed(api: Any, version: int) -> None:
    request = Request(api, version, 1, None, api.request())
    answer = Door().adapter.failure(request, BrokerError(Reason.UNAVAILABLE, "not now"))
    assert isinstance(answer, api.response)
    assert ServerConnection().respond(request, answer)


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (produce_of(("t", 3, b"")), lambda a: a.responses[0].partition_responses[0]),
        (fetch_of(("t", 3, 0)), lambda a: a.responses[0].partitions[0]),
        (
            d.ListOffsetsRequest(topics=[d.ListOffsetsRequestTopic("t", [d.ListOffsetsRequestPartition(3)])]),
            lambda a: a.topics[0].partitions[0],
        ),
        (
            d.OffsetForLeaderEpochRequest(
                topics=[d.OffsetForLeaderEpochRequestTopic("t", [d.OffsetForLeaderEpochRequestPartition(3)])]
            ),
            lambda a: a.topics[0].partitions[0],
        ),
        (c.MetadataRequest([c.MetadataRequestTopic(name="t")]), lambda a: a.topics[0]),
        (
            c.DescribeTopicPartitionsRequest([c.DescribeTopicPartitionsRequestTopic("t")]),
            lambda a: a.topics[0],
        ),
        (c.DescribeClusterRequest(), lambda a: a),
        (c.ApiVersionsRequest(), lambda a: a),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_failure_is_said_in_every_place(message: Any, place: Any) -> None:
    door = Door()
    answer = door.adapter.failure(door.request(message), BrokerError(Reason.NOT_LEADER, "no"))
    assert place(answer).error_code == E.NOT_LEADER_OR_FOLLOWER


# -- permissions -------------------------------------------------------------------------------------------------


def allow(topic: str, *operations: Operation) -> Rule:
    return Rule("alice", list(operations), topic)


def test_what_one_may_not_is_refused_for_that_topic_alone() -> None:
    node = Node()
    for name in ("mine", "readable", "theirs"):
        node.create(name)
    door = Door(node, allow("mine", Operation.READ, Operation.WRITE), allow("readable", Operation.READ))
    batch = batch_of(b"x")
    names = ("mine", "readable", "theirs", "absent")
    refused = E.TOPIC_AUTHORIZATION_FAILED
    assert produced(door.ask(produce_of(*[(name, 0, batch) for name in names]), 9)) == [0, refused, refused, refused]
    assert codes(door.ask(fetch_of(*[(name, 0, 0) for name in names]), 12)) == [0, 0, refused, refused]
    listed = door.ask(
        d.ListOffsetsRequest(
            topics=[d.ListOffsetsRequestTopic(name, [d.ListOffsetsRequestPartition(0, timestamp=-1)]) for name in names]
        )
    )
    assert [each.partitions[0].error_code for each in listed.topics] == [0, 0, refused, refused]
    told = door.ask(c.MetadataRequest([c.MetadataRequestTopic(name=name) for name in names]))
    assert [each.error_code for each in told.topics] == [0, 0, refused, refused]
    assert [each.partitions for each in told.topics[2:]] == [[], []]
    assert [each.name for each in door.ask(c.MetadataRequest(None)).topics] == ["mine", "readable"]
    described = door.ask(
        c.DescribeTopicPartitionsRequest([c.DescribeTopicPartitionsRequestTopic(name) for name in names])
    )
    assert {each.name: each.error_code for each in described.topics} == {
        "absent": refused,
        "mine": 0,
        "readable": 0,
        "theirs": refused,
    }


def test_a_topic_by_its_id_does_not_show_its_name_to_who_may_not_see_it() -> None:
    node = Node()
    node.create("theirs")
    identity = bytes.fromhex(node.services.hosting.meta("theirs").topic_id)
    door = Door(node, allow("mine", Operation.READ))
    (told,) = door.ask(c.MetadataRequest([c.MetadataRequestTopic(identity, None)])).topics
    assert (told.error_code, told.name) == (E.TOPIC_AUTHORIZATION_FAILED, None)


def test_a_topic_is_made_only_by_who_may() -> None:
    door = Door(None, allow("m*", Operation.CREATE, Operation.DESCRIBE), allow("seen", Operation.DESCRIBE))
    told = door.ask(c.MetadataRequest([c.MetadataRequestTopic(name=name) for name in ("made", "seen")]))
    assert [each.error_code for each in told.topics] == [0, E.TOPIC_AUTHORIZATION_FAILED]
    assert door.services.hosting.names() == ["made"]


def test_a_request_that_is_refused_at_once_holds_up_none_behind_it() -> None:
    """Whether its handler waits, answers at once, is refused or closes the connection: it has ended, and the next may begin."""
    door = Door(None, allow("*", Operation.DESCRIBE))
    talk = Talk("alice")
    with pytest.raises(NotAuthorizedError):
        door.ask(g.HeartbeatRequest("theirs", 1, "m"), talk=talk)
    assert door.ask(c.ApiVersionsRequest(), talk=talk).api_keys
    assert door.ask(c.MetadataRequest(None), talk=talk).topics == []
    order = door.adapter._orders[talk]  # type: ignore[index]  # as much of a conversation as is needed
    assert order.begin(Effect.CHANGES), "nothing is under way"


def test_topics_are_made_as_the_listener_is_set() -> None:
    asked = c.MetadataRequest([c.MetadataRequestTopic(name="a")])
    assert len(Door(partitions=4).ask(asked).topics[0].partitions) == 4
    assert Door(auto_create=False).ask(asked).topics[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION


def test_permissions_are_told_to_who_asks() -> None:
    node = Node()
    node.create("mine")
    door = Door(node, allow("mine", Operation.READ), allow("*", Operation.DESCRIBE))
    asked = [c.MetadataRequestTopic(name="mine")]
    (told,) = door.ask(c.MetadataRequest(asked)).topics
    assert told.topic_authorized_operations == UNASKED
    (told,) = door.ask(c.MetadataRequest(asked, include_topic_authorized_operations=True)).topics
    assert told.topic_authorized_operations == 1 << 3 | 1 << 8  # READ and DESCRIBE, by Kafka's numbers
    assert door.ask(c.DescribeClusterRequest()).cluster_authorized_operations == UNASKED
    told = door.ask(c.DescribeClusterRequest(include_cluster_authorized_operations=True))
    assert told.cluster_authorized_operations & 1 << 8


def test_a_stranger_hears_versions_and_nothing_else() -> None:
    door = Door(tokens=True)
    stranger = Talk()
    assert door.ask(c.ApiVersionsRequest(), talk=stranger).api_keys
    assert not stranger.is_closing
    assert door.ask(c.MetadataRequest(None), talk=stranger) is None
    assert stranger.is_closing
    assert door.ask(c.MetadataRequest(None), talk=Talk("alice")).brokers


# -- transactions ------------------------------------------------------------------------------------------------


def written(door: Door, topic: str, *, commit: bool | None) -> None:
    """One transaction of two records; None leaves it open."""
    transactions, run = door.node.transactions, door.node.run
    begun = run(transactions.begin_producer("tx"))
    run(transactions.add_partitions("tx", begun.producer_id, begun.epoch, [(topic, 0)]))
    batch = batch_of(b"in", b"it", producer=(begun.producer_id, begun.epoch, 0), transactional=True)
    assert produced(door.ask(produce_of((topic, 0, batch), transactional_id="tx"), 9)) == [0]
    if commit is not None:
        run(transactions.end_transaction("tx", begun.producer_id, begun.epoch, commit=commit))


def abort(door: Door, producer: tuple[int, int], *, commit: bool = False) -> int:
    marker = t.WriteTxnMarkersRequestMarker(*producer, commit, [t.WriteTxnMarkersRequestTopic("t", [0])])
    told = door.ask(t.WriteTxnMarkersRequest([marker]))
    return int(told.markers[0].topics[0].partitions[0].error_code)


def test_what_hangs_in_a_partition_is_aborted_there() -> None:
    """No transaction is known that has it open: it was left by a coordinator that lost it."""
    door = Door()
    door.node.create("t")
    hosted = door.services.hosting.partition("t", 0)
    batch = batch_of(b"hangs", producer=(77, 3, 0), transactional=True)
    hosted.log.append(batch, leader_epoch=hosted.leader_epoch, now_ms=1)
    door.node.append("t", b"after")
    assert hosted.last_stable_offset == 0
    assert abort(door, (77, 3), commit=True) == E.INVALID_TXN_STATE
    assert abort(door, (77, 2)) == E.INVALID_PRODUCER_EPOCH
    assert hosted.last_stable_offset == 0
    assert [abort(door, (77, 3)), abort(door, (77, 3)), abort(door, (5, 0))] == [0, 0, 0]
    assert hosted.last_stable_offset == 3
    aborted = read(door, 1).aborted_transactions
    assert aborted is not None
    assert [each.producer_id for each in aborted] == [77]


def test_an_open_transaction_is_aborted_as_a_whole() -> None:
    door = Door()
    door.node.create("t")
    written(door, "t", commit=None)
    begun = door.node.transactions.find("tx")
    assert abort(door, (begun.producer_id, begun.epoch)) == 0
    assert door.node.transactions.find("tx").state == "aborted"
    assert read(door, 1).last_stable_offset == 3


def test_markers_of_more_than_a_tool_asks_for_are_refused() -> None:
    door = Door()
    door.node.create("t", 101)
    for count, is_refused in ((100, False), (101, True)):
        talk = Talk("alice")
        topics = [t.WriteTxnMarkersRequestTopic("t", list(range(count)))]
        told = door.ask(t.WriteTxnMarkersRequest([t.WriteTxnMarkersRequestMarker(5, 0, False, topics)]), talk=talk)
        codes = {each.error_code for each in told.markers[0].topics[0].partitions}
        assert (E.INVALID_REQUEST in codes, talk.is_closing) == (is_refused, False)


def read(door: Door, isolation_level: int, offset: int = 0) -> d.FetchResponsePartition:
    answer = door.ask(fetch_of(("t", 0, offset), isolation_level=isolation_level), 12)
    found: d.FetchResponsePartition = answer.responses[0].partitions[0]
    return found


def content(partition: d.FetchResponsePartition) -> list[int]:
    records: Any = partition.records
    return [offset for offset, _ in values_of(records if isinstance(records, bytes) else records.read())]


def test_committed_readers_stop_at_what_is_open_and_are_told_what_was_aborted() -> None:
    door = Door()
    door.node.create("t")
    door.ask(produce_of(("t", 0, batch_of(b"before"))), 9)
    written(door, "t", commit=False)
    written(door, "t", commit=True)
    aborted = read(door, 1)
    assert content(aborted) == [0, 1, 2, 3, 4, 5, 6]
    assert aborted.aborted_transactions is not None
    assert [(each.first_offset) for each in aborted.aborted_transactions] == [1]
    assert read(door, 0).aborted_transactions is None
    written(door, "t", commit=None)
    open_one = read(door, 1)
    assert (open_one.last_stable_offset, open_one.high_watermark) == (7, 9)
    assert content(open_one) == [0, 1, 2, 3, 4, 5, 6]
    assert content(read(door, 0)) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert content(read(door, 1, 7)) == []
    for level, offset in ((0, 9), (1, 7)):
        asked = d.ListOffsetsRequestTopic("t", [d.ListOffsetsRequestPartition(0, timestamp=-1)])
        listed = door.ask(d.ListOffsetsRequest(isolation_level=level, topics=[asked]))
        assert listed.topics[0].partitions[0].offset == offset


# -- followers and broken disks ----------------------------------------------------------------------------------


def test_a_partition_that_is_led_elsewhere() -> None:
    door = Door()
    door.node.create("t")
    door.node.run(door.services.placement.set_role("t", 0, Role.FOLLOWER))
    elsewhere = E.NOT_LEADER_OR_FOLLOWER
    assert produced(door.ask(produce_of(("t", 0, batch_of(b"x"))), 9)) == [elsewhere]
    assert codes(door.ask(fetch_of(("t", 0, 0), max_wait_ms=30_000), 12)) == [elsewhere]
    (topic,) = door.ask(c.MetadataRequest([c.MetadataRequestTopic(name="t")])).topics
    assert (topic.error_code, topic.partitions[0].error_code) == (0, E.LEADER_NOT_AVAILABLE)
    assert topic.partitions[0].leader_id == -1


def test_a_partition_that_stopped_says_so_for_itself() -> None:
    door = Door()
    for name in ("good", "bad"):
        door.node.create(name)
    door.services.hosting.partition("bad", 0).log.stop(StorageFault("the disk is gone"))
    answer = door.ask(produce_of(("bad", 0, batch_of(b"x")), ("good", 0, batch_of(b"x"))), 9)
    assert produced(answer) == [E.KAFKA_STORAGE_ERROR, 0]
    told = answer.responses[0].partition_responses[0]
    assert told.error_message
    assert "/" not in told.error_message


def test_a_batch_that_rots_on_the_disk_of_a_running_node_is_not_sent() -> None:
    door = Door()
    door.node.create("t")
    door.node.append("t", b"whole")
    door.node.append("t", b"rotten")
    log = door.services.hosting.partition("t", 0).log
    log.roll(0)
    assert codes(door.ask(fetch_of(("t", 0, 0)), 12)) == [0]
    segment = log.segments[0]
    door.node.disk.flip_bit(segment.path, (segment.size - 2) * 8)
    log.forget_checks()
    answer = door.ask(fetch_of(("t", 0, 0)), 12)
    assert codes(answer) == [0]
    assert values_of(answer.responses[0].partitions[0].records.read()) == [(0, b"whole")]
    answer = door.ask(fetch_of(("t", 0, 1)), 12)
    assert codes(answer) == [E.KAFKA_STORAGE_ERROR]
    assert not answer.responses[0].partitions[0].records


@pytest.mark.parametrize(
    ("version", "who"),
    [(12, {"replica_id": 1}), (12, {"replica_id": 0}), (16, {"replica_state": d.FetchRequestReplicaState(2, 7)})],
)
def test_nobody_fetches_as_a_replica_here(version: int, who: dict[str, Any]) -> None:
    door = Door()
    door.node.create("t")
    door.node.append("t", b"x")
    topic_ids = {"t": bytes.fromhex(door.services.hosting.meta("t").topic_id)} if version > 12 else None
    answer = door.ask(fetch_of(("t", 0, 0), topic_ids=topic_ids, max_wait_ms=60_000, **who), version)
    assert (answer.error_code, codes(answer)) == (0, [E.TOPIC_AUTHORIZATION_FAILED])


def test_a_debugging_consumer_is_none() -> None:
    door = Door()
    door.node.create("t")
    assert codes(door.ask(fetch_of(("t", 0, 0), replica_id=-2), 12)) == [E.NONE]


def test_a_fetch_ends_when_its_topic_does_and_does_not_take_a_new_one_for_it() -> None:
    door = Door()
    door.node.create("t")
    identity = bytes.fromhex(door.services.hosting.meta("t").topic_id)
    request = door.request(fetch_of(("t", 0, 0), topic_ids={"t": identity}, max_wait_ms=30_000), 18)
    job = door.node.spawn(door.begin(request))
    door.node.run(door.services.topics.delete("t"))
    door.node.create("t")
    door.node.runtime.advance(1)
    assert codes(job.result()) == [E.UNKNOWN_TOPIC_ID]
    assert codes(door.ask(fetch_of(("t", 0, 0)), 12)) == [0]


def test_the_versions_of_the_table_are_all_served() -> None:
    adapter = Door().adapter
    assert adapter.table.keys() == adapter.served.keys()
    assert all(versions == BY_KEY[key].versions for key, versions in adapter.served.items())


# -- quotas ------------------------------------------------------------------------------------------------------


def quota_door() -> Door:
    door = Door()
    quotas = Quotas(Rates(fetch_bytes_per_second=10), {"alice": Rates(5, 6, 7.5)})
    changes = QuotaChanges(door.services.metadata, quotas)
    door.adapter._services = msgspec.structs.replace(door.services, quota_changes=changes).only(KafkaAdapter.uses)
    return door


Named = str | None | tuple[str | None, ...]


def quotas_of(door: Door, *wanted: tuple[str, int, str | None], strict: bool = False) -> dict[Named, dict[str, float]]:
    """By the name of the entity, or by all its names."""
    components = [s.DescribeClientQuotasRequestComponent(*each) for each in wanted]
    found: dict[Named, dict[str, float]] = {}
    for each in door.ask(s.DescribeClientQuotasRequest(components, strict)).entries:
        names = tuple(part.entity_name for part in each.entity)
        found[names if len(names) > 1 else names[0]] = {value.key: value.value for value in each.values}
    return found


def quota_of(name: str | None, kind: str = "user", **rates: float | None) -> s.AlterClientQuotasRequestEntry:
    ops = [s.AlterClientQuotasRequestOp(key, value or 0.0, value is None) for key, value in rates.items()]
    return s.AlterClientQuotasRequestEntry([s.QuotaEntity(kind, name)], ops)


def both(first: str, second: str) -> s.AlterClientQuotasRequestEntry:
    op = s.AlterClientQuotasRequestOp("producer_byte_rate", 8.0)
    return s.AlterClientQuotasRequestEntry([s.QuotaEntity(first, "ann"), s.QuotaEntity(second, "app")], [op])


ALICE = {"producer_byte_rate": 5.0, "consumer_byte_rate": 6.0, "request_percentage": 7.5}


def test_quotas_are_shown_as_those_of_users() -> None:
    door = quota_door()
    default = {"consumer_byte_rate": 10.0}
    assert quotas_of(door) == quotas_of(door, ("user", 2, None)) == {None: default, "alice": ALICE}
    assert quotas_of(door, ("user", 0, "alice")) == {"alice": ALICE}
    assert quotas_of(door, ("user", 1, None)) == {None: default}
    assert quotas_of(door, ("client-id", 2, None)) == quotas_of(door, ("user", 0, "bob")) == {}


def test_quotas_of_client_ids_and_addresses_are_set_and_found() -> None:
    door = quota_door()
    wanted = [
        quota_of("app", "client-id", producer_byte_rate=7),
        quota_of(None, "client-id", consumer_byte_rate=6),
        quota_of("10.0.0.1", "ip", connection_creation_rate=5),
        quota_of(None, "ip", connection_creation_rate=4),
        both("user", "client-id"),
    ]
    wanted[-1].entity.reverse()
    told = door.ask(s.AlterClientQuotasRequest(wanted)).entries
    assert [each.error_code for each in told] == [0] * 5
    app, both_rates = {"producer_byte_rate": 7.0}, {"producer_byte_rate": 8.0}
    pair: tuple[str | None, ...] = ("ann", "app")
    assert quotas_of(door, ("client-id", 0, "app"), strict=True) == {"app": app}
    assert quotas_of(door, ("client-id", 1, None), strict=True) == {None: {"consumer_byte_rate": 6.0}}
    assert quotas_of(door, ("client-id", 0, "app")) == {"app": app, pair: both_rates}
    assert quotas_of(door, ("user", 0, "ann"), ("client-id", 2, None)) == {pair: both_rates}
    ips = {"10.0.0.1": {"connection_creation_rate": 5.0}, None: {"connection_creation_rate": 4.0}}
    assert quotas_of(door, ("ip", 2, None)) == ips
    assert len(quotas_of(door)) >= 5
    gone = quota_of("10.0.0.1", "ip", connection_creation_rate=None)
    assert [each.error_code for each in door.ask(s.AlterClientQuotasRequest([gone])).entries] == [0]
    assert set(quotas_of(door, ("ip", 2, None))) == {None}


@pytest.mark.parametrize("kinds", [["topic"], ["user", "user"], ["ip", "user"]])
def test_a_filter_that_makes_no_sense_is_refused(kinds: list[str]) -> None:
    components = [s.DescribeClientQuotasRequestComponent(kind, 2, None) for kind in kinds]
    with pytest.raises(BrokerError, match="each at most once") as caught:
        quota_door().ask(s.DescribeClientQuotasRequest(components))
    assert code_of(caught.value) is E.INVALID_REQUEST


def test_a_client_is_known_by_the_id_that_it_gave_itself() -> None:
    talk = Talk("alice")
    Door().ask(s.DescribeClientQuotasRequest(), talk=talk)
    assert talk.client_id == "test"


def test_quotas_are_set_and_removed_rate_by_rate() -> None:
    door = quota_door()
    wanted = [quota_of("alice", producer_byte_rate=50, request_percentage=20), quota_of("bob", consumer_byte_rate=9)]
    told = door.ask(s.AlterClientQuotasRequest([*wanted, quota_of(None, producer_byte_rate=3)])).entries
    assert [each.error_code for each in told] == [0, 0, 0]
    assert [each.entity[0].entity_name for each in told] == ["alice", "bob", None]
    assert quotas_of(door) == {
        None: {"producer_byte_rate": 3.0, "consumer_byte_rate": 10.0},
        "alice": {**ALICE, "producer_byte_rate": 50.0, "request_percentage": 20.0},
        "bob": {"consumer_byte_rate": 9.0},
    }
    gone = [
        quota_of("alice", producer_byte_rate=None, request_percentage=None),
        quota_of("bob", consumer_byte_rate=None),
    ]
    door.ask(s.AlterClientQuotasRequest([*gone, quota_of(None, producer_byte_rate=None, consumer_byte_rate=None)]))
    assert quotas_of(door) == {None: {"consumer_byte_rate": 10.0}, "alice": ALICE}, "as the configuration has them"


@pytest.mark.parametrize(
    ("wanted", "code", "text"),
    [
        (quota_of("app", "client", producer_byte_rate=5), E.INVALID_REQUEST, "a user and a client id"),
        (quota_of("app", "client-id", connection_creation_rate=5), E.INVALID_CONFIG, "addresses have a rate of"),
        (quota_of("10.0.0.1", "ip", producer_byte_rate=5), E.INVALID_CONFIG, "addresses have a rate of"),
        (quota_of("example.com", "ip", connection_creation_rate=5), E.INVALID_CONFIG, "no address"),
        (both("user", "user"), E.INVALID_REQUEST, "each at most once"),
        (both("user", "ip"), E.INVALID_REQUEST, "each at most once"),
        (quota_of("bob", controller_mutation_rate=5), E.INVALID_REQUEST, "controller_mutation_rate"),
        (quota_of("bob", producer_byte_rate=0), E.INVALID_CONFIG, "more than 0"),
        (quota_of("bob", producer_byte_rate=-1), E.INVALID_CONFIG, "more than 0"),
        (quota_of("bob", producer_byte_rate=1.5), E.INVALID_CONFIG, "whole number"),
        (quota_of("bob", producer_byte_rate=float("nan")), E.INVALID_CONFIG, "whole number"),
        (quota_of("bob", consumer_byte_rate=float("inf")), E.INVALID_CONFIG, "whole number"),
        (quota_of("bob", consumer_byte_rate=1e19), E.INVALID_CONFIG, "whole number"),
        (quota_of("bob", request_percentage=float("nan")), E.INVALID_CONFIG, "percent"),
        (quota_of("bob", request_percentage=200), E.INVALID_CONFIG, "percent"),
        (quota_of("", producer_byte_rate=5), E.INVALID_REQUEST, "name cannot be empty"),
        (quota_of("", "client-id", producer_byte_rate=5), E.INVALID_REQUEST, "name cannot be empty"),
        (quota_of("b" * 250, producer_byte_rate=5), E.INVALID_CONFIG, "printable"),
        (quota_of("alice", producer_byte_rate=6), E.INVALID_REQUEST, "once"),
        (s.AlterClientQuotasRequestEntry([], []), E.INVALID_REQUEST, "must be a user"),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused_and_others_are_set(
    wanted: s.AlterClientQuotasRequestEntry, code: E, text: str
) -> None:
    door = quota_door()
    first, second = door.ask(s.AlterClientQuotasRequest([quota_of("alice", producer_byte_rate=50), wanted])).entries
    assert (first.error_code, second.error_code) == (0, code)
    assert text in second.error_message
    assert quotas_of(door)["alice"] == {**ALICE, "producer_byte_rate": 50.0}
    assert set(quotas_of(door)) == {None, "alice"}


def test_quotas_that_are_only_looked_at_are_not_set() -> None:
    door = quota_door()
    wanted = [quota_of("bob", producer_byte_rate=5), quota_of("bob", consumer_byte_rate=-5)]
    told = door.ask(s.AlterClientQuotasRequest(wanted, validate_only=True)).entries
    assert [each.error_code for each in told] == [0, E.INVALID_CONFIG]
    assert set(quotas_of(door)) == {None, "alice"}


# -- requests about many things ------------------------------------------------------------------------------------


def test_a_large_request_lets_others_go_first() -> None:
    door = Door()
    door.node.create("a", 1)
    asked = [d.ListOffsetsRequestPartition(number) for number in range(1001)]
    many = d.ListOffsetsRequest(topics=[d.ListOffsetsRequestTopic("a", asked)])
    few = d.ListOffsetsRequest(topics=[d.ListOffsetsRequestTopic("a", [d.ListOffsetsRequestPartition(0)])])
    large = door.node.runtime.spawn(door.begin(msgspec.structs.replace(door.request(many), parts=1002)))
    small = door.node.runtime.spawn(door.begin(door.request(few), Talk("bob")))
    assert small.is_done
    assert not large.is_done
    door.node.runtime.settle()
    assert len(large.result().topics[0].partitions) == 1001


IN_SLICES = [
    (Key.PRODUCE, ("topic_data", "partition_data")),
    (Key.FETCH, ("topics", "partitions")),
    (Key.FETCH, ("topics",)),
    (Key.LIST_OFFSETS, ("topics", "partitions")),
    (Key.OFFSET_FOR_LEADER_EPOCH, ("topics", "partitions")),
    (Key.METADATA, ("topics",)),
    (Key.OFFSET_COMMIT, ("topics", "partitions")),
    (Key.TXN_OFFSET_COMMIT, ("topics", "partitions")),
    (Key.DESCRIBE_PRODUCERS, ("topics", "partition_indexes")),
    (Key.CREATE_TOPICS, ("topics",)),
    (Key.CREATE_PARTITIONS, ("topics",)),
    (Key.DELETE_TOPICS, ("topics",)),
    (Key.DELETE_RECORDS, ("topics", "partitions")),
    (Key.ALTER_CONFIGS, ("resources",)),
    (Key.INCREMENTAL_ALTER_CONFIGS, ("resources",)),
]


@pytest.mark.parametrize(
    ("key", "path"), IN_SLICES, ids=lambda value: value.name if isinstance(value, Key) else value[-1]
)
def test_what_takes_long_for_each_entry_is_done_in_slices(key: Key, path: tuple[str, ...]) -> None:
    """Beside a turn for reading it and one for writing its answer."""
    door = Door(auto_create=False)
    door.node.create(WIDE, 300)
    count = PARTS_AT_ONCE + 1
    request = msgspec.structs.replace(door.request(made(key, path, count)), parts=count)
    job = door.node.runtime.spawn(door.begin(request))
    turns = 0
    while not job.is_done:
        door.node.runtime._step(door.node.runtime._ready.popleft())
        turns += 1
    job.result()
    assert turns >= 2 + count // SLICE


def test_batches_stay_in_the_order_of_their_connection_behind_a_large_request() -> None:
    """It is appended in slices, with turns of the loop in between: what was sent after it is appended after it."""
    door, talk = Door(), Talk("alice")
    door.node.create("a", 1)
    count = 1001
    first = d.ProduceRequest(
        acks=1,
        topic_data=[
            d.ProduceRequestTopic("a", partition_data=[d.ProduceRequestPartition(0, batch_of(b"first"))] * count)
        ],
    )
    job = door.node.runtime.spawn(door.begin(msgspec.structs.replace(door.request(first), parts=count + 1), talk))
    behind = door.node.runtime.spawn(door.begin(door.request(produce_of(("a", 0, batch_of(b"second")))), talk))
    assert not job.is_done
    assert not behind.is_done
    door.node.runtime.settle()
    offsets = [each.base_offset for each in job.result().responses[0].partition_responses]
    assert offsets == list(range(count))
    assert behind.result().responses[0].partition_responses[0].base_offset == count
