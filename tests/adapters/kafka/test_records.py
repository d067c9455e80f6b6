"""Produce, Fetch and ListOffsets over a real socket: every codec, every version, every way to fail."""

import struct
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.adapters.kafka.client import TIME_MS, Client, batch_of, fetch_of, produce_of, values_of

from braidlog.codec.batch.header import seal
from braidlog.codec.compression import Compression
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.apis import BY_KEY, Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import topics as m
from braidlog.wire.kafka.messages import transactions as t

PRODUCE_VERSIONS = range(BY_KEY[Key.PRODUCE].versions.first, BY_KEY[Key.PRODUCE].versions.last + 1)
FETCH_VERSIONS = range(BY_KEY[Key.FETCH].versions.first, BY_KEY[Key.FETCH].versions.last + 1)
LIST_VERSIONS = range(BY_KEY[Key.LIST_OFFSETS].versions.first, BY_KEY[Key.LIST_OFFSETS].versions.last + 1)


@pytest.fixture
def client(braid_server_shared: ServerProcess) -> Iterator[Client]:
    with Client(braid_server_shared) as connected:
        yield connected


@pytest.fixture
def topic(client: Client) -> str:
    name = f"t-{uuid.uuid4().hex}"
    client.topic_id(name)
    return name


# -- the happy way -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_comes_back_as_it_went(client: Client, topic: str, compression: Compression) -> None:
    sent = batch_of(b"one", b"two", b"three", compression=compression)
    first = client.produce(topic, sent)
    assert (first.error_code, first.base_offset, first.log_start_offset) == (0, 0, 0)
    assert client.produce(topic, sent).base_offset == 3
    found = client.fetch(topic)
    assert (found.error_code, found.high_watermark, found.last_stable_offset, found.log_start_offset) == (0, 6, 6, 0)
    assert isinstance(found.records, memoryview)
    records = bytes(found.records)
    assert len(records) == 2 * len(sent)
    # Only the base offset (0 to 7) and the leader's epoch (12 to 15) are the log's own.
    for number, at in enumerate((0, len(sent))):
        back = records[at : at + len(sent)]
        assert struct.unpack_from(">q", back)[0] == 3 * number
        assert back[8:12] + back[16:] == sent[8:12] + sent[16:]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
@pytest.mark.parametrize("size", [10, 2_000_000])
def test_a_compacted_topic_takes_no_record_without_a_key(client: Client, compression: Compression, size: int) -> None:
    """Small ones are looked into on the loop, large ones by the worker."""
    name = f"compacted-{uuid.uuid4().hex}"
    settings = [m.ConfigValue("cleanup.policy", "compact")]
    told = client.ask(m.CreateTopicsRequest([m.CreateTopicsRequestTopic(name, 1, 1, configs=settings)]))
    assert told.topics[0].error_code == 0
    value = b"v" * size
    refused = client.produce(name, batch_of(value, value, keys=[b"k", None], compression=compression))
    assert refused.error_code == E.INVALID_RECORD
    assert "needs a key for each record" in (refused.error_message or "")
    assert client.produce(name, batch_of(value, value, keys=[b"k", b""], compression=compression)).error_code == 0


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_in_every_version(client: Client, topic: str, version: int) -> None:
    ids = {topic: client.topic_id(topic)} if version >= 13 else None
    answer = client.ask(produce_of((topic, 0, batch_of(b"x")), topic_ids=ids), version)
    (told,) = answer.responses
    assert (told.name, told.topic_id) == (("", ids[topic]) if ids else (topic, bytes(16)))
    (partition,) = told.partition_responses
    assert (partition.error_code, partition.base_offset) == (0, 0)
    assert client.values(topic) == [b"x"]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_in_every_version(client: Client, topic: str, version: int) -> None:
    ids = {topic: client.topic_id(topic)} if version >= 13 else None
    client.produce(topic, batch_of(b"a", b"b"))
    answer = client.ask(fetch_of((topic, 0, 0), topic_ids=ids), version)
    (told,) = answer.responses
    assert (told.topic, told.topic_id) == (("", ids[topic]) if ids else (topic, bytes(16)))
    assert answer.session_id == 0
    assert values_of(told.partitions[0].records) == [(0, b"a"), (1, b"b")]


