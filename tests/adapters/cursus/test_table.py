"""Every operation of the dialect's own table is served, and each of its errors is provoked, over a socket.

The tests iterate over OPERATIONS and ErrorCode: a row that nobody provokes here fails.
"""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from tests.adapters.cursus.drive import Client, batch, wait_for
from tests.adapters.cursus.held_syncs import HoldingNode

from braidlog.adapters.cursus.errors import CODES
from braidlog.adapters.cursus.handlers import CursusAdapter
from braidlog.model.errors import Reason
from braidlog.testing.server import ServerProcess
from braidlog.wire.cursus.batch import read_batch
from braidlog.wire.cursus.failures import ErrorCode as E
from braidlog.wire.cursus.messages import BATCH, EVERYWHERE, OPERATIONS

_numbers = count()


def fresh(word: str) -> str:
    return f"{word}-{next(_numbers)}"


# -- totals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_code(reason: Reason) -> None:
    assert isinstance(CODES[reason], E)


def test_every_operation_has_a_route() -> None:
    stub: Any = SimpleNamespace(forwarding=SimpleNamespace(names=set(), calls=None))
    adapter = CursusAdapter(stub)
    assert set(adapter.table) == {row.request for row in OPERATIONS}


# -- what is served ------------------------------------------------------------------------------------------------


def served_batch(c: Client) -> None:
    ack = c.ack(batch("plain", b"x", partition=1, acks="-1", first=7))
    leader = ack.pop("leader")
    assert re.fullmatch(r"127\.0\.0\.1:\d+", leader)
    assert ack.pop("last_offset") >= 0
    assert ack == {
        "status": "OK",
        "producer_epoch": 1,
        "producer_id": "p",
        "seq_start": 7,
        "seq_end": 7,
        "error": "",
    }


def served_create(c: Client) -> None:
    topic = fresh("made")
    tail = "cleanup_policy=delete partitioner=hash_key auth_policy=open read_acl= write_acl= retention_hours=0 retention_bytes=0"
    assert c.ask(f"CREATE topic={topic}") == f"OK topic={topic} partitions=4 {tail}"
    assert c.ask(f"CREATE {topic} 4") == f"OK topic={topic} partitions=4 {tail}"
    assert f"topic={topic} partitions=6 " in c.ask(f"CREATE topic={topic} partitions=6")
    assert f"topic={topic} partitions=6 " in c.ask(f"CREATE topic={topic} partitions=2")
    changed = c.ask(f"CREATE topic={topic} cleanup_policy=compact retention_hours=3 retention_bytes=9")
    assert "cleanup_policy=compact" in changed
    assert changed.endswith("retention_hours=3 retention_bytes=9")


def served_delete(c: Client) -> None:
    topic = fresh("gone")
    c.ok(f"CREATE {topic} 1")
    assert c.ask(f"DELETE topic={topic}") == f"OK topic={topic} deleted=true"
    assert c.ask(f"DELETE topic={topic} if_exists=true") == f"OK topic={topic} deleted=false"
    assert c.ask(f"DELETE {topic}") == f"ERROR: topic_not_found topic={topic}"


def served_list(c: Client) -> None:
    topics = re.fullmatch(r"OK count=(\d+) topics=(\S+)", c.ask("LIST"))
    assert topics is not None
    assert {"plain", "follow"} <= set(topics[2].split(","))
    assert len(topics[2].split(",")) == int(topics[1])


def served_consume(c: Client) -> None:
    assert [(r.offset, r.payload) for r in c.consume("plain", 0, 2, "batch=2")] == [(2, b"2"), (3, b"3")]
    c.send("CONSUME plain 0 4")  # the document's words, and its header
    found, spelling = read_batch(c.read())
    assert (found.records[0].payload, spelling.value, found.topic) == (b"4", "document", "plain")
    assert c.consume("plain", 0, 5) == ()
    assert len(c.consume("plain", 0, 999, "autoOffsetReset=earliest")) == 5
    assert c.consume("plain", 0, 999, "autoOffsetReset=latest") == ()
    assert len(c.consume("plain", 0, 1, "member=m1 group=duo generation=2 isolation=read_uncommitted wait_ms=1")) == 4
    assert len(c.consume("pl?in*", 0, 0)) == 5


