"""Flux over a socket: cut anywhere, pipelined, out of order, spoken to in other languages, beside another dialect."""

import base64
import itertools
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.flux.talk import Talk, fields

from braidlog.testing.server import ServerProcess
from braidlog.wire.flux.partitioner import partition_for_key
from braidlog.wire.flux.records import LINE_BYTES_MAX

_names = itertools.count()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"conversation-{next(_names)}"


@pytest.fixture
def talk(braid_server_shared: ServerProcess) -> Iterator[Talk]:
    with Talk(braid_server_shared.address("flux")) as talk:
        yield talk


def rustlog(server: ServerProcess, message: dict[str, object]) -> dict[str, Any]:
    """One question in the other dialect, framed by hand."""
    payload = json.dumps(message).encode()
    with socket.create_connection(server.address("rustlog"), 60) as connected:
        connected.sendall(struct.pack(">I", len(payload)) + payload)
        stream = connected.makefile("rb")
        (size,) = struct.unpack(">I", stream.read(4))
        answer: dict[str, Any] = json.loads(stream.read(size))
        return answer


def test_lines_cut_at_every_byte(talk: Talk, topic: str) -> None:
    talk.ask("ADMIN_CREATE_TOPIC", f"{topic} 3 1")
    line = f"V1|a|PRODUCE|{topic} user1:created acks=all\r\nV1|b|PING|\nV1|c|NOPE|\nV1|d|CONSUME|{topic} 2 0 max=1\n".encode()
    for cut in range(1, len(line)):
        talk.send(line[:cut])
        talk.send(line[cut:])
        answers = dict(talk.line().split("|")[1:3] for _ in range(4))
        assert answers == {"a": "OK", "b": "OK", "c": "ERR", "d": "OK"}
    assert fields(talk.ask("CONSUME", f"{topic} 2 0 max=1"))["hw"] == str(len(line) - 2)


def test_one_byte_at_a_time(talk: Talk, topic: str) -> None:
    for byte in f"V1|slow|PRODUCE|{topic} user1:created\n".encode():
        talk.send(bytes((byte,)))
    assert talk.line() == "V1|slow|OK|partition=2 offset=0 hw=0"


def test_a_thousand_requests_at_once_are_answered_each_by_its_id(talk: Talk, topic: str) -> None:
    talk.ask("ADMIN_CREATE_TOPIC", f"{topic} 3 1")
    lines = [f"V1|p{number}|PRODUCE|{topic} user1:{number}\nV1|q{number}|PING|\n" for number in range(1000)]
    talk.send("".join(lines).encode())
    answers = dict(talk.line().split("|", 2)[1:] for _ in range(2000))
    assert len(answers) == 2000
    for number in range(1000):
        assert answers[f"q{number}"] == "OK|pong"
        # What is sent in order on one connection is stored in order.
        assert fields(answers[f"p{number}"])["offset"] == str(number)
    stored = fields(talk.ask("CONSUME", f"{topic} 2 0"))["messages"].split(",")
    assert stored == [f"{number}:{number}" for number in range(1000)]


def test_a_thousand_first_uses_of_one_topic_make_it_once(talk: Talk, topic: str) -> None:
    talk.send("".join(f"V1|{number}|PRODUCE|{topic} k{number}:v\n" for number in range(1, 1001)).encode())
    answers = [fields(talk.line().split("|", 2)[2]) for _ in range(1000)]
    places = {(answer["partition"], answer["offset"]) for answer in answers}
    counts = [sum(partition_for_key(f"k{n}".encode(), 3) == p for n in range(1, 1001)) for p in range(3)]
    assert places == {(str(p), str(offset)) for p, count in enumerate(counts) for offset in range(count)}