@pytest.mark.parametrize("version", LIST_VERSIONS)
def test_list_offsets_in_every_version(client: Client, topic: str, version: int) -> None:
    client.produce(topic, batch_of(b"a", b"b", timestamps=[TIME_MS, TIME_MS + 10]))
    earliest = client.list_offset(topic, -2, version=version)
    latest = client.list_offset(topic, -1, version=version)
    by_time = client.list_offset(topic, TIME_MS + 1, version=version)
    assert [(each.error_code, each.offset, each.timestamp) for each in (earliest, latest, by_time)] == [
        (0, 0, -1),
        (0, 2, -1),
        (0, 1, TIME_MS + 10),
    ]
    assert by_time.leader_epoch == (-1 if version < 4 else 1)


@pytest.mark.parametrize("acks", [1, -1])
def test_acks(client: Client, topic: str, acks: int) -> None:
    assert client.produce(topic, batch_of(b"x"), acks=acks).base_offset == 0
    assert client.values(topic) == [b"x"]


def test_acks_0_has_no_answer(client: Client, topic: str) -> None:
    client.send(produce_of((topic, 0, batch_of(b"unanswered")), acks=0), version=9)
    assert client.produce(topic, batch_of(b"answered")).base_offset == 1
    assert client.values(topic) == [b"unanswered", b"answered"]


def test_many_partitions_in_one_request(client: Client, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(20)]
    for name in names:
        client.topic_id(name)
    answer = client.ask(produce_of(*[(name, 0, batch_of(name.encode())) for name in names]), 9)
    assert [each.partition_responses[0].error_code for each in answer.responses] == [0] * 20
    found = client.ask(fetch_of(*[(name, 0, 0) for name in names]), 12)
    assert [values_of(each.partitions[0].records) for each in found.responses] == [[(0, n.encode())] for n in names]


def test_an_empty_partition_has_empty_records_and_not_null_ones(client: Client, topic: str) -> None:
    for version in (11, 12):
        found = client.fetch(topic, version=version)
        assert isinstance(found.records, memoryview)
        assert len(found.records) == 0


# -- fetching ----------------------------------------------------------------------------------------------------


def test_an_offset_within_a_batch_gives_the_whole_batch(client: Client, topic: str) -> None:
    client.produce(topic, batch_of(*[b"%d" % number for number in range(10)]))
    assert values_of(client.fetch(topic, 7).records)[0] == (0, b"0")
    assert client.values(topic, 7) == [b"7", b"8", b"9"]


def test_the_first_batch_comes_however_large_it_is_and_the_next_only_if_it_fits(client: Client, topic: str) -> None:
    other = f"{topic}-other"
    client.topic_id(other)
    for name in (topic, topic, other):
        client.produce(name, batch_of(b"x" * 5000))
    answer = client.ask(fetch_of((topic, 0, 0), (other, 0, 0), partition_max_bytes=100), 12)
    assert [len(values_of(each.partitions[0].records)) for each in answer.responses] == [1, 0]
    answer = client.ask(fetch_of((topic, 0, 2), (other, 0, 0), max_bytes=1), 12)
    assert [len(values_of(each.partitions[0].records)) for each in answer.responses] == [0, 1]
    answer = client.ask(fetch_of((topic, 0, 0), (other, 0, 0), partition_max_bytes=11_000), 12)
    assert [len(values_of(each.partitions[0].records)) for each in answer.responses] == [2, 1]


def test_a_large_answer_is_whole(client: Client, topic: str) -> None:
    values = [bytes([number]) * 900_000 for number in range(5)]
    for value in values:
        client.produce(topic, batch_of(value))
    assert client.values(topic, max_bytes=1 << 26, partition_max_bytes=1 << 26) == values


@pytest.mark.parametrize("offset", [5, -1, 2**62])
def test_an_offset_that_is_not_there(client: Client, topic: str, offset: int) -> None:
    client.produce(topic, batch_of(b"x"))
    found = client.fetch(topic, offset, max_wait_ms=30_000)
    assert (found.error_code, found.high_watermark, found.last_stable_offset) == (E.OFFSET_OUT_OF_RANGE, -1, -1)