def served_subscribe(c: Client) -> None:
    group = fresh("group")
    assert c.ask(f"SUBSCRIBE plain {group}") == f"OK group={group} topic=plain registered=true"


def served_join(c: Client) -> None:
    group = fresh("group")
    assert c.ask(f"JOIN_GROUP topic=plain group={group} member=b") == "OK generation=1 member=b assignments=[0 1]"
    assert c.ask(f"JOIN_GROUP plain {group} a") == "OK generation=2 member=a assignments=[0]"
    assert c.ask(f"SYNC_GROUP plain {group} b 2") == "OK generation=2 member=b assignments=[1]"
    assert c.ask(f"SYNC_GROUP topic=plain group={group} member=a") == "OK generation=2 member=a assignments=[0]"
    assert c.ask(f"HEARTBEAT plain {group} consumer b 2") == "OK member=b generation=2"
    assert c.ask(f"HEARTBEAT topic=plain group={group} member=a") == "OK member=a generation=2"
    assert c.ask(f"LEAVE_GROUP plain {group} b 2") == f"OK group={group} member=b left=true"
    assert c.ask(f"JOIN_GROUP plain {group} a") == "OK generation=3 member=a assignments=[0 1]"
    assert c.ask(f"LEAVE_GROUP topic=plain group={group} member=a") == f"OK group={group} member=a left=true"


def served_stream(c: Client) -> None:
    c.send("STREAM topic=plain partition=0 offset=3")
    assert [r.offset for r in read_batch(c.read())[0].records] == [3, 4]
    assert c.read() == b""  # a keep-alive within the client's five seconds


def served_commits(c: Client) -> None:
    group = fresh("group")
    assert c.ask(f"FETCH_OFFSET topic=plain partition=0 group={group}") == "OK offset=0"
    assert c.ask(f"COMMIT plain {group} 0 3") == "OK"
    assert c.ask(f"COMMIT_OFFSET topic=plain partition=0 group={group} offset=4") == "OK"
    c.ok(f"JOIN_GROUP plain {group} m")
    assert c.ask(f"COMMIT_OFFSET topic=plain partition=0 group={group} offset=4 generation=1 member=m") == "OK"
    assert c.ask(f"BATCH_COMMIT topic=plain group={group} member=m generation=1 P0:5,P1:1") == "OK batched=2"
    assert c.ask(f"BATCH_COMMIT plain {group} m 1 P0:6,P1:1") == "OK batched=2"
    assert c.ask(f"FETCH_OFFSET topic=plain partition=0 group={group}") == "OK offset=6"


def served_publish(c: Client) -> None:
    topic = fresh("published")
    c.ok(f"CREATE {topic} 1")
    assert c.ask(f"PUBLISH topic={topic} acks=0 message=a b = c") == "OK"
    assert c.ack(f"PUBLISH topic={topic} key=k partition=-1 message=second")["last_offset"] == 1
    again = f"PUBLISH topic={topic} producerId=p epoch=9 seqNum=1 isIdempotent=true acks=all message=third"
    assert [c.ack(again)["last_offset"] for _ in range(2)] == [2, 2]
    assert [(r.payload, r.key) for r in c.consume(topic)] == [(b"a b = c", b""), (b"second", b"k"), (b"third", b"")]


def served_describe(c: Client) -> None:
    told = json.loads(c.ask("DESCRIBE topic=plain"))
    assert (told["status"], told["topic"], [p["id"] for p in told["partitions"]]) == ("OK", "plain", [0, 1])
    assert (told["partitions"][0]["leo"], told["partitions"][0]["hwm"], told["partitions"][0]["isr"]) == (5, 5, ["0"])