def test_a_slow_request_holds_back_nobody(talk: Talk, topic: str) -> None:
    assert talk.ask("CONSUME", f"{topic} 2 0") == "OK|messages= hw=-1"
    waiting = talk.begin("CONSUME", f"{topic} 2 0 wait_ms=60000")
    assert talk.ask("PING") == "OK|pong"
    produced = talk.begin("PRODUCE", f"{topic} user1:at-last")
    answers = dict(talk.line().split("|", 2)[1:] for _ in range(2))
    assert answers[produced] == "OK|partition=2 offset=0 hw=0"
    assert answers[waiting] == "OK|messages=0:at-last hw=0"


def test_a_wait_ends_with_nothing(talk: Talk, topic: str) -> None:
    began = time.monotonic()
    assert talk.ask("CONSUME", f"{topic} 0 0 wait_ms=300") == "OK|messages= hw=-1"
    assert time.monotonic() - began >= 0.3


def test_acks_all_waits_for_the_replicas_word_on_the_same_connection(talk: Talk, topic: str) -> None:
    talk.ask("ADMIN_CREATE_TOPIC", f"{topic} 1 2")
    waiting = talk.begin("PRODUCE", f"{topic} k:v acks=all")
    reported = talk.begin("REPLICA_FETCH", f"{topic} 0 1 0")
    answers = dict(talk.line().split("|", 2)[1:] for _ in range(2))
    assert answers[waiting] == "OK|partition=0 offset=0 hw=0"
    assert answers[reported].startswith("OK|replica=1 acked_offset=0 ")


def test_a_client_that_leaves_while_it_waits_disturbs_nobody(braid_server_shared: ServerProcess, topic: str) -> None:
    address = braid_server_shared.address("flux")
    with Talk(address) as gone:
        gone.send("".join(f"V1|{n}|CONSUME|{topic} 0 0 wait_ms=60000\n" for n in range(1, 200)).encode())
        assert gone.ask("PING") == "OK|pong" or gone.line()
    with Talk(address) as talk:
        for key in ("a", "b", "c", "d"):
            assert talk.ask("PRODUCE", f"{topic} {key}:v").startswith("OK|")


def test_http_gets_errors_and_the_connection_stays(talk: Talk) -> None:
    talk.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for _ in range(3):
        assert talk.line().startswith("V1|0|ERR|BAD_REQUEST|")
    assert talk.ask("PING") == "OK|pong"


@pytest.mark.parametrize(
    "greeting",
    [
        bytes.fromhex("16030100c5010000c10303") + bytes(range(192, 224)),
        bytes.fromhex("00000015001200030000000100047465737400"),
        b"\xca\xfe\x01\x04\x00\x00\x00\x00\x00\x00\x00\x01",
    ],
    ids=["TLS ClientHello", "a frame of Kafka", "a frame of Mayfly"],
)
def test_another_protocol_is_told_at_once_and_closed(talk: Talk, greeting: bytes) -> None:
    """None of these has a newline: the answer must not wait for one."""
    began = time.monotonic()
    talk.send(b"V1|a|PING|\n" + greeting)
    assert talk.line() == "V1|a|OK|pong"
    assert talk.line().startswith("V1|0|ERR|BAD_REQUEST|a line begins with")
    assert talk.ended()
    assert time.monotonic() - began < 10


def test_resp_gets_an_error_a_line(talk: Talk) -> None:
    talk.send(b"*1\r\n$4\r\nPING\r\n")
    for _ in range(3):
        assert talk.line().startswith("V1|0|ERR|BAD_REQUEST|")


def test_a_line_of_the_limit_is_kept_and_one_byte_more_closes(talk: Talk, topic: str) -> None:
    head = f"V1|big|PRODUCE|{topic} k:"
    talk.send(head.encode() + b"v" * (LINE_BYTES_MAX - len(head)) + b"\n")
    assert talk.line().startswith("V1|big|OK|")
    partition = partition_for_key(b"k", 3)
    # An answer has more around a value than a request had: what came so close to the limit does not fit back.
    assert "record 0 takes" in talk.ask("CONSUME", f"{topic} {partition} 0")
    talk.ask("PRODUCE", f"{topic} k:{'v' * (LINE_BYTES_MAX - 300)}")
    assert fields(talk.ask("CONSUME", f"{topic} {partition} 1"))["messages"] == "1:" + "v" * (LINE_BYTES_MAX - 300)
    assert "record 1 takes" in talk.ask("CONSUME", f"{topic} {partition} 1 enc=b64")
    talk.send(head.encode() + b"v" * (LINE_BYTES_MAX - len(head) + 1) + b"\n")
    assert talk.line().startswith("V1|0|ERR|BAD_REQUEST|a line has more than")
    assert talk.ended()


