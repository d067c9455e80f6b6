"""One connection and its bytes: cut anywhere, sent ahead, compressed, foreign; streams and who may say what."""

import base64
import gzip
import json
import struct
import threading
import time
from fnmatch import fnmatchcase
from random import Random
from typing import Any

import pytest
from tests.adapters.cursus.drive import Client, batch, frame, wait_for

from braidlog.adapters.cursus.reading import matches
from braidlog.testing.server import ServerProcess
from braidlog.wire.cursus.batch import Batch, BatchRecord, Spelling, read_batch, write_batch

REQUESTS = {
    "positional": b"LIST_OFFSETS topic=plain partition=0",
    "enveloped": b"\x00\x05adminCREATE topic=plain partitions=2",
    "batch": batch("cut", b"one", b"two", key=b"k", event_type="E", metadata="{}"),
    "document batch": batch("cut", b"one", spelling=Spelling.DOCUMENT),
    "gzip": gzip.compress(batch("cut", b"zipped")),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_frame_cut_at_every_byte(prepared: ServerProcess, name: str) -> None:
    data = frame(REQUESTS[name])
    with Client(prepared) as c:
        c.ok("CREATE cut 1")
        for cut in range(1, len(data)):
            c.socket.sendall(data[:cut])
            c.socket.sendall(data[cut:])
            told = c.read()
            assert told.startswith(b"OK") or json.loads(told)["status"] == "OK", (cut, told)


def test_a_thousand_requests_ahead(client: Client) -> None:
    """Appends that wait for the disk and questions that do not: answered in the order they were asked."""
    client.ok("CREATE ahead 1")
    asked = []
    for number in range(1000):
        kind = number % 3
        asked.append(
            (
                batch("ahead", b"%d" % number, first=number + 1),
                f"LIST_OFFSETS topic=plain partition={number % 2}",
                f"METADATA topic=missing{number}",
            )[kind]
        )
    sender = threading.Thread(target=client.send, args=asked)
    sender.start()
    for number in range(1000):
        told = client.read().decode()
        if number % 3 == 0:
            assert json.loads(told)["seq_start"] == number + 1
        elif number % 3 == 1:
            assert f"offsets=P{number % 2}:" in told
        else:
            assert told == f"ERROR: topic_not_found topic=missing{number}"
    sender.join()
    assert [record.payload for record in client.consume("ahead")] == [b"%d" % n for n in range(0, 1000, 3)]


@pytest.mark.parametrize(
    "foreign",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(200),
        b"CRS2\x00\x00\x00\x01",
    ],
    ids=["HTTP", "TLS", "later clients"],
)
def test_other_protocols_are_shown_the_door(client: Client, foreign: bytes) -> None:
    client.socket.sendall(foreign)
    assert client.read().startswith(b"ERROR: frame_too_large")
    assert client.is_closed()
    # Nobody else noticed.


def test_acks_0_is_answered_and_read(client: Client) -> None:
    client.ok("CREATE unasked 1")
    assert client.ack(batch("unasked", b"x", acks="0"))["status"] == "OK"
    wait_for(lambda: client.consume("unasked"), "the record can be read")


def test_a_batch_of_nothing(client: Client) -> None:
    assert client.ack(write_batch(Batch("plain", 0, ()), Spelling.CLIENTS))["last_offset"] == -1
    assert client.ask(write_batch(Batch("nope", 0, ()), Spelling.CLIENTS)).startswith("ERROR: topic_not_found")


def test_the_broker_chooses_partitions(client: Client) -> None:
    client.ok("CREATE chosen 4")
    keys = [b"k%d" % (number % 7) for number in range(40)]
    records = tuple(BatchRecord(b"%d" % n, key) for n, key in enumerate(keys))
    assert client.ack(write_batch(Batch("chosen", -1, records), Spelling.CLIENTS))["status"] == "OK"
    homes: dict[bytes, set[int]] = {}
    for partition in range(4):
        for record in client.consume("chosen", partition):
            homes.setdefault(record.key, set()).add(partition)
    assert sorted(homes) == sorted(set(keys))
    assert all(len(places) == 1 for places in homes.values())
    # A published batch of the same key comes to the same place.
    assert client.ack("PUBLISH topic=chosen key=k1 message=again")["status"] == "OK"
    (home,) = homes[b"k1"]
    assert client.consume("chosen", home)[-1].payload == b"again"
    # Without keys they go round.
    places = {client.ack(f"PUBLISH topic=chosen message={number}")["last_offset"] for number in range(8)}
    assert len(places) > 1