def served_metadata(c: Client) -> None:
    here = ":".join(map(str, c.socket.getpeername()))
    assert c.ask("METADATA topic=plain") == f"OK topic=plain partitions=2 leaders={here},{here} epochs=1,1"
    assert f"leaders={here} " in c.ask("METADATA topic=follow"), "clients dial what it says"


def served_list_offsets(c: Client) -> None:
    one = "P0:earliest=0:latest=5:leo=5:hwm=5"
    assert c.ask("LIST_OFFSETS topic=plain partition=0") == f"OK topic=plain partitions=1 offsets={one}"
    assert c.ask("LIST_OFFSETS topic=plain").startswith(f"OK topic=plain partitions=2 offsets={one},P1:")


def served_coordinator(c: Client) -> None:
    port = c.socket.getpeername()[1]
    head = "OK coordinator_id=0 coordinator_type"
    assert c.ask("FIND_COORDINATOR group=g") == f"{head}=group host=127.0.0.1 port={port}"
    assert c.ask("FIND_COORDINATOR transactional_id=t") == f"{head}=transaction host=127.0.0.1 port={port}"


def served_register(c: Client) -> None:
    group = fresh("group")
    assert c.ask(f"REGISTER_GROUP topic=plain group={group}") == f"OK group={group} topic=plain registered=true"
    assert json.loads(c.ask(f"GROUP_STATUS group={group}"))["state"] == "Empty"
    assert group in c.ask("LIST_GROUPS")
    assert c.ask(f"JOIN_GROUP plain {group} m") == "OK generation=1 member=m assignments=[0 1]"


def served_status(c: Client) -> None:
    told = json.loads(c.ask("GROUP_STATUS group=duo"))
    assert (told["status"], told["topic_name"], told["generation"], told["state"]) == ("OK", "plain", 2, "Stable")
    assert {m["member_id"]: m["assignments"] for m in told["members"]} == {"m1": [0], "m2": [1]}
    assert (told["member_count"], told["partition_count"]) == (2, 2)
    assert datetime.fromisoformat(told["last_rebalance"]) <= datetime.now(UTC)
    committer = fresh("group")
    c.ok(f"COMMIT plain {committer} 0 1")
    assert json.loads(c.ask(f"GROUP_STATUS group={committer}"))["topic_name"] == "plain"
    assert "last_rebalance" not in json.loads(c.ask(f"GROUP_STATUS group={committer}"))


def served_events(c: Client) -> None:
    key = fresh("order")
    assert c.ask(f"STREAM_VERSION topic=events key={key}") == "OK version=0"
    assert c.ask(f"READ_SNAPSHOT topic=events key={key}") == "OK snapshot=null"
    for version in (1, 2, 3):
        told = c.ask(
            f"APPEND_STREAM topic=events key={key} version={version} event_type=T schema_version=2 producerId=p "
            f'metadata={{"a": [1, 2]}} message=event {version}'
        )
        assert re.fullmatch(rf"OK version={version} offset=\d+ partition=0", told)
    assert c.ask(f"STREAM_VERSION topic=events key={key}") == "OK version=3"
    assert c.ask(f"SAVE_SNAPSHOT topic=events key={key} version=2 message=so far") == "OK version=2 partition=0"
    assert c.ask(f"READ_SNAPSHOT topic=events key={key}") == 'OK snapshot={"version":2,"payload":"so far"}'
    for words, snapshot, versions in (
        ("", True, [3]),
        ("from_version=1", True, [1, 2, 3]),
        ("from_version=3", False, [3]),
    ):
        c.send(f"READ_STREAM topic=events key={key} {words}")
        envelope, events = json.loads(c.read()), read_batch(c.read())[0].records
        assert envelope["status"] == "OK"
        assert ("snapshot" in envelope) is snapshot
        assert [(r.aggregate_version, r.payload.decode()) for r in events] == [(v, f"event {v}") for v in versions]
        last = events[-1]
        assert (last.event_type, last.schema_version, last.producer_id, last.metadata, last.key.decode()) == (
            "T",
            2,
            "p",
            '{"a": [1, 2]}',
            key,
        )