def test_more_records_than_a_line_holds_come_one_line_after_the_other(talk: Talk, topic: str) -> None:
    for letter in "abc":
        talk.ask("PRODUCE", f"{topic} user1:{letter * 500_000}")
    seen: list[str] = []
    while len(seen) < 3:
        answer = fields(talk.ask("CONSUME", f"{topic} 2 {len(seen)}"))
        assert answer["hw"] == "2"
        seen += [item.split(":")[1][0] for item in answer["messages"].split(",")]
    assert seen == ["a", "b", "c"]


def test_what_flux_writes_the_other_dialect_reads_with_key_and_time(
    braid_server_shared: ServerProcess, talk: Talk, topic: str
) -> None:
    before = time.time_ns() // 1_000_000
    assert talk.ask("PRODUCE", f"{topic} user1:created") == "OK|partition=2 offset=0 hw=0"
    fetch = {"type": "Fetch", "group_id": "", "topic": topic, "partition": 2, "offset": 0, "max_bytes": 1000}
    (record,) = rustlog(braid_server_shared, fetch)["records"]
    assert base64.b64decode(record["payload"]) == b"created"
    assert base64.b64decode(record["key"]) == b"user1"
    assert before <= record["timestamp"] // 1000 <= time.time_ns() // 1_000_000


def test_what_the_other_dialect_writes_flux_reads_with_its_key(
    braid_server_shared: ServerProcess, talk: Talk, topic: str
) -> None:
    talk.ask("ADMIN_CREATE_TOPIC", f"{topic} 1 1")
    pairs = [(b"k,1", b"a b"), (None, b"plain"), (b"", b"")]
    produce = {
        "type": "Produce",
        "topic": topic,
        "partition": 0,
        "records": [base64.b64encode(value).decode() for _, value in pairs],
        "keys": [None if key is None else base64.b64encode(key).decode() for key, _ in pairs],
    }
    assert rustlog(braid_server_shared, produce)["base_offset"] == 0
    assert talk.ask("CONSUME", f"{topic} 0 0 enc=b64") == "OK|messages=0:aywx:YSBi,1:-:cGxhaW4=,2:: hw=2"
    assert talk.ask("CONSUME", f"{topic} 0 1") == "OK|messages=1:plain,2: hw=2"


def test_a_commit_is_the_next_offset_to_read_in_every_dialect(
    braid_server_shared: ServerProcess, talk: Talk, topic: str
) -> None:
    group = f"group-of-{topic}"
    talk.ask("JOIN", f"{group} {topic} a")
    assert talk.ask("COMMIT", f"{group} {topic} a 2 1 5") == "OK|committed=true"
    question = {"type": "OffsetFetch", "group": group, "topic": topic, "partition": 1}
    assert rustlog(braid_server_shared, question)["offset"] == 5
    commit = {"type": "OffsetCommit", "group": group, "topic": topic, "partition": 1, "offset": 9}
    assert rustlog(braid_server_shared, commit)["success"] is True
    assert talk.ask("OFFSET", f"{group} {topic} 1") == "OK|offset=9"


def test_a_null_value_and_a_null_key(talk: Talk, topic: str) -> None:
    partition = partition_for_key(b"", 3)
    assert talk.ask("PRODUCE", f"{topic} -:- enc=b64") == f"OK|partition={partition} offset=0 hw=0"
    assert talk.ask("CONSUME", f"{topic} {partition} 0 enc=b64") == "OK|messages=0:-:- hw=0"
    assert talk.ask("CONSUME", f"{topic} {partition} 0").startswith("ERR|BAD_REQUEST|record 0 is null")