def test_one_bad_partition_does_not_spoil_the_others(client: Client, topic: str) -> None:
    client.produce(topic, batch_of(b"x"))
    client.topic_id(f"{topic}-short")
    answer = client.ask(
        fetch_of((topic, 0, 0), (topic, 7, 0), ("absent", 0, 0), (f"{topic}-short", 0, 99), max_wait_ms=30_000), 12
    )
    partitions = [each.partitions[0] for each in answer.responses]
    assert [each.error_code for each in partitions] == [
        0,
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.OFFSET_OUT_OF_RANGE,
    ]
    assert values_of(partitions[0].records) == [(0, b"x")]


def test_a_topic_id_that_nobody_has(client: Client, topic: str) -> None:
    unknown = uuid.uuid4().bytes
    answer = client.ask(fetch_of((topic, 0, 0), topic_ids={topic: unknown}, max_wait_ms=30_000), 18)
    assert answer.responses[0].topic_id == unknown
    assert answer.responses[0].partitions[0].error_code == E.UNKNOWN_TOPIC_ID
    told = client.ask(produce_of((topic, 0, batch_of(b"x")), topic_ids={topic: unknown}), 13)
    assert told.responses[0].partition_responses[0].error_code == E.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("session_id", [-1, 0, 77])
def test_an_epoch_of_minus_one_is_a_full_fetch_whatever_the_session(
    client: Client, topic: str, session_id: int
) -> None:
    client.produce(topic, batch_of(b"x"))
    answer = client.ask(fetch_of((topic, 0, 0), session_id=session_id, session_epoch=-1), 11)
    assert (answer.error_code, answer.session_id) == (0, 0)
    assert values_of(answer.responses[0].partitions[0].records) == [(0, b"x")]


def test_a_leader_epoch_that_is_not_ours(client: Client, topic: str) -> None:
    client.produce(topic, batch_of(b"x"))
    assert client.fetch(topic, current_leader_epoch=1).error_code == 0
    assert client.fetch(topic, current_leader_epoch=0).error_code == E.FENCED_LEADER_EPOCH
    assert client.fetch(topic, current_leader_epoch=2).error_code == E.NOT_LEADER_OR_FOLLOWER


def test_a_long_poll_ends_when_something_comes(client: Client, braid_server_shared: ServerProcess, topic: str) -> None:
    client.send(fetch_of((topic, 0, 0), max_wait_ms=30_000), version=12)
    with Client(braid_server_shared) as producer:
        producer.produce(topic, batch_of(b"at last"))
    assert values_of(client.receive().responses[0].partitions[0].records) == [(0, b"at last")]


def test_a_long_poll_waits_for_so_many_bytes(client: Client, braid_server_shared: ServerProcess, topic: str) -> None:
    client.send(fetch_of((topic, 0, 0), max_wait_ms=30_000, min_bytes=250), version=12)
    with Client(braid_server_shared) as producer:
        for number in range(5):
            producer.produce(topic, batch_of(b"%d" % number))
    found = values_of(client.receive().responses[0].partitions[0].records)
    assert 3 <= len(found) <= 5


def test_a_fetch_of_nothing_does_not_wait(client: Client) -> None:
    assert client.ask(fetch_of(max_wait_ms=300_000), 12).responses == []


def test_a_long_poll_ends_with_nothing_in_time(client: Client, topic: str) -> None:
    assert values_of(client.fetch(topic, max_wait_ms=50).records) == []


# -- producing ---------------------------------------------------------------------------------------------------