def served_transactions(c: Client) -> None:
    name, topic, group = fresh("txn"), fresh("ledger"), fresh("group")
    c.ok(f"CREATE {topic} 1")
    c.ok(f"JOIN_GROUP plain {group} m")
    for result in ("abort", "commit"):
        found = re.fullmatch(
            rf"OK transactional_id={name} producerId=(\d+) epoch=(\d+)",
            c.ask(f"INIT_PRODUCER_ID transactional_id={name}"),
        )
        assert found is not None
        who = f"transactional_id={name} producerId={found[1]} epoch={found[2]}"
        assert (
            c.ask(f"BEGIN_TXN {who}") == f"OK transactional_id={name} state=open producerId={found[1]} epoch={found[2]}"
        )
        for _ in range(2):  # the second is a retry
            told = c.ask(f"TXN_PUBLISH {who} topic={topic} partition=-1 seqNum=1 key=k message=for {result}")
            assert told == f"OK transactional_id={name} staged_messages=1 topic={topic} partition=0"
        told = c.ask(f"SEND_OFFSETS_TO_TXN {who} topic=plain group={group} member=m generation=1 P0:3,P1:1")
        assert told == f"OK transactional_id={name} staged_offsets=2"
        assert (
            c.ask(f"TXN_STATUS transactional_id={name}")
            == f"OK transactional_id={name} state=open messages=1 offsets=2"
        )
        assert c.consume(topic) == ()
        assert len(c.consume(topic, more="isolation_level=read_uncommitted")) >= 1
        ended = "committed" if result == "commit" else "aborted"
        assert (
            c.ask(f"END_TXN {who} result={result}") == f"OK transactional_id={name} state={ended} messages=1 offsets=2"
        )
        assert f"state={ended}" in c.ask(f"END_TXN {who} result={result}")
        assert c.ask(f"FETCH_OFFSET topic=plain partition=0 group={group}") == (
            "OK offset=3" if result == "commit" else "OK offset=0"
        )
    assert [r.payload for r in c.consume(topic)] == [b"for commit"]


def served_help(c: Client) -> None:
    assert set(c.ask("HELP").removeprefix("OK commands=").split(",")) == {row.name for row in OPERATIONS} - {BATCH}


def served_info(c: Client) -> None:
    assert c.ask("PROTOCOL_INFO").startswith(
        "OK protocol=cursus min_version=1 max_version=1 default_version=1 features="
    )


def served_exit(c: Client) -> None:
    assert c.ask("EXIT") == "OK"
    assert c.is_closed()


OF_CLUSTERS = {"LIST_CLUSTER", "CLUSTER_STATUS", "ELECT_LEADER"}
"""Served among several nodes only (`test_leaders.py`); here they are refused."""
SERVED: dict[str, Callable[[Client], None]] = {
    BATCH: served_batch,
    "CREATE": served_create,
    "DELETE": served_delete,
    "LIST": served_list,
    "CONSUME": served_consume,
    "SUBSCRIBE": served_subscribe,
    "JOIN_GROUP": served_join,
    "LEAVE_GROUP": served_join,
    "STREAM": served_stream,
    "COMMIT": served_commits,
    "HEARTBEAT": served_join,
    "BATCH_COMMIT": served_commits,
    "SYNC_GROUP": served_join,
    "PUBLISH": served_publish,
    "DESCRIBE": served_describe,
    "METADATA": served_metadata,
    "LIST_OFFSETS": served_list_offsets,
    "FIND_COORDINATOR": served_coordinator,
    "REGISTER_GROUP": served_register,
    "LIST_GROUPS": served_register,
    "GROUP_STATUS": served_status,
    "FETCH_OFFSET": served_commits,
    "COMMIT_OFFSET": served_commits,
    "APPEND_STREAM": served_events,
    "READ_STREAM": served_events,
    "STREAM_VERSION": served_events,
    "SAVE_SNAPSHOT": served_events,
    "READ_SNAPSHOT": served_events,
    "INIT_PRODUCER_ID": served_transactions,
    "BEGIN_TXN": served_transactions,
    "TXN_PUBLISH": served_transactions,
    "SEND_OFFSETS_TO_TXN": served_transactions,
    "END_TXN": served_transactions,
    "TXN_STATUS": served_transactions,
    "HELP": served_help,
    "PROTOCOL_INFO": served_info,
    "EXIT": served_exit,
}