def test_a_batch_that_is_half_led_elsewhere(client: Client) -> None:
    records = tuple(BatchRecord(b"", b"k%d" % n) for n in range(20))
    told = client.ack(write_batch(Batch("half", -1, records), Spelling.CLIENTS))
    assert told["status"] == "PARTIAL"
    assert told["error"].startswith("NOT_LEADER")
    assert told["last_offset"] + 1 == len(client.consume("half")) < 20


def test_patterns(client: Client) -> None:
    """All topics that match are merged into one frame, by offset; offsets are committed and fetched for all of them."""
    for name in ("pat.a", "pat.b", "pat.c"):
        client.ok(f"CREATE topic={name} partitions={3 if name == 'pat.c' else 1}")
    client.ack(batch("pat.b", b"b"))
    client.ack(batch("pat.c", b"c0", b"c1", b"c2"))

    def consume(words: str) -> list[tuple[int, bytes]]:
        client.send(f"CONSUME {words}")
        found = read_batch(client.read())[0]
        assert found.topic == words.split(maxsplit=1)[0].removeprefix("topic=")
        return [(each.offset, each.payload) for each in found.records]

    assert consume("topic=pat.? partition=0 offset=0") == [(0, b"b"), (0, b"c0"), (1, b"c1"), (2, b"c2")]
    assert consume("topic=pat.? partition=0 offset=1") == [(1, b"c1"), (2, b"c2")]
    assert consume("topic=pat.? partition=0 offset=9") == []
    assert consume("topic=p*c partition=2 offset=0") == []
    client.ack(batch("pat.a", b"a0", b"a1", b"a2"))
    # Each has its share of a frame; nothing is beyond the end of a share that is not all there is.
    assert consume("topic=pat.[ac] partition=0 offset=0".replace("[ac]", "*") + " batch=6") == [
        (0, b"a0"), (0, b"b"), (0, b"c0"), (1, b"a1"), (1, b"c1"),
    ]  # fmt: skip
    assert client.ask("CONSUME topic=pat.* partition=9 offset=0").startswith("ERROR: partition_not_found")
    assert client.ask("FETCH_OFFSET topic=pat.* partition=0 group=wild") == "OK offset=0"
    client.ok("COMMIT_OFFSET topic=pat.? partition=0 group=wild offset=1")
    client.ok("COMMIT_OFFSET topic=pat.c partition=0 group=wild offset=2")
    found = [client.ask(f"FETCH_OFFSET topic=pat.{name} partition=0 group=wild") for name in "abc*"]
    assert found == ["OK offset=1", "OK offset=1", "OK offset=2", "OK offset=1"]
    assert client.ask("FETCH_OFFSET topic=nowhere.* partition=0 group=wild").startswith("ERROR: topic_not_found")


def test_an_envelopes_topic_means_nothing(client: Client) -> None:
    for topic in (b"", b"admin", b"orders", b"x" * 255):
        assert client.ask(len(topic).to_bytes(2, "big") + topic + b"LIST_GROUPS").startswith("OK count=")
    assert client.ask(b"\x00\x20orders").startswith("ERROR: malformed_input")


def test_a_topics_name_may_hold_an_equals_sign(client: Client) -> None:
    client.ok("CREATE topic=kind=orders partitions=1")
    client.ack(batch("kind=orders", b"v"))
    assert [record.payload for record in client.consume("kind=orders")] == [b"v"]
    assert "kind=orders" in client.ask("LIST")


def test_a_heartbeat_of_an_old_generation_in_both_spellings(client: Client) -> None:
    client.ok("CREATE beating 1")
    client.ok("JOIN_GROUP beating beats first")
    client.ok("JOIN_GROUP beating beats second")
    assert client.ask("HEARTBEAT beating beats first first 1").startswith("ERROR: REBALANCE_REQUIRED")
    told = client.ask("HEARTBEAT topic=beating group=beats member=first generation=1")
    assert told == "ERROR: GEN_MISMATCH current=2 requested=1 group=beats member=first"


@pytest.mark.parametrize("seed", range(50))
def test_patterns_match_as_they_do_elsewhere(seed: int) -> None:
    random = Random(seed)
    for _ in range(200):
        pattern = "".join(random.choices("ab*?", k=random.randrange(8)))
        name = "".join(random.choices("ab", k=random.randrange(8)))
        assert matches(pattern, name) == fnmatchcase(name, pattern), (seed, pattern, name)


