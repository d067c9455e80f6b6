"""Produce, over services without a socket: what is waited for, and in which order."""

import errno
from collections.abc import Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.adapters.kafka.client import batch_of, produce_of
from tests.broker.node import Node

from braidlog.adapters.kafka.records import produce_requests
from braidlog.adapters.kafka.records.produce_requests import produce
from braidlog.adapters.kafka.records.refused_batches import RefusedBatches
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.routing import Denied
from braidlog.codec.compression import Compression
from braidlog.model.errors import BrokerError, Reason
from braidlog.partition.hosted_log import Role

VERSION = 9


def test_partitions_of_one_request_are_synced_together() -> None:
    """While it waits for the first, the others are synced: not one sync after the other."""
    node = Node()
    for topic in ("a", "b"):
        node.create(topic, 1)
    logs = [node.services.hosting.partition(topic, 0).log for topic in ("a", "b")]
    message = produce_of(("a", 0, batch_of(b"one")), ("b", 0, batch_of(b"two")))
    request: Any = SimpleNamespace(message=message, version=VERSION, parts=4)
    conversation: Any = object()
    with node.runtime.holding_syncs(logs[0]):
        job = node.spawn(produce(RefusedBatches(), request, cast("Services", node.services), conversation, Denied()))
        node.runtime.settle()
        assert not job.is_done
        assert [log.durable_offset for log in logs] == [0, 1]
    answer = job.result()
    assert answer is not None
    assert [each.partition_responses[0].error_code for each in answer.responses] == [0, 0]


SEEDS = 20
STEPS = 60
KINDS = ("plain",) * 6 + (
    "producer", "producer", "gap", "old", "crc", "null", "compressed", "transactional", "absent", "number", "fault", "follow",
    "behind", "denied",
)  # fmt: skip


class Producing:
    """A node, and what it is sent; one of two answers a single batch by the way of many, always."""

    def __init__(self, flush: str) -> None:
        self.node = Node()
        self.node.create("a", 1, settings={"flush": flush, "segment_bytes": 4096})
        self.refused = RefusedBatches()
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    def ask(self, kind: str, records: bytes | None, acks: int) -> Any:
        node, message = (
            self.node,
            produce_of(("b" if kind == "absent" else "a", int(kind == "number"), records), acks=acks),
        )
        hosted = node.services.hosting.partition("a", 0)
        role = Role.FOLLOWER if kind == "follow" else Role.LEADER
        if hosted.role is not role:
            node.disk.fail_at = {}
            node.run(node.services.placement.set_role("a", 0, role))
        if kind == "fault":
            node.disk.fail_at = {len(node.disk.operations) + 1: errno.ENOSPC}
        denied = Denied()
        if kind == "denied":
            denied["a"] = BrokerError(Reason.NOT_AUTHORIZED, "no")
        request: Any = SimpleNamespace(message=message, version=VERSION, parts=2)
        conversation: Any = self
        if kind == "behind":
            assert node.services.intake.begin_batch(conversation)
        found = produce(self.refused, request, cast("Services", node.services), conversation, denied)
        if not isinstance(found, Coroutine):
            assert kind != "behind", "who came before has not written yet"
            return found
        job = node.spawn(found)
        if kind == "behind":
            assert not job.is_done
            node.services.intake.end_batch(conversation)
            node.runtime.settle()
        node.runtime.advance(0)
        return job.result()

    def seen(self) -> Any:
        self.node.runtime.settle()
        hosted, append = self.node.services.hosting.partition("a", 0), self.node.services.append
        told = append.records_written, append.batches_written, append.bytes_written, self.closed
        kept = hosted.high_watermark, hosted.log.durable_offset, hosted.log.unsynced_bytes, hosted.log.image()
        return self.node.values("a"), told, kept, self.refused.following, self.node.runtime.syncs


@pytest.mark.parametrize("flush", ["os", "ack"])
def test_one_batch_is_answered_as_many_are(monkeypatch: pytest.MonkeyPatch, flush: str) -> None:
    at_once = produce_requests._attempt_at_once
    written = 0
    for seed in range(SEEDS):
        chance, twins, sequence = Random(seed), (Producing(flush), Producing(flush)), 0
        for step in range(STEPS):
            kind, acks = chance.choice(KINDS), chance.choice((0, 1, 1, -1, 7))
            acks = 1 if kind == "behind" else acks  # others are refused before they would have to wait
            producer = (-1, -1, -1)
            if kind in ("producer", "fault", "follow"):
                producer = (7, 0, sequence)
            elif kind in ("gap", "old"):
                producer = (7, 0, sequence + 5 if kind == "gap" else max(sequence - 1, 0))
            elif kind == "transactional":
                producer = (8, 0, 0)
            compression = Compression.GZIP if kind == "compressed" else Compression.NONE
            value = chance.randbytes(chance.randrange(100))
            records: bytes | None = batch_of(
                value, compression=compression, producer=producer, transactional=kind == "transactional"
            )
            if kind == "crc":
                records = (records or b"")[:-1] + b"?"
            answers = []
            for twin, patched in zip(twins, (at_once, lambda *_: None), strict=True):
                monkeypatch.setattr(produce_requests, "_attempt_at_once", patched)
                answers.append(twin.ask(kind, None if kind == "null" else records, acks))
            assert answers[0] == answers[1], f"seed {seed}, step {step}: {kind}"
            seen = [twin.seen() for twin in twins]
            assert seen[0] == seen[1], f"seed {seed}, step {step}: {kind}"
            known = twins[0].node.services.hosting.partition("a", 0).log.state.producers.find(7)
            sequence = known.batches[-1].last_sequence + 1 if known is not None else 0
        written += twins[0].node.services.append.batches_written
    assert written > SEEDS, "hardly anything was taken"


@pytest.mark.parametrize(
    ("records", "is_asked_about"),
    [
        (batch_of(b"x"), False),
        (batch_of(b"x", producer=(7, 0, 0)), False),
        (batch_of(b"x", compression=Compression.GZIP), True),
        (batch_of(b"x", producer=(7, 0, 0), transactional=True), True),
    ],
)
def test_one_batch_that_nobody_is_asked_about_is_answered_without_a_coroutine(
    records: bytes, is_asked_about: bool
) -> None:
    """What is compressed has limits and a worker, what is transactional a coordinator: they are asked before it is written."""
    twin = Producing("os")
    request: Any = SimpleNamespace(message=produce_of(("a", 0, records)), version=VERSION, parts=2)
    conversation: Any = twin
    answer = produce(twin.refused, request, cast("Services", twin.node.services), conversation, Denied())
    assert isinstance(answer, Coroutine) is is_asked_about
    if isinstance(answer, Coroutine):
        assert not twin.node.services.append.batches_written
        answer.close()
    else:
        assert answer.responses[0].partition_responses[0].base_offset == 0