@pytest.mark.parametrize("name", [row.name for row in OPERATIONS if row.name not in {"AUTH", *OF_CLUSTERS}])
def test_every_operation_is_served(client: Client, name: str) -> None:
    SERVED[name](client)


def test_auth_is_served(guarded: ServerProcess) -> None:
    with Client(guarded) as c:
        assert c.ask("AUTH principal=admin token=admin-token") == "OK principal=admin authenticated=true"
        c.ok("LIST")


# -- errors, for each operation that names them --------------------------------------------------------------------

ARGUMENTS: dict[str, str] = {
    "CREATE": "topic=plain partitions=2",
    "DELETE": "topic=plain",
    "CONSUME": "topic=plain partition=0 offset=0",
    "SUBSCRIBE": "topic=plain group=g",
    "JOIN_GROUP": "topic=plain group=g member=m",
    "LEAVE_GROUP": "topic=plain group=duo member=m1 generation=2",
    "STREAM": "topic=plain partition=0 offset=0",
    "COMMIT": "topic=plain group=g partition=0 offset=0",
    "HEARTBEAT": "topic=plain group=duo member=m1 generation=2",
    "BATCH_COMMIT": "topic=plain group=duo member=m1 generation=2 offsets=P0:1",
    "SYNC_GROUP": "topic=plain group=duo member=m1 generation=2",
    "PUBLISH": "topic=plain partition=0 message=x",
    "DESCRIBE": "topic=plain",
    "METADATA": "topic=plain",
    "LIST_OFFSETS": "topic=plain partition=0",
    "LIST_CLUSTER": "",
    "CLUSTER_STATUS": "",
    "ELECT_LEADER": "topic=plain partition=0 broker=0",
    "REGISTER_GROUP": "topic=plain group=g",
    "GROUP_STATUS": "group=duo",
    "FETCH_OFFSET": "topic=plain partition=0 group=g",
    "COMMIT_OFFSET": "topic=plain partition=0 group=duo offset=1 generation=2 member=m1",
    "APPEND_STREAM": "topic=events key=k version=1 message=x",
    "READ_STREAM": "topic=events key=k",
    "STREAM_VERSION": "topic=events key=k",
    "SAVE_SNAPSHOT": "topic=events key=k version=1 message=x",
    "READ_SNAPSHOT": "topic=events key=k",
    "BEGIN_TXN": "transactional_id={txn} producerId={pid} epoch={epoch}",
    "TXN_PUBLISH": "transactional_id={txn} topic=plain partition=0 producerId={pid} seqNum=1 epoch={epoch} message=x",
    "SEND_OFFSETS_TO_TXN": "transactional_id={txn} producerId={pid} epoch={epoch} topic=plain group=duo member=m1 generation=2 "
    "offsets=P0:1",
    "END_TXN": "transactional_id={txn} producerId={pid} epoch={epoch} result=commit",
    "TXN_STATUS": "transactional_id={txn}",
}
"""Valid as they stand; an error is one word changed."""


def command(c: Client, name: str, **changes: object) -> str:
    words = ARGUMENTS[name]
    if "{txn}" in words:
        txn = fresh("txn")
        told = dict(word.split("=") for word in c.ok(f"INIT_PRODUCER_ID transactional_id={txn}").split()[1:])
        if name in ("TXN_PUBLISH", "SEND_OFFSETS_TO_TXN"):
            c.ok(f"BEGIN_TXN transactional_id={txn} producerId={told['producerId']} epoch={told['epoch']}")
        words = words.format(txn=txn, pid=told["producerId"], epoch=told["epoch"])
    for key, value in changes.items():
        words, found = re.subn(rf"(?<!\S){key}=\S+", f"{key}={value}", words)
        if not found:
            head, message, tail = words.partition("message=")
            words = f"{head.rstrip()} {key}={value} {message}{tail}"
    return f"{name} {words}".rstrip()


