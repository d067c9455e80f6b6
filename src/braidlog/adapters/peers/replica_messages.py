"""Translates replication messages to partitions of Kafka's Fetch and back.

The fields are listed in ADR 22. Does not handle: connections, sessions, timing.
Invariants: batches keep their bytes. A batch with a wrong checksum raises `ProtocolError`.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, TypeVar

from braidlog.codec.batch.header import iter_batches
from braidlog.replication.messages import (
    Answer,
    Batch,
    Complaint,
    Diverging,
    Fetch,
    Fetched,
    Refusal,
    Refused,
    ResetLog,
)
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages.data import FetchRequestReplicaState, FetchResponseDivergingEpoch
from braidlog.wire.kafka.messages.parts import CurrentLeader
from braidlog.wire.kafka.messages.replicas import (
    ReplicaFetchRequestPartition,
    ReplicaFetchRequestTopic,
    ReplicaFetchResponsePartition,
    ReplicaFetchResponseTopic,
)

Place = tuple[bytes, int]
"""A partition: topic id and partition number."""
P = TypeVar("P", ReplicaFetchRequestPartition, ReplicaFetchResponsePartition)

CODES: Final = {
    Refusal.FENCED_EPOCH: E.FENCED_LEADER_EPOCH,
    Refusal.UNKNOWN_EPOCH: E.UNKNOWN_LEADER_EPOCH,
    Refusal.UNKNOWN_REPLICA: E.STALE_BROKER_EPOCH,
}
_REFUSALS: Final = {int(code): refusal for refusal, code in CODES.items()}
NOTHING: Final = 0
"""The number for "no fetch"."""


class Joined:
    """Consecutive batches, concatenated only when they are sent."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._pieces = [each.records for each in batches if isinstance(each.records, bytes | memoryview)]
        assert len(self._pieces) == len(batches), "batches to send must hold bytes"
        self.size = sum(len(each) for each in self._pieces)
        self.source = None

    def read(self, start: int = 0) -> bytes:
        return b"".join(self._pieces)[start:]


def size_of(answer: Answer) -> int:
    """Size of a response's records."""
    if not isinstance(answer, Fetched):
        return 0
    return sum(len(each.records) for each in answer.batches if isinstance(each.records, bytes | memoryview))


# ── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_question(partition: int, number: int, question: Fetch) -> ReplicaFetchRequestPartition:
    return ReplicaFetchRequestPartition(
        partition,
        current_leader_epoch=question.epoch,
        fetch_offset=question.offset,
        last_fetched_epoch=question.last_epoch,
        log_start_offset=question.start,
        question=number,
        round=question.round,
    )


def write_complaint(partition: int, complaint: Complaint) -> ReplicaFetchRequestPartition:
    return ReplicaFetchRequestPartition(
        partition, current_leader_epoch=complaint.epoch, fetch_offset=-1, complaint=complaint.offset
    )


def read_question(asked: ReplicaFetchRequestPartition, who: FetchRequestReplicaState, leader: int) -> Fetch:
    return Fetch(
        node=who.replica_id,
        incarnation=who.replica_epoch,
        leader=leader,
        epoch=asked.current_leader_epoch,
        offset=asked.fetch_offset,
        last_epoch=asked.last_fetched_epoch,
        start=asked.log_start_offset,
        round=asked.round,
    )


def in_request(asked: Iterable[tuple[Place, ReplicaFetchRequestPartition]]) -> list[ReplicaFetchRequestTopic]:
    return [ReplicaFetchRequestTopic(topic_id, parts) for topic_id, parts in _by_topic(asked)]


def in_response(rows: Iterable[tuple[Place, ReplicaFetchResponsePartition]]) -> list[ReplicaFetchResponseTopic]:
    return [ReplicaFetchResponseTopic(topic_id, parts) for topic_id, parts in _by_topic(rows)]


def _by_topic(rows: Iterable[tuple[Place, P]]) -> Iterable[tuple[bytes, list[P]]]:
    for topic_id, group in groupby(rows, lambda row: row[0][0]):
        yield topic_id, [part for _, part in group]


# ── Answers ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_answer(partition: int, number: int, answer: Answer) -> ReplicaFetchResponsePartition:
    match answer:
        case Fetched():
            return ReplicaFetchResponsePartition(
                partition,
                high_watermark=answer.watermark,
                log_start_offset=answer.start,
                records=Joined(answer.batches) if answer.batches else b"",
                question=number,
                common_end=answer.common_end,
                round=answer.round,
            )
        case Diverging(_, epoch, end):
            return ReplicaFetchResponsePartition(
                partition, diverging_epoch=FetchResponseDivergingEpoch(epoch, end), question=number
            )
        case ResetLog(_, start):
            return ReplicaFetchResponsePartition(
                partition, E.OFFSET_OUT_OF_RANGE, log_start_offset=start, question=number
            )
        case Refused(_, refusal, epoch):
            return ReplicaFetchResponsePartition(
                partition, CODES[refusal], current_leader=CurrentLeader(leader_epoch=epoch), question=number
            )


def read_answer(part: ReplicaFetchResponsePartition, question: Fetch) -> Answer:
    """The response to this fetch. Raises `ProtocolError` if a checksum does not match."""
    if part.error_code == E.OFFSET_OUT_OF_RANGE:
        return ResetLog(question, part.log_start_offset)
    if part.error_code:
        # Any other error: the follower retries later.
        refusal = _REFUSALS.get(part.error_code, Refusal.UNKNOWN_EPOCH)
        return Refused(question, refusal, part.current_leader.leader_epoch)
    if part.diverging_epoch.end_offset >= 0:
        return Diverging(question, part.diverging_epoch.epoch, part.diverging_epoch.end_offset)
    return Fetched(
        question,
        _batches(part.records or b""),
        part.high_watermark,
        part.log_start_offset,
        part.common_end,
        part.round,
    )


def _batches(records: object) -> tuple[Batch, ...]:
    assert isinstance(records, bytes | memoryview)
    return tuple(
        Batch(
            header.base_offset,
            header.next_offset,
            header.leader_epoch,
            bytes(records[at : at + header.size_bytes]),
            is_empty=header.record_count == 0,
        )
        for at, header in iter_batches(records)
    )
