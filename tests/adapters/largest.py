"""The largest requests that each port takes: for every operation of its table, those whose service takes longest.

Long names are refused by their length alone; what costs is many of something: entries of a request, or records of an answer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tests.adapters.kafka import largest as kafka
from tests.adapters.kafka.client import TIME_MS
from tests.adapters.kafka.client import Client as KafkaClient

from braidlog.codec.batch.records import encode_batch
from braidlog.codec.compression import Compression
from braidlog.kv.engine.key_scan import LOOKED_AT_MAX
from braidlog.model.limits import KV_COLLECTION_ITEMS_MAX
from braidlog.testing.server import ServerProcess
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.batch import OBJECTS_MAX, Batch, BatchRecord, PlainRecords
from braidlog.wire.cursus.connection import ClientConnection as CursusConnection
from braidlog.wire.dialect import dialects
from braidlog.wire.flux import messages as f
from braidlog.wire.flux.connection import ClientConnection as FluxConnection
from braidlog.wire.kafka.apis import Api
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import topics as t
from braidlog.wire.mayfly import messages as k
from braidlog.wire.mayfly.connection import ClientConnection as MayflyConnection
from braidlog.wire.mayfly.connection import Request as MayflyRequest
from braidlog.wire.mlog import messages as m
from braidlog.wire.mlog.connection import ClientConnection as MlogConnection
from braidlog.wire.rustlog import messages as u
from braidlog.wire.rustlog.connection import ClientConnection as RustlogConnection
from braidlog.wire.rustlog.messages import Form

WIDE, TINY, EVENTS = kafka.WIDE, "tiny", "events"
"""Topics: of many partitions, of many empty records in few batches, and of many events of one stream."""
PARTITIONS = 300
RECORDS = 150_000
"""Of each batch: more than a turn of the loop has time for."""
EVENTS_STORED = 20_000
LONG = "n" * 249
STREAM_BYTES = 300_000
"""Of a stream that does not end, so much is read."""


class Large(NamedTuple):
    dialect: str
    operation: str
    what: str
    frame: bytes
    answer_bytes_max: int = 2**62


def prepare(node: ServerProcess) -> None:
    """What the requests are about."""
    with KafkaClient(node) as client:
        made = [(WIDE, PARTITIONS, {}), (TINY, 1, {}), (EVENTS, 1, {"braidlog.event.streams": "true"})]
        asked = [
            t.CreateTopicsRequestTopic(name, count, 1, configs=[t.ConfigValue(*each) for each in configs.items()])
            for name, count, configs in made
        ]
        told = client.ask(t.CreateTopicsRequest(asked, 60_000))
        assert not any(topic.error_code for topic in told.topics), told
        for _ in range(3):
            assert not client.produce(TINY, encode_batch([b""] * RECORDS, base_timestamp=TIME_MS)).error_code
        events = encode_batch(
            [b""] * EVENTS_STORED,
            keys=[b"k"] * EVENTS_STORED,
            headers=[(("aggregateVersion", b"%d" % (n + 1)),) for n in range(EVENTS_STORED)],
            base_timestamp=TIME_MS,
        )
        assert not client.produce(EVENTS, events).error_code


def largest(dialect: str) -> Iterator[Large]:
    yield from _MADE[dialect]()


# -- Kafka -------------------------------------------------------------------------------------------------------


def _kafka() -> Iterator[Large]:
    for name, what, frame in kafka.largest():
        yield Large("kafka", name, what, frame)
    many = 2_000_000
    for what, compression in (("empty records", Compression.NONE), ("empty records, zstd", Compression.ZSTD)):
        batch = encode_batch([b""] * many, base_timestamp=TIME_MS, compression=compression)
        yield Large("kafka", "Produce", what, kafka.produced(TINY, batch))
    yield Large(
        "kafka", "Produce", "one batch", kafka.produced(TINY, encode_batch([bytes(16_000_000)], base_timestamp=TIME_MS))
    )
    fetched = d.FetchRequestPartition(0, -1, 0, partition_max_bytes=2**31 - 1)
    asked = d.FetchRequest(max_bytes=2**31 - 1, topics=[d.FetchRequestTopic(TINY, partitions=[fetched])])
    yield Large("kafka", "Fetch", "empty records", kafka.frame_of(asked, 12))
    timed = d.ListOffsetsRequestPartition(0, timestamp=TIME_MS + 1)
    asked_time = d.ListOffsetsRequest(topics=[d.ListOffsetsRequestTopic(TINY, [timed])])
    yield Large("kafka", "ListOffsets", "by time", kafka.frame_of(asked_time, 7))


def older(rows: Iterable[tuple[Api, int, kafka.Path]]) -> Iterator[Large]:
    """The largest requests of older versions of Kafka's."""
    for row in rows:
        yield Large("kafka", row[0].name, *kafka.older_frame(*row))