def change(**changes: object) -> Callable[[Client, str], str]:
    return lambda c, name: c.ask(command(c, name, **changes))


def member_change(**changes: object) -> Callable[[Client, str], str]:
    """As a member: CONSUME and STREAM name none unless told to."""
    return change(**{"group": "duo", "member": "m1", "generation": 2, **changes})


def fence(c: Client, name: str) -> str:
    producer = fresh("producer")
    if name == BATCH:
        c.ack(batch("plain", b"x", idempotent=True, producer=producer, epoch=5, partition=1))
        told = c.ack(batch("plain", b"x", idempotent=True, producer=producer, epoch=4, partition=1))
        assert told["status"] == "ERROR"
        return f"ERROR: {told['error']}"
    if name == "PUBLISH":
        words = {"producerId": producer, "isIdempotent": 1, "partition": 1, "seqNum": 1}
        c.ack(command(c, name, **words, epoch=2**62))
        return c.ask(command(c, name, **words, epoch=1))
    return c.ask(command(c, name, epoch=99))


def gap(c: Client, name: str) -> str:
    producer = fresh("producer")
    if name == BATCH:
        c.ack(batch("plain", b"x", idempotent=True, producer=producer, partition=1))
        told = c.ack(batch("plain", b"x", idempotent=True, producer=producer, first=3, partition=1))
        assert told["status"] == "ERROR"
        return f"ERROR: {told['error']}"
    if name == "PUBLISH":
        words = {"producerId": producer, "isIdempotent": 1, "partition": 1}
        c.ack(command(c, name, **words, seqNum=1))
        return c.ask(command(c, name, **words, seqNum=3))
    first = command(c, name, topic="plain", partition=1)
    c.ok(first)
    return c.ask(first.replace("seqNum=1", "seqNum=3"))


def oversize(c: Client, name: str) -> str:
    return c.ask(batch("small", bytes(2000)) if name == BATCH else "PUBLISH topic=small message=" + "x" * 2000)


def late(c: Client, name: str) -> str:
    return (
        c.ask(batch("behind", b"x", acks="-1")) if name == BATCH else c.ask("PUBLISH topic=behind acks=all message=x")
    )


def not_owner(c: Client, name: str) -> str:
    key = {"BATCH_COMMIT": "offsets", "SEND_OFFSETS_TO_TXN": "offsets"}.get(name, "partition")
    return member_change(**{key: "P1:1" if key == "offsets" else 1})(c, name)


def regress(c: Client, name: str) -> str:
    group = fresh("group")
    c.ok(f"JOIN_GROUP plain {group} m")
    c.ok(f"COMMIT plain {group} 0 4")
    key = {"offset": 2} if name in ("COMMIT", "COMMIT_OFFSET") else {"offsets": "P0:2"}
    membership = {} if name == "COMMIT" else {"member": "m", "generation": 1}
    return c.ask(command(c, name, group=group, **membership, **key))


def wrong_state(c: Client, name: str) -> str:
    if name == "INIT_PRODUCER_ID":
        return c.ask(f"INIT_PRODUCER_ID transactional_id={'x' * 300}")
    words = command(c, name)
    if name == "BEGIN_TXN":
        c.ok(words)
        return c.ask(words)
    who = dict(word.split("=", 1) for word in words.split()[1:] if "=" in word)
    ending = "END_TXN transactional_id={transactional_id} producerId={producerId} epoch={epoch} result=commit".format(
        **who
    )
    c.ok(ending)
    return c.ask(ending.replace("commit", "abort") if name == "END_TXN" else words)


def in_envelope(provoke: Callable[[Client, str], str]) -> Callable[[Client, str], str]:
    """READ_STREAM says no in JSON."""

    def run(c: Client, name: str) -> str:
        told = provoke(c, name)
        if name != "READ_STREAM":
            return told
        envelope = json.loads(told)
        assert envelope["status"] == "ERROR"
        return f"ERROR: {envelope['error']}"

    return run