def test_a_retry_with_more_behind_it(client: Client) -> None:
    """The published client sends so when it had no answer for a while: what is known stays once, the rest is stored."""
    client.ok("CREATE retried 1")
    say: dict[str, Any] = {"idempotent": True, "producer": "retrying", "epoch": 3}
    assert client.ack(batch("retried", b"1", b"2", **say))["last_offset"] == 1
    for _ in range(2):  # the second time the log has all of it, in two batches
        assert client.ack(batch("retried", b"1", b"2", b"3", **say))["last_offset"] == 2
    assert client.ack(batch("retried", b"2", b"3", b"4", b"5", first=2, **say))["last_offset"] == 4
    assert client.ack(batch("retried", b"1", b"2", **say))["last_offset"] == 1
    assert [r.payload for r in client.consume("retried")] == [b"1", b"2", b"3", b"4", b"5"]
    assert client.ack(batch("retried", b"7", first=7, **say))["error"].startswith("idempotency_gap")
    for number in range(6, 13):  # more batches than the log remembers of a producer
        client.ack(batch("retried", b"%d" % number, first=number, **say))
    for old in (batch("retried", b"1", b"2", **say), batch("retried", b"4", first=4, **say)):
        told = client.ack(old)
        assert (told["status"], told["last_offset"]) == ("OK", 11)
    assert len(client.consume("retried")) == 12


def test_an_idempotent_batch_is_of_one_mind(client: Client) -> None:
    def say(*records: BatchRecord) -> str:
        return client.ask(write_batch(Batch("plain", 1, records, "1", True, 1, 2), Spelling.CLIENTS))

    one = BatchRecord(b"", sequence=1, producer_id="mind", epoch=1)
    assert "idempotency_gap" in say(one, BatchRecord(b"", sequence=3, producer_id="mind", epoch=1))
    assert say(one, BatchRecord(b"", sequence=2, producer_id="other", epoch=1)).startswith("ERROR: command_failed")
    assert say(BatchRecord(b"", sequence=0, producer_id="mind", epoch=1)).startswith("ERROR: command_failed")
    assert say(BatchRecord(b"", sequence=1, producer_id="", epoch=1)).startswith("ERROR: command_failed")
    # Not idempotent: nothing of it matters, as the published client sends sequences always.
    for _ in range(2):
        assert client.ack(batch("plain", b"", partition=1, first=9, producer="mind", epoch=-5))["status"] == "OK"


def test_epochs_of_producers(client: Client) -> None:
    """A foreign epoch is up to 64 bits wide; what counts is which is higher."""
    client.ok("CREATE epochs 2")
    for epoch in (-(2**63), 5, 1_800_000_000, 2**63 - 1):
        for partition in (0, 1):
            send = batch("epochs", b"a", b"b", idempotent=True, producer="e", epoch=epoch, partition=partition)
            first, again = client.ack(send), client.ack(send)
            assert first == again
            assert (first["status"], first["producer_epoch"]) == ("OK", epoch)
    assert [record.epoch for record in client.consume("epochs")][::2] == [-(2**63), 5, 1_800_000_000, 2**63 - 1]
    fenced = client.ack(batch("epochs", b"c", idempotent=True, producer="e", epoch=2**63 - 2, first=3))
    assert fenced["error"].startswith("stale_producer_epoch")


# -- streams -------------------------------------------------------------------------------------------------------


def test_a_stream_waits_for_what_was_asked_before(client: Client) -> None:
    client.ok("CREATE queue 1")
    asked = [batch("queue", b"%d" % n, first=n + 1) for n in range(20)]
    client.send(*asked, "STREAM topic=queue partition=0 offset=0", "LIST")
    for number in range(20):
        assert json.loads(client.read())["seq_start"] == number + 1
    assert [r.offset for r in read_batch(client.read())[0].records] == list(range(20))
    # What was sent behind it is not answered.
    assert client.read() == b""


def test_a_stream_that_cannot_begin_leaves_the_connection(client: Client) -> None:
    client.send("STREAM topic=nope partition=0 offset=0", "LIST")
    assert client.read().startswith(b"ERROR: topic_not_found")
    assert client.read().startswith(b"OK count=")
    assert client.ask("STREAM topic=plain partition=0 offset=99").startswith("ERROR: OFFSET_OUT_OF_RANGE requested=99")
    assert client.ask("STREAM topic=plain partition=0 isolation=x").startswith("ERROR: invalid_isolation_level")


def test_too_much_behind_a_stream(client: Client) -> None:
    client.send("CONSUME topic=plain partition=0 offset=5 wait_ms=1500", "STREAM topic=plain partition=0 offset=0")
    client.send(*["LIST " + " " * 60_000] * 6)
    while not (told := client.read()).startswith(b"ERROR: decode_failed"):
        assert read_batch(told)
    assert client.is_closed()