# -- the others: operation → its requests ------------------------------------------------------------------------


def _framed(
    dialect: str, connection: Callable[[], Any], requests: dict[str, Sequence[Any]], streams: Sequence[str] = ()
) -> Iterator[Large]:
    for operation, messages in requests.items():
        for number, message in enumerate(messages):
            frame = message if isinstance(message, bytes) else connection().request(message)
            limit = STREAM_BYTES if operation in streams else 2**62
            yield Large(dialect, operation, f"{type(message).__name__} {number}", frame, limit)


def _mlog() -> Iterator[Large]:
    values = (b"v",) * 199_000
    return _framed(
        "mlog",
        MlogConnection,
        {
            "ReplicateStream": [m.ReplicateRequest(TINY, 0, 2**31, "other")],
            "Produce": [m.ProduceRequest(TINY, bytes(3_000_000), 2)],
            "ProduceBatch": [m.ProduceBatchRequest(TINY, values, 2)],
            "Fetch": [m.FetchRequest(TINY, LONG, 1), m.FetchRequest(TINY, "", RECORDS - 1, "other")],
            "FetchBatch": [
                m.FetchBatchRequest(TINY, LONG, 1, 2**31),
                m.FetchBatchRequest(TINY, "", 1, 2**31, "other"),
            ],
            "FetchStream": [m.FetchStreamRequest(TINY, LONG, 1)],
            "CommitOffset": [m.CommitOffsetRequest(TINY, LONG, 1)],
            "FetchOffset": [m.FetchOffsetRequest(TINY, LONG)],
            "CreateTopic": [m.CreateTopicRequest(LONG), m.CreateTopicRequest("n" * 4_000_000)],
            "DeleteTopic": [m.DeleteTopicRequest(LONG)],
            "FindTopicLeader": [m.FindTopicLeaderRequest(TINY)],
            "FindRaftLeader": [m.FindRaftLeaderRequest()],
            "ListTopics": [m.ListTopicsRequest()],
            "ApplyIsrUpdateEvent": [m.ApplyIsrUpdateEventRequest(TINY, LONG, isr=False)],
        },
        ("ReplicateStream", "FetchStream"),
    )


class _Mayfly:
    def request(self, message: k.Message) -> bytes:
        return MayflyConnection().request(MayflyRequest(1, message))


