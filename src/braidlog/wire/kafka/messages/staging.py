"""Batches that count once: messages of our own on Kafka's port.

Knows: rows (`rows.py` says how to read one). Refuses to know: bytes, and what serving a request means.
No foreign client knows these; they are told in ApiVersions to a client that calls itself `braidlog`.
"""

from braidlog.wire.kafka.rows import I16, I64, Bool, Message, Text


class BatchStage(Message, frozen=True):
    """A transaction that is open, as its producer names itself."""

    transactional_id: Text = ""
    producer_id: I64 = 0
    producer_epoch: I16 = 0


class CommitBatchRequest(Message, frozen=True):
    sink: Text = ""
    batch_id: I64 = 0
    writer: Text = ""
    stages: list[BatchStage] = []


class CommitBatchResponse(Message, frozen=True):
    error_code: I16 = 0
    error_message: Text | None = None
    last_batch: I64 = -1
    already: Bool = False


class AbortBatchRequest(Message, frozen=True):
    sink: Text = ""
    batch_id: I64 = 0
    stages: list[BatchStage] | None = []


class AbortBatchResponse(Message, frozen=True):
    error_code: I16 = 0
    error_message: Text | None = None
    last_batch: I64 = -1
    already: Bool = False


class SinkStateRequest(Message, frozen=True):
    sink: Text = ""
    writer: Text = ""


class SinkStateResponse(Message, frozen=True):
    error_code: I16 = 0
    error_message: Text | None = None
    last_batch: I64 = -1