def corrupt(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def patched(batch: bytes, at: int, content: bytes) -> bytes:
    return seal(bytearray(batch[:at] + content + batch[at + len(content) :]))


BAD: dict[str, tuple[bytes | None, E]] = {
    "null": (None, E.INVALID_RECORD),
    "empty": (b"", E.INVALID_RECORD),
    "half a header": (batch_of(b"x")[:40], E.CORRUPT_MESSAGE),
    "cut short": (batch_of(b"x" * 100)[:-10], E.CORRUPT_MESSAGE),
    "a wrong checksum": (corrupt(batch_of(b"x")), E.CORRUPT_MESSAGE),
    "two batches": (batch_of(b"x") + batch_of(b"y"), E.INVALID_RECORD),
    "an old format": (batch_of(b"x")[:16] + b"\1" + batch_of(b"x")[17:], E.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "more records than there are": (patched(batch_of(b"x"), 57, struct.pack(">i", 5)), E.CORRUPT_MESSAGE),
    "more offsets than records": (patched(batch_of(b"x"), 23, struct.pack(">i", 5)), E.INVALID_RECORD),
    "records that are none": (patched(batch_of(b"x"), 61, b"\xff\xff\xff"), E.INVALID_RECORD),
    "a compression that is none": (patched(batch_of(b"x"), 21, b"\0\7"), E.UNSUPPORTED_COMPRESSION_TYPE),
    "no gzip": (patched(batch_of(b"x"), 21, b"\0\1"), E.INVALID_RECORD),
    "a control batch": (patched(batch_of(b"x"), 21, b"\0\x20"), E.INVALID_RECORD),
    "a transaction of nobody": (patched(batch_of(b"x"), 21, b"\0\x10"), E.INVALID_TXN_STATE),
    "17 MiB": (batch_of(b"x" * (17 << 20)), E.MESSAGE_TOO_LARGE),
}


@pytest.mark.parametrize(("records", "code"), BAD.values(), ids=BAD)
def test_a_batch_that_is_not_taken(client: Client, topic: str, records: bytes | None, code: E) -> None:
    told = client.produce(topic, records, version=9)
    assert (E(told.error_code), told.base_offset) == (code, -1)
    assert told.error_message
    assert client.values(topic) == []
    assert client.produce(topic, batch_of(b"next")).base_offset == 0


def test_zstd_needs_version_7(client: Client, topic: str) -> None:
    batch = batch_of(b"x", compression=Compression.ZSTD)
    assert client.produce(topic, batch, version=6).error_code == E.UNSUPPORTED_COMPRESSION_TYPE
    assert client.produce(topic, batch, version=7).error_code == 0


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_acks_that_are_none(client: Client, topic: str, acks: int) -> None:
    assert client.produce(topic, batch_of(b"x"), acks=acks).error_code == E.INVALID_REQUIRED_ACKS
    assert client.values(topic) == []


def test_a_partition_that_is_not_there(client: Client, topic: str) -> None:
    answer = client.ask(
        produce_of((topic, 1, batch_of(b"x")), (topic, 0, batch_of(b"y")), ("absent", 0, batch_of(b"z"))), 9
    )
    codes = [each.partition_responses[0].error_code for each in answer.responses]
    assert codes == [E.UNKNOWN_TOPIC_OR_PARTITION, 0, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert client.values(topic) == [b"y"]


def test_a_failure_without_acks_ends_the_connection(client: Client, topic: str) -> None:
    client.send(produce_of(("absent", 0, batch_of(b"x")), acks=0), version=9)
    assert client.is_closed()


# -- idempotent producers ------------------------------------------------------------------------------------------


def producer_id(client: Client, **more: Any) -> int:
    answer = client.ask(t.InitProducerIdRequest(transactional_id=None, **more))
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    found: int = answer.producer_id
    return found


def test_every_producer_has_an_id_of_its_own(client: Client) -> None:
    ids = [producer_id(client) for _ in range(10)]
    ids.append(producer_id(client, producer_id=ids[-1], producer_epoch=0))
    assert len(set(ids)) == 11


def test_a_retry_has_the_offset_it_had(client: Client, topic: str) -> None:
    who = producer_id(client)
    batches = [batch_of(b"%d" % number, b"+", producer=(who, 0, 2 * number)) for number in range(6)]
    assert [client.produce(topic, each).base_offset for each in batches] == [0, 2, 4, 6, 8, 10]
    assert [client.produce(topic, each).base_offset for each in batches[1:]] == [2, 4, 6, 8, 10]
    assert client.produce(topic, batches[0]).error_code == E.OUT_OF_ORDER_SEQUENCE_NUMBER  # five are remembered
    assert client.fetch(topic).high_watermark == 12


def test_a_gap_and_an_old_epoch_are_refused(client: Client, topic: str) -> None:
    who = producer_id(client)
    client.produce(topic, batch_of(b"x", producer=(who, 1, 0)))
    told = client.produce(topic, batch_of(b"x", producer=(who, 1, 2)))
    assert (told.error_code, told.base_offset) == (E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert client.produce(topic, batch_of(b"x", producer=(who, 0, 1))).error_code == E.INVALID_PRODUCER_EPOCH
    assert client.produce(topic, batch_of(b"x", producer=(who, 1, 1))).base_offset == 1


def test_a_transaction_that_was_not_begun_writes_nothing(client: Client, topic: str) -> None:
    who = producer_id(client)
    told = client.produce(topic, batch_of(b"x", producer=(who, 0, 0), transactional=True))
    assert told.error_code != 0
    assert client.values(topic) == []


# -- listing -----------------------------------------------------------------------------------------------------


def test_a_time_gives_the_record_and_not_its_batch(client: Client, topic: str) -> None:
    times = [TIME_MS + number for number in (5, 1, 9, 3)]
    client.produce(topic, batch_of(b"a", b"b", b"c", b"d", timestamps=times))
    client.produce(topic, batch_of(b"e", timestamps=[TIME_MS + 20]))
    found = {after: client.list_offset(topic, TIME_MS + after) for after in (0, 6, 9, 10, 21)}
    assert {after: (each.offset, each.timestamp - TIME_MS) for after, each in found.items() if each.offset >= 0} == {
        0: (0, 5),
        6: (2, 9),
        9: (2, 9),
        10: (4, 20),
    }
    assert (found[21].error_code, found[21].offset, found[21].timestamp) == (0, -1, -1)


def test_the_largest_time_of_all(client: Client, topic: str) -> None:
    assert client.list_offset(topic, -3).offset == -1
    client.produce(topic, batch_of(b"a", b"b", b"c", timestamps=[TIME_MS, TIME_MS + 9, TIME_MS + 9]))
    client.produce(topic, batch_of(b"d", timestamps=[TIME_MS + 1]))
    newest = client.list_offset(topic, -3)
    assert (newest.offset, newest.timestamp) == (1, TIME_MS + 9)
    assert client.list_offset(topic, -4).offset == 0
    for tiered in (-5, -6):  # nothing is kept elsewhere, as in Kafka without remote storage
        found = client.list_offset(topic, tiered)
        assert (found.error_code, found.offset, found.timestamp, found.leader_epoch) == (0, -1, -1, -1)


def test_what_a_version_cannot_ask_for(client: Client, topic: str) -> None:
    assert client.list_offset(topic, -3, version=6).error_code == E.UNSUPPORTED_VERSION
    assert client.list_offset(topic, -6, version=10).error_code == E.UNSUPPORTED_VERSION
    assert client.list_offset(topic, -7).error_code == E.UNSUPPORTED_VERSION
    assert client.list_offset(topic, -1, partition=3).error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert client.list_offset("absent", -1).error_code == E.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [2, 3, 4])
def test_where_an_epoch_ended(client: Client, topic: str, version: int) -> None:
    client.produce(topic, batch_of(b"a", b"b"))

    def ended(epoch: int, current: int = -1, name: str = topic) -> d.OffsetForLeaderEpochResponsePartition:
        asked = d.OffsetForLeaderEpochRequestPartition(0, current, epoch)
        request = d.OffsetForLeaderEpochRequest(topics=[d.OffsetForLeaderEpochRequestTopic(name, [asked])])
        found: d.OffsetForLeaderEpochResponsePartition = client.ask(request, version).topics[0].partitions[0]
        return found

    assert ended(1) == d.OffsetForLeaderEpochResponsePartition(0, 0, 1, 2)
    assert ended(5) == d.OffsetForLeaderEpochResponsePartition(0, 0, -1, -1)
    assert ended(1, current=0).error_code == E.FENCED_LEADER_EPOCH
    assert ended(1, name="absent").error_code == E.UNKNOWN_TOPIC_OR_PARTITION


# -- metadata ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
def test_metadata_in_every_version(
    client: Client, braid_server_shared: ServerProcess, topic: str, version: int
) -> None:
    answer = client.ask(c.MetadataRequest([c.MetadataRequestTopic(name=topic)]), version)
    (broker,) = answer.brokers
    assert (broker.node_id, broker.host, broker.port) == (0, "127.0.0.1", braid_server_shared.ports["kafka"])
    assert answer.controller_id == (0 if version >= 1 else -1)
    assert bool(answer.cluster_id) == (version >= 2)
    (told,) = answer.topics
    assert (told.name, told.error_code) == (topic, 0)
    assert (told.topic_id != bytes(16)) == (version >= 10)
    (partition,) = told.partitions
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (0, [0], [0])
    assert partition.leader_epoch == (1 if version >= 7 else -1)


def test_all_topics_and_none(client: Client, topic: str) -> None:
    names = {each.name for each in client.ask(c.MetadataRequest(None), 9).topics}
    assert topic in names
    assert topic in {each.name for each in client.ask(c.MetadataRequest([]), 0).topics}
    assert client.ask(c.MetadataRequest([]), 1).topics == []
    assert not {"__metadata", "__state"} & names


def test_a_topic_is_made_if_both_sides_want_it(client: Client) -> None:
    name = f"made-{uuid.uuid4().hex}"
    asked = [c.MetadataRequestTopic(name=name)]
    refused = client.ask(c.MetadataRequest(asked, allow_auto_topic_creation=False), 9)
    assert refused.topics[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    made = client.ask(c.MetadataRequest(asked), 9)
    assert (made.topics[0].error_code, len(made.topics[0].partitions)) == (0, 1)
    again = client.ask(c.MetadataRequest(asked, allow_auto_topic_creation=False), 9)
    assert again.topics[0].error_code == 0


@pytest.mark.parametrize("name", ["", "a b", ".", "x" * 250, "__transaction_state"])
def test_a_name_that_no_topic_can_have(client: Client, name: str) -> None:
    answer = client.ask(c.MetadataRequest([c.MetadataRequestTopic(name=name)]), 9)
    assert answer.topics[0].error_code == E.INVALID_TOPIC


def test_a_topic_by_its_id(client: Client, topic: str) -> None:
    identity = client.topic_id(topic)
    assert identity == client.topic_id(topic)
    answer = client.ask(c.MetadataRequest([c.MetadataRequestTopic(identity, None)]), 12)
    assert (answer.topics[0].name, answer.topics[0].error_code) == (topic, 0)
    unknown = client.ask(c.MetadataRequest([c.MetadataRequestTopic(bytes(15) + b"\1", None)]), 12)
    assert (unknown.topics[0].name, unknown.topics[0].error_code) == (None, E.UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_cluster_is_described(client: Client, braid_server_shared: ServerProcess, version: int) -> None:
    answer = client.ask(c.DescribeClusterRequest(), version)
    assert (answer.error_code, answer.controller_id) == (0, 0)
    assert answer.cluster_id == client.ask(c.MetadataRequest([]), 9).cluster_id
    assert [(each.broker_id, each.port) for each in answer.brokers] == [(0, braid_server_shared.ports["kafka"])]
    if version:
        refused = client.ask(c.DescribeClusterRequest(endpoint_type=2), version)
        assert refused.error_code == E.UNSUPPORTED_ENDPOINT_TYPE


def test_topics_are_described_a_page_at_a_time(client: Client, topic: str) -> None:
    names = [f"{topic}-{letter}" for letter in "cab"]
    for name in names:
        client.topic_id(name)
    asked = [c.DescribeTopicPartitionsRequestTopic(name) for name in [*names, f"{topic}-x"]]
    found = []
    cursor = None
    for _ in range(10):
        answer = client.ask(c.DescribeTopicPartitionsRequest(asked, 1, cursor), 0)
        found += [(each.name, each.error_code, len(each.partitions)) for each in answer.topics]
        if answer.next_cursor is None:
            break
        cursor = c.TopicPartitionCursor(answer.next_cursor.topic_name, answer.next_cursor.partition_index)
    assert found == [
        *[(name, 0, 1) for name in sorted(names)],
        (f"{topic}-x", E.UNKNOWN_TOPIC_OR_PARTITION, 0),
    ]


@pytest.mark.parametrize("version", range(5))
def test_versions_are_told_before_anything_else(braid_server_shared: ServerProcess, version: int) -> None:
    with Client(braid_server_shared) as client:
        answer = client.ask(c.ApiVersionsRequest("test", "1.0"), version)
        told = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        assert told[0] == (0, 13)
        assert told[1] == (4, 18)
        client.connection.set_server_versions(answer)
        assert client.ask(c.MetadataRequest([])).error_code == 0