def test_a_stream_follows_commits_and_ends_with_its_group(prepared: ServerProcess, client: Client) -> None:
    client.ok("CREATE followed 1")
    client.ack(batch("followed", b"0", b"1", b"2"))
    client.ok("JOIN_GROUP followed trail m")
    client.ok("COMMIT_OFFSET topic=followed partition=0 group=trail offset=1 generation=1 member=m")
    with Client(prepared) as stream:
        stream.send("STREAM topic=followed partition=0 group=trail member=m generation=1")
        assert [r.offset for r in read_batch(stream.read())[0].records] == [1, 2]
        client.ack(batch("followed", b"3"))
        assert [r.offset for r in read_batch(stream.read())[0].records] == [3]
        client.ok("LEAVE_GROUP topic=followed group=trail member=m")
        while not (told := stream.read()):
            pass
        assert told == b"STREAM_CONTROL type=CLOSE reason=removed offset=4"
        assert stream.is_closed()


def test_a_stream_ends_with_its_topic(prepared: ServerProcess, client: Client) -> None:
    client.ok("CREATE brief 1")
    with Client(prepared) as stream:
        stream.send("STREAM topic=brief partition=0 offset=0")
        assert stream.read() == b""
        client.ok("DELETE brief")
        while not (told := stream.read()):
            pass
        assert told == b"STREAM_CONTROL type=CLOSE reason=error offset=0"
        assert stream.is_closed()


def test_a_slow_reader_holds_up_nobody_and_loses_nothing(prepared: ServerProcess, client: Client) -> None:
    client.ok("CREATE heavy 1")
    payload = bytes(100_000)
    for start in range(0, 600, 60):
        client.ack(batch("heavy", *[payload] * 60, first=start + 1))
    before = prepared.resident_bytes()
    with Client(prepared) as stream:
        stream.send("STREAM topic=heavy partition=0 offset=0")
        stream.read_exactly(4)  # it has begun; nothing more is read for now
        client.ok("LIST")
        assert prepared.resident_bytes() - before < 40_000_000, "60 MB wait in the log, not in memory"
        # The first frame's length was read above: find it again by what follows.
        topic = b"heavy"
        head = stream.read_exactly(2 + 2 + len(topic) + 4 + 2 + 17)
        count = struct.unpack(">i", stream.read_exactly(4))[0]
        assert head.startswith(b"\xba\x7c")
        seen = count
        for _ in range(count):
            _skip_record(stream)
        while seen < 600:
            body = stream.read()
            seen += len(read_batch(body)[0].records) if body else 0
    assert seen == 600


def _skip_record(stream: Client) -> None:
    stream.read_exactly(16)
    for _ in range(2):
        stream.read_exactly(struct.unpack(">H", stream.read_exactly(2))[0])
    stream.read_exactly(8)
    stream.read_exactly(struct.unpack(">i", stream.read_exactly(4))[0])
    stream.read_exactly(struct.unpack(">H", stream.read_exactly(2))[0])
    stream.read_exactly(12)
    stream.read_exactly(struct.unpack(">H", stream.read_exactly(2))[0])


def test_a_stopping_server_says_where_to_go_on(braid_server: ServerProcess) -> None:
    with Client(braid_server) as stream:
        stream.ok("CREATE t 1")
        stream.ack(batch("t", b"x"))
        stream.send("STREAM t 0 0")
        assert len(read_batch(stream.read())[0].records) == 1
        stopping = threading.Thread(target=braid_server.stop)
        stopping.start()
        while not (told := stream.read()):
            pass
        assert told == b"STREAM_CONTROL type=CLOSE reason=stopped offset=1"
        stopping.join()


def test_a_long_poll_is_woken(prepared: ServerProcess, client: Client) -> None:
    client.ok("CREATE polled 1")
    client.send("CONSUME topic=polled partition=0 offset=0 wait_ms=30000")
    with Client(prepared) as writer:
        begun = time.monotonic()
        writer.ack(batch("polled", b"x"))
        assert len(read_batch(client.read())[0].records) == 1
    assert time.monotonic() - begun < 20


# -- who may say what ----------------------------------------------------------------------------------------------


