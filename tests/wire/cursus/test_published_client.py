"""The published Python client's own encoders and decoders against ours, where it is installed. No socket is needed."""

from typing import Any

import pytest
from tests.wire.conversation import feed
from tests.wire.cursus.drive import ROWS, asked, say

from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.batch import Batch, BatchRecord, Spelling
from braidlog.wire.cursus.connection import ServerConnection
from braidlog.wire.cursus.failures import Failure
from braidlog.wire.cursus.messages import BATCH

cursus = pytest.importorskip("cursus", reason="pip install cursus-client")
decoder = pytest.importorskip("cursus.protocol.decoder")
encoder = pytest.importorskip("cursus.protocol.encoder")
Builder = pytest.importorskip("cursus.protocol.command").CommandBuilder


def body(name: str, answer: Any) -> bytes:
    return say(ServerConnection(), asked(ROWS[name]), answer)[4:]


def received(text: str, topic: str = "") -> Any:
    data = encoder.encode_message(topic, text)
    (event,) = feed(ServerConnection(), len(data).to_bytes(4, "big") + data)
    assert event.spelling is Spelling.CLIENTS
    return event.message


def test_its_commands_are_read() -> None:
    assert received(Builder.create("t", 2, event_sourcing=True), "admin") == r.Create("t", 2, event_sourcing=True)
    assert received(Builder.consume("t", 1, 5, "m", "g", 3)) == r.Consume("t", 1, 5, "m", "g", 3)
    assert received(Builder.stream("t", 1, "g", "m", 3)) == r.Stream("t", 1, "g", "m", 3)
    assert received(Builder.batch_commit("t", "g", "m", 3, {0: 1, 1: 2})).offsets[1] == r.PartitionOffset(1, 2)
    assert received(Builder.append_stream("t", "k", 1, "E", 1, "p", "a b", '{"x": 1}')).metadata == '{"x": 1}'
    # It writes an event without a type as `event_type=`.
    assert received(Builder.append_stream("t", "k", 1, "", 1, "p", "a b")).event_type == ""


def test_its_batches_are_read() -> None:
    message = cursus.types.Message(0, 1, "häll", "k", "p", 7, "E", 2, 3, "{}")
    data = encoder.encode_batch("t", 1, "-1", True, [message])
    (event,) = feed(ServerConnection(), len(data).to_bytes(4, "big") + data)
    record = BatchRecord("häll".encode(), b"k", 0, 1, "p", 7, "E", 2, 3, "{}")
    assert event.message == Batch("t", 1, (record,), "-1", True, 1, 1)


def test_it_reads_our_answers() -> None:
    record = BatchRecord("häll".encode(), b"k", 9, 1, "p", 7, "E", 2, 3, "{}")
    (message,), topic, partition = decoder.decode_batch(body("CONSUME", Batch("t", 1, (record,))))
    assert (topic, partition, message.offset, message.payload, message.metadata) == ("t", 1, 9, "häll", "{}")
    ack = decoder.decode_ack(body(BATCH, a.Ack("OK", 9, 7, "p", 1, 1)))
    assert (ack.status, ack.last_offset, ack.seq_end) == ("OK", 9, 1)
    assert decoder.decode_offset_response(body("FETCH_OFFSET", a.CommittedOffset(5)).decode()) == 5
    assert decoder.decode_version_response(body("STREAM_VERSION", a.Version(6)).decode()) == 6
    assert decoder.decode_snapshot_response(body("READ_SNAPSHOT", a.SnapshotFound()).decode()) is None
    control = decoder.decode_stream_control(body("STREAM", a.StreamControl("CLOSE", "offset_out_of_range", 1, 1, 5, 9)))
    assert (control.type, control.earliest, control.latest) == ("CLOSE", 5, 9)


def test_it_understands_our_failures() -> None:
    out_of_range = Failure.of("OFFSET_OUT_OF_RANGE", requested=1, earliest=5, latest=9)
    text = body("CONSUME", out_of_range).decode()
    assert decoder.is_offset_out_of_range(text)
    assert decoder.decode_offset_out_of_range(text).earliest == 5
    mismatch = body("HEARTBEAT", Failure.of("GEN_MISMATCH", current=2, requested=1)).decode()
    assert decoder.is_coordinator_failure(mismatch)
    assert decoder.is_offset_regression(body("COMMIT_OFFSET", Failure.of("offset_regression", reason="a b")).decode())
    assert b"NOT_LEADER LEADER_IS h:1" in body("CONSUME", Failure.of("NOT_LEADER", LEADER_IS="h:1"))
    assert decoder.is_terminal_producer_error(a.Ack("ERROR", error="stale_producer_epoch producer=p").error)