def test_acks_0_is_stored(talk: Talk, topic: str) -> None:
    assert fields(talk.ask("PRODUCE", f"{topic} user1:a acks=0"))["offset"] == "0"
    assert talk.ask("PRODUCE", f"{topic} user1:b") == "OK|partition=2 offset=1 hw=1"
    assert talk.ask("CONSUME", f"{topic} 2 0") == "OK|messages=0:a,1:b hw=1"


def test_who_is_silent_for_the_session_timeout_loses_its_place(talk: Talk, topic: str) -> None:
    group = f"group-of-{topic}"
    assert talk.ask("JOIN", f"{group} {topic} silent") == "OK|generation=2 assigned=[0 1 2]"
    assert talk.ask("JOIN", f"{group} {topic} talker") == "OK|generation=3 assigned=[1]"
    began = time.monotonic()
    while (answer := talk.ask("HEARTBEAT", f"{group} {topic} talker 3")) == "OK|heartbeat=ok":
        assert time.monotonic() - began < 40, "the silent member is still in"
        talk.ask("CONSUME", f"{topic} 0 0 wait_ms=250")
    assert answer == "ERR|GENERATION_MISMATCH|stale generation"
    assert time.monotonic() - began > 9
    assert talk.ask("JOIN", f"{group} {topic} talker") == "OK|generation=4 assigned=[0 1 2]"
    assert talk.ask("HEARTBEAT", f"{group} {topic} silent 3") == "ERR|GENERATION_MISMATCH|unknown member"
    assert talk.ask("COMMIT", f"{group} {topic} silent 3 0 1") == "ERR|GENERATION_MISMATCH|unknown member"


def test_the_brokers_that_can_be_registered_have_a_limit(braid_server: ServerProcess) -> None:
    with Talk(braid_server.address("flux")) as talk:
        talk.send("".join(f"V1|{n}|ADMIN_REGISTER_BROKER|{n} host {n}\n" for n in range(1, 1002)).encode())
        answers = dict(talk.line().split("|", 2)[1:] for _ in range(1001))
        refused = [number for number, answer in answers.items() if answer.startswith("ERR|UNAVAILABLE|")]
        assert refused == ["1001"]
        everyone = ",".join(map(str, range(1, 1001)))
        assert talk.ask("ADMIN_CREATE_TOPIC", "wide 1 1").startswith("OK|")
        assert talk.ask("ADMIN_SET_PARTITION_LEADER", f"wide 0 1 {everyone}").startswith("OK|topic=wide ")


RULES = """
[[auth.rules]]
principal = "anonymous"
operations = ["read", "write"]

[[auth.rules]]
principal = "anonymous"
operations = ["create"]
topic = "mine-*"
"""


def test_a_topic_is_made_on_first_use_only_by_who_may(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text(RULES, encoding="utf-8")
    with ServerProcess(tmp_path / "data", "--config", str(config)) as server, Talk(server.address("flux")) as talk:
        assert talk.ask("PING") == "OK|pong"
        assert talk.ask("PRODUCE", "mine-1 user1:v") == "OK|partition=2 offset=0 hw=0"
        for command, args in (("PRODUCE", "yours a:b"), ("CONSUME", "yours 0 0"), ("JOIN", "g yours a")):
            assert talk.ask(command, args).startswith("ERR|BAD_REQUEST|"), command
        for command, args in (("SET_PARTITION_ROLE", "mine-1 0 follower"), ("ADMIN_REGISTER_BROKER", "1 host 1")):
            assert "may not administer the cluster" in talk.ask(command, args)
        assert talk.ask("ADMIN_GET_METADATA") == "OK|topics=[mine-1] brokers=[0]"