def _mayfly() -> Iterator[Large]:
    key, empty = b"k" * 256, (b"",) * KV_COLLECTION_ITEMS_MAX
    fields = tuple(b"%d" % n for n in range(KV_COLLECTION_ITEMS_MAX))
    pushes = [k.RPush(b"list", empty), k.RPush(b"list", (b"",) * 250_000)]
    half = range(KV_COLLECTION_ITEMS_MAX // 2)
    sets = [k.HSet(b"hash", tuple((b"%d-%d" % (part, n), b"") for n in half)) for part in range(2)]
    client = _Mayfly()
    many = b"".join(client.request(k.Set(b"%0256d" % n, b"")) for n in range(LOOKED_AT_MAX))
    one: dict[str, Sequence[Any]] = {
        "SET": [k.Set(key, bytes(65_536))],
        "LPUSH": [k.LPush(b"front", empty)],
        "RPUSH": pushes,
        "LRANGE": [k.LRange(b"list", 0, -1)],
        "LPOP": [k.LPop(b"list")],
        "RPOP": [k.RPop(b"list")],
        "HSET": sets,
        "HGETALL": [k.HGetAll(b"hash")],
        "HDEL": [k.HDel(b"hash", fields)],
        "SCAN": [many, k.Scan(0, 0, b"", b"", 2**32 - 1)],
        "SNAPSHOT": [k.Snapshot()],
    }
    plain = {
        "AUTH": k.Auth(bytes(1024)),
        "GET": k.Get(key),
        "DEL": k.Del(b"front"),
        "PING": k.Ping(),
        "QUIT": k.Quit(),
        "EXISTS": k.Exists(key),
        "EXPIRE": k.Expire(key, 1000),
        "TTL": k.Ttl(key),
        "LLEN": k.LLen(b"list"),
        "INCR": k.Incr(b"number"),
        "DECR": k.Decr(b"number"),
        "INCRBY": k.IncrBy(b"number", 2**31),
        "HGET": k.HGet(b"hash", b"1"),
        "MEMORY": k.Memory(),
        "STATS": k.Stats(),
        "CLUSTER_INFO": k.ClusterInfo(),
        "CLUSTER_NODES": k.ClusterNodes(),
        "LEAVE": k.Leave(),
    }
    return _framed("mayfly", _Mayfly, {**one, **{name: [message] for name, message in plain.items()}})


def _rustlog() -> Iterator[Large]:
    records: dict[str, Sequence[Any]] = {
        "Fetch": [u.Fetch(group_id="", topic=TINY, partition=0, offset=0, max_bytes=2**32 - 1)],
        "OffsetCommit": [u.OffsetCommit(group=LONG, topic=WIDE, partition=0, offset=0)],
        "OffsetFetch": [u.OffsetFetch(group=LONG, topic=WIDE, partition=0)],
        "ListTopics": [u.ListTopics()],
        "DescribeTopic": [u.DescribeTopic(topic=WIDE)],
        "DescribePartition": [u.DescribePartition(topic=WIDE, partition=0)],
        "MetricsFetch": [u.MetricsFetch()],
        "Ping": [u.Ping()],
    }
    produced = u.Produce(topic=TINY, partition=0, records=[bytes(7000)] * 1000)
    created = u.CreateTopic(topic=f"{LONG[1:]}r", partition_count=100)
    yield from _framed("rustlog", RustlogConnection, {"Produce": [produced], "CreateTopic": [created], **records})
    many = u.Produce(topic=TINY, partition=0, records=[b""] * u.RECORDS_PER_BINARY_PRODUCE_MAX)
    yield from _framed("rustlog", lambda: RustlogConnection(Form.BINARY), {"Produce": [many], **records})


def _flux() -> Iterator[Large]:
    of_member = ("1", LONG, WIDE, LONG)
    member = (*of_member, 1)
    return _framed(
        "flux",
        FluxConnection,
        {
            "PRODUCE": [f.Produce("1", TINY, b"", b"v" * 1_000_000), f.Produce("1", TINY, b"k" * 16_000, b"")],
            "CONSUME": [f.Consume("1", TINY, 0, 0), f.Consume("1", TINY, 0, RECORDS - 2, f.Encoding.BASE64)],
            "JOIN": [f.Join(*of_member)],
            "SYNC": [f.Sync(*member)],
            "HEARTBEAT": [f.Heartbeat(*member)],
            "COMMIT": [f.Commit(*member, 0, 0)],
            "LEAVE": [f.Leave(*member)],
            "OFFSET": [f.ReadOffset("1", LONG, WIDE, 0)],
            "REPLICA_FETCH": [f.ReplicaFetch("1", TINY, 0, 1, 0)],
            "BROKER_FETCH": [f.BrokerFetch("1", TINY, 0, 1, 0, 2**31 - 1)],
            "BROKER_REPLICA_ACK": [f.BrokerReplicaAck("1", TINY, 0, 1, 0)],
            "SET_PARTITION_ROLE": [f.SetPartitionRole("1", WIDE, 99, f.Role.FOLLOWER)],
            "ADMIN_CREATE_TOPIC": [f.CreateTopic("1", f"{LONG[1:]}f", 100, 1)],
            "ADMIN_REGISTER_BROKER": [f.RegisterBroker("1", 1, "h" * 255, 1)],
            "ADMIN_BROKER_HEARTBEAT": [f.BrokerHeartbeat("1", 1)],
            "ADMIN_RECONCILE_BROKER_HEALTH": [f.ReconcileBrokerHealth("1", 1)],
            "ADMIN_FENCE_BROKER": [f.FenceBroker("1", 1)],
            "ADMIN_UNFENCE_BROKER": [f.UnfenceBroker("1", 1)],
            "ADMIN_ELECT_TOPIC_LEADERS": [f.ElectTopicLeaders("1", WIDE)],
            "ADMIN_SET_PARTITION_LEADER": [f.SetPartitionLeader("1", WIDE, 0, 1, tuple(range(1000)))],
            "ADMIN_GET_METADATA": [f.GetMetadata("1")],
            "PING": [f.Ping("1")],
        },
    )


def _cursus() -> Iterator[Large]:
    offsets = tuple(r.PartitionOffset(number, 0) for number in range(PARTITIONS))
    transaction: dict[str, Any] = {"transactional_id": LONG, "producer_id": "1", "epoch": 0}
    member: dict[str, Any] = {"topic": WIDE, "group": LONG, "member": LONG}
    plain = Batch(TINY, 0, PlainRecords([b""] * 1_300_000, None))
    keyed = [BatchRecord(b"", b"%032d" % number) for number in range(OBJECTS_MAX)]
    told = [BatchRecord(b"", event_type="e", sequence=n + 1, producer_id="p", epoch=1) for n in range(OBJECTS_MAX)]
    packed = CursusConnection(compression="gzip")
    requests: dict[str, Sequence[Any]] = {
        "0xBA7C": [
            plain,
            Batch(WIDE, -1, keyed),
            Batch(WIDE, -1, [BatchRecord(b"", bytes(65_535))] * 32),
            Batch(WIDE, -1, [BatchRecord(b"", bytes(65_535))] * 1000),
            Batch(WIDE, -1, PlainRecords([b""] * 1_300_000, None)),
            Batch(TINY, 0, told, idempotent=True, sequence_start=1, sequence_end=len(told)),
            Batch(TINY, 0, [BatchRecord(bytes(15_000_000))]),
            packed.request(plain),
        ],
        "CREATE": [r.Create(f"{LONG[1:]}c", 100)],
        "DELETE": [r.Delete(f"{LONG[1:]}c")],
        "LIST": [r.ListTopics()],
        "CONSUME": [r.Consume(TINY, 0, 0, records_max=2**31 - 1), r.Consume("*", 0, 0, records_max=2**31 - 1)],
        "STREAM": [r.Stream(TINY, 0, offset=0, records_max=2**31 - 1)],
        "PUBLISH": [r.Publish(WIDE, b"v" * 1_000_000, key=b"k" * 60_000)],
        "DESCRIBE": [r.Describe(WIDE)],
        "METADATA": [r.GetMetadata(WIDE)],
        "LIST_OFFSETS": [r.ListOffsets(WIDE)],
        "FIND_COORDINATOR": [r.FindCoordinator(LONG)],
        "LIST_CLUSTER": [r.ListCluster()],
        "CLUSTER_STATUS": [r.GetClusterStatus()],
        "ELECT_LEADER": [r.ElectLeader(WIDE, 0, LONG)],
        "SUBSCRIBE": [r.Subscribe(WIDE, LONG)],
        "REGISTER_GROUP": [r.RegisterGroup(WIDE, LONG)],
        "JOIN_GROUP": [r.JoinGroup(**member)],
        "SYNC_GROUP": [r.SyncGroup(**member)],
        "HEARTBEAT": [r.Heartbeat(**member)],
        "COMMIT": [r.Commit(WIDE, LONG, 0, 0)],
        "COMMIT_OFFSET": [r.CommitOffset(WIDE, 0, LONG, 0)],
        "BATCH_COMMIT": [r.BatchCommit(**member, generation=1, offsets=offsets)],
        "LEAVE_GROUP": [r.LeaveGroup(**member)],
        "FETCH_OFFSET": [r.FetchOffset(WIDE, 0, LONG)],
        "LIST_GROUPS": [r.ListGroups()],
        "GROUP_STATUS": [r.GroupStatus(LONG)],
        "READ_STREAM": [r.ReadStream(EVENTS, "k")],
        "APPEND_STREAM": [r.AppendStream(EVENTS, "k", EVENTS_STORED + 1, b"v" * 1_000_000)],
        "STREAM_VERSION": [r.StreamVersion(EVENTS, "k")],
        "SAVE_SNAPSHOT": [r.SaveSnapshot(EVENTS, "k", 1, b"v" * 1_000_000)],
        "READ_SNAPSHOT": [r.ReadSnapshot(EVENTS, "k")],
        "INIT_PRODUCER_ID": [r.InitProducerId(LONG)],
        "BEGIN_TXN": [r.BeginTxn(**transaction)],
        "TXN_PUBLISH": [r.TxnPublish(LONG, WIDE, "1", 1, 0, b"v" * 1_000_000)],
        "SEND_OFFSETS_TO_TXN": [r.SendOffsetsToTxn(**transaction, **member, generation=1, offsets=offsets)],
        "END_TXN": [r.EndTxn(**transaction, result="commit")],
        "TXN_STATUS": [r.TxnStatus(LONG)],
        "AUTH": [r.Auth(LONG, "t" * 1_000_000)],
        "HELP": [r.Help()],
        "PROTOCOL_INFO": [r.GetProtocolInfo()],
        "EXIT": [r.Exit()],
    }
    return _framed("cursus", CursusConnection, requests, ("STREAM",))


_MADE: dict[str, Callable[[], Iterator[Large]]] = {
    "cursus": _cursus,
    "flux": _flux,
    "kafka": _kafka,
    "mayfly": _mayfly,
    "mlog": _mlog,
    "rustlog": _rustlog,
}


def operations(dialect: str) -> set[str]:
    """What has to be tried."""
    return {row.name for row in dialects()[dialect].operations}