def missing_topic(c: Client, name: str) -> str:
    return c.ask(batch("nope", b"x")) if name == BATCH else c.ask(command(c, name, topic="nope"))


def missing_partition(c: Client, name: str) -> str:
    return c.ask(batch("plain", b"x", partition=77)) if name == BATCH else c.ask(command(c, name, partition=77))


def following(c: Client, name: str) -> str:
    return c.ask(batch("follow", b"x")) if name == BATCH else c.ask(command(c, name, topic="follow"))


def bad_acks(c: Client, name: str) -> str:
    return c.ask(batch("plain", b"x", acks="7")) if name == BATCH else c.ask(command(c, name, acks=7))


PROVOKED: dict[E, Callable[[Client, str], str]] = {
    E.TOPIC_NOT_FOUND: in_envelope(missing_topic),
    E.PARTITION_NOT_FOUND: missing_partition,
    E.NOT_LEADER: in_envelope(following),
    E.OFFSET_OUT_OF_RANGE: change(offset=999),
    E.INVALID_ACKS: bad_acks,
    E.STALE_PRODUCER_EPOCH: fence,
    E.IDEMPOTENCY_GAP: gap,
    E.RECORD_TOO_LARGE: oversize,
    E.TIMED_OUT: late,
    E.INVALID_TOPIC: change(topic="no/slash"),
    E.INVALID_PARTITIONS: change(topic="many", partitions=1_000_000),
    E.CREATE_TOPIC_FAILED: change(cleanup_policy="shred"),
    E.DISTRIBUTION_NOT_ENABLED: change(),
    E.DISTRIBUTION_REQUIRED: change(),
    E.GROUP_NOT_FOUND: member_change(group="nobodys"),
    E.MEMBER_NOT_FOUND: member_change(member="ghost"),
    E.GEN_MISMATCH: member_change(generation=99),
    E.NOT_OWNER: not_owner,
    E.OFFSET_REGRESSION: regress,
    E.EVENT_SOURCING_NOT_ENABLED: in_envelope(change(topic="plain")),
    E.VERSION_CONFLICT: change(version=9),
    E.SNAPSHOT_VERSION_EXCEEDS_STREAM: change(version=9),
    E.TRANSACTION_NOT_FOUND: change(transactional_id="unknown"),
    E.INVALID_TRANSACTION_STATE: wrong_state,
}

NEVER: dict[E, str] = {
    E.NOT_COORDINATOR: "one node coordinates everything",
    E.LEADER_ELECTION_REJECTED: "one node leads everything",
    E.NOT_ENOUGH_REPLICAS: "who waits for replicas that are not in sync is told timed_out",
}
"""Codes that a single node has no reason to give; no `Reason` that its services raise leads to them."""

HELD = {E.REBALANCE_REQUIRED}
"""Given only while a generation is not durable yet: by a node whose syncs are held."""
NAMED = [(row.name, code) for row in OPERATIONS if row.name != "AUTH" for code in row.errors if code not in NEVER]
PAIRS = [(name, code) for name, code in NAMED if code not in HELD]


@pytest.mark.parametrize(("name", "code"), PAIRS)
def test_every_error_of_every_operation(client: Client, name: str, code: E) -> None:
    told = PROVOKED[code](client, name)
    assert told.startswith(f"ERROR: {code}"), told
    if name != "STREAM":
        client.ok("LIST")  # an error leaves the connection open


