"""Batches of a sink that are committed exactly once: braidlog's own messages on Kafka's port. `rows.py` explains the
rows.

Foreign clients do not know them; ApiVersions lists them only for a client that calls itself `braidlog`.
"""

from braidlog.wire.kafka.messages.parts import Outcome, TransactionalProducer
from braidlog.wire.kafka.rows import I64, Bool, Message, Text


class SinkStateResponse(Outcome, frozen=True):
    last_batch: I64 = -1


class CommitBatchRequest(Message, frozen=True):
    sink: Text = ""
    batch_id: I64 = 0
    writer: Text = ""
    stages: list[TransactionalProducer] = []


class CommitBatchResponse(SinkStateResponse, frozen=True):
    already: Bool = False


class AbortBatchRequest(Message, frozen=True):
    sink: Text = ""
    batch_id: I64 = 0
    stages: list[TransactionalProducer] | None = []


class AbortBatchResponse(CommitBatchResponse, frozen=True):
    pass


class SinkStateRequest(Message, frozen=True):
    sink: Text = ""
    writer: Text = ""