def test_credentials_hold_for_one_command(guarded: ServerProcess) -> None:
    admin = "principal=admin auth_token=admin-token"
    with Client(guarded) as c:
        c.ok(f"CREATE topic=open1 partitions=1 {admin}")
        c.ok(f"CREATE topic=closed partitions=1 {admin}")
        assert (
            c.ask("LIST")
            == 'ERROR: authentication_required reason="authentication is required: name a user and show its token"'
        )
        c.ok("AUTH principal=reader token=reader-token")
        assert c.ask("LIST") == "OK count=1 topics=open1"
        assert c.ask(f"LIST {admin}") == "OK count=2 topics=closed,open1"
        assert c.ask("LIST") == "OK count=1 topics=open1"
        assert c.ask("METADATA topic=closed") == "ERROR: topic_not_found topic=closed"
        assert c.ask("PUBLISH topic=open1 message=x") == "ERROR: NOT_AUTHORIZED_FOR_TOPIC topic=open1 operation=write"
        told = c.ask("INIT_PRODUCER_ID transactional_id=x")
        assert (
            told == 'ERROR: NOT_AUTHORIZED_FOR_OPERATION command=INIT_PRODUCER_ID permission="write transactional_id"'
        )
        assert c.consume("*", 0, 0) == ()
        assert c.ask("CONSUME topic=clos* partition=0 offset=0") == "ERROR: topic_not_found topic=clos*"


@pytest.mark.parametrize("text", ["AUTH principal=admin token=x", "LIST principal=admin auth_token=x"])
def test_a_wrong_token_is_answered_late_and_last(guarded: ServerProcess, text: str) -> None:
    with Client(guarded) as c:
        begun = time.monotonic()
        c.send(text, "LIST")
        assert c.read().startswith(
            b'ERROR: authentication_failed reason="authentication failed: no such user, or not its token'
        )
        assert time.monotonic() - begun >= 0.095
        assert c.socket.recv(100) == b""


def test_a_stranger_sends_no_large_frames(guarded: ServerProcess) -> None:
    with Client(guarded) as c:
        c.send(batch("large", bytes(100_000)))
        assert c.read() == b"ERROR: frame_too_large limit=4096"
    with Client(guarded) as c:
        c.ok("AUTH principal=admin token=admin-token")
        c.ok("CREATE large 1")
        assert c.ack(batch("large", bytes(100_000)))["status"] == "OK"
        c.ok("DELETE large")


# -- other doors ---------------------------------------------------------------------------------------------------


def _rustlog(c: Client, **message: object) -> dict[str, Any]:
    c.send(json.dumps(message))
    answer: dict[str, Any] = json.loads(c.read())
    return answer


@pytest.mark.parametrize("idempotent", [False, True])
def test_an_empty_key_is_none(prepared: ServerProcess, client: Client, idempotent: bool) -> None:
    topic = f"keyless-{idempotent}"
    client.ok(f"CREATE {topic} 1")
    client.ack(batch(topic, b"v", idempotent=idempotent, producer=topic))
    with Client(prepared, "rustlog") as other:
        fetched = _rustlog(other, type="Fetch", group_id="", topic=topic, partition=0, offset=0, max_bytes=1000)
    assert "key" not in fetched["records"][0]
    assert client.consume(topic)[0].key == b""


def test_one_topic_two_doors(prepared: ServerProcess, client: Client) -> None:
    client.ok("CREATE doors 1")
    now_ms = time.time_ns() // 1_000_000
    client.ack(
        batch("doors", b"v", key=b"k", event_type="E", schema_version=3, aggregate_version=4, metadata="{}", epoch=-7)
    )
    with Client(prepared, "rustlog") as other:
        fetched = _rustlog(other, type="Fetch", group_id="", topic="doors", partition=0, offset=0, max_bytes=1000)
        (record,) = fetched["records"]
        assert (record["payload"], record["key"]) == ("dg==", "aw==")
        assert abs(record["timestamp"] / 1000 - now_ms) < 60_000
        names = {name: base64.b64decode(value) for name, value in record["headers"]}
        assert names == {
            "eventType": b"E",
            "schemaVersion": b"3",
            "aggregateVersion": b"4",
            "metadata": b"{}",
            "producerId": b"p",
            "epoch": b"-7",
            "seqNum": b"1",
        }
        long_key = base64.b64encode(b"x" * 70_000).decode()
        _rustlog(other, type="Produce", topic="doors", partition=0, records=["dw==", "eA=="], keys=["aw==", long_key])
    back = client.consume("doors")
    assert back[0] == BatchRecord(b"v", b"k", 0, 1, "p", -7, "E", 3, 4, "{}")
    assert back[1] == BatchRecord(b"w", b"k", 1)
    assert len(back) == 2, "a key of 70 000 bytes does not fit this wire"
    assert client.ask("CONSUME doors 0 2").startswith("ERROR: record_too_large")