@pytest.mark.parametrize("name", [name for name, code in NAMED if code in HELD])
def test_a_member_asks_during_a_rebalance(holding: HoldingNode, name: str) -> None:
    """Nothing is said of the generation that the join begins before it is durable, be it that there is one."""
    group = fresh("group")
    asked = f"{name} topic=plain group={group} member=m generation=1"
    with Client(holding) as joining, Client(holding) as asking, Client(holding) as looking:
        looking.ok(f"REGISTER_GROUP topic=plain group={group}-before")  # the coordinators are there
        with holding.syncs_held():
            joining.send(f"JOIN_GROUP topic=plain group={group} member=m")
            wait_for(lambda: group in looking.ask("LIST_GROUPS"), "the group is there")
            asking.send(asked)
            looking.ok("HELP")  # what was sent before has been looked at
        assert joining.read().decode() == "OK generation=1 member=m assignments=[0 1]"
        assert asking.read().decode().startswith(f"ERROR: {E.REBALANCE_REQUIRED}")
        asking.ok(asked)


def test_fields_that_clients_read(client: Client) -> None:
    assert client.ask("CONSUME plain 0 999") == "ERROR: OFFSET_OUT_OF_RANGE requested=999 earliest=0 latest=5"
    told = client.ask("HEARTBEAT topic=plain group=duo member=m1 generation=9")
    assert told == "ERROR: GEN_MISMATCH current=2 requested=9 group=duo member=m1"
    assert (
        client.ask("APPEND_STREAM topic=events key=z version=5 message=x")
        == "ERROR: version_conflict current=0 expected=5"
    )
    assert (
        client.ask("APPEND_STREAM topic=events key=z version=0 message=x")
        == "ERROR: version_conflict current=0 expected=0"
    )
    assert client.ask("STREAM_VERSION topic=plain key=z") == "ERROR: event_sourcing_not_enabled topic=plain"
    assert client.ask("CONSUME topic=nothing* partition=0 offset=0") == "ERROR: topic_not_found topic=nothing*"


EVERYWHERE_PROVOKED: dict[E, bytes] = {
    E.EMPTY_COMMAND: b"",
    E.UNKNOWN_COMMAND: b"DANCE topic=x",
    E.MALFORMED_INPUT: b"LIST \xff",
    E.DECODE_FAILED: b"\xba\x7c\x00",
    E.UNEXPECTED_ARGUMENT: b"LIST topics please",
    E.DUPLICATE_ARGUMENT: b"METADATA topic=a topic=b",
    E.INVALID_AUTH: b"LIST principal=x",
    E.COMMAND_FAILED: b"JOIN_GROUP topic=plain group=g member=" + b"m" * 300,
}


@pytest.mark.parametrize("code", EVERYWHERE_PROVOKED)
def test_errors_of_any_operation(client: Client, code: E) -> None:
    assert client.ask(EVERYWHERE_PROVOKED[code]).startswith(f"ERROR: {code}")
    client.ok("LIST")


def test_a_frame_beyond_the_limit(client: Client) -> None:
    client.socket.sendall((64 * 1024 * 1024 + 1).to_bytes(4, "big"))
    assert client.read().startswith(b"ERROR: frame_too_large")
    assert client.is_closed()


GUARDED: dict[E, list[str]] = {
    E.AUTHENTICATION_REQUIRED: ["LIST"],
    E.AUTHENTICATION_FAILED: ["AUTH principal=admin token=reader-token"],
    E.NOT_AUTHORIZED_FOR_TOPIC: ["AUTH principal=reader token=reader-token", "PUBLISH topic=open1 message=x"],
    E.NOT_AUTHORIZED_FOR_OPERATION: ["INIT_PRODUCER_ID transactional_id=x principal=reader auth_token=reader-token"],
}


@pytest.mark.parametrize("code", GUARDED)
def test_errors_of_authentication(guarded: ServerProcess, code: E) -> None:
    with Client(guarded) as c:
        *before, last = GUARDED[code]
        for text in before:
            c.ok(text)
        assert c.ask(last).startswith(f"ERROR: {code}")
        if code is E.AUTHENTICATION_FAILED:
            assert c.is_closed()


def covered() -> Iterator[E]:
    yield from (code for _, code in NAMED)
    yield from (*EVERYWHERE_PROVOKED, *GUARDED, *NEVER, E.FRAME_TOO_LARGE)


def test_no_code_is_left_out() -> None:
    assert set(covered()) == set(E)
    assert set(EVERYWHERE) <= set(covered())
