"""Cluster events, drained nodes, backups, node descriptions: braidlog's own messages on Kafka's port. `rows.py`
explains the rows.

Foreign clients do not know them; ApiVersions lists them only for a client that calls itself `braidlog`.
"""

from typing import Annotated

from braidlog.wire.kafka.messages.parts import Outcome
from braidlog.wire.kafka.rows import I32, I64, Bool, Bytes, Message, Text


class ClusterEventsRequest(Message, frozen=True):
    """Return events after this one: the entry of the metadata log, and the event's index in the entry."""

    after_seq: I64 = 0
    after_index: I32 = -1
    since_ms: I64 = 0


class ClusterEvent(Message, frozen=True):
    seq: I64 = 0
    index: I32 = 0
    time_ms: I64 = 0
    event: Text = ""
    node: I32 = -1
    topic: Text | None = None
    partition: I32 = -1
    words: Text = ""


class WeakSlot(Message, frozen=True):
    slot: I32 = 0
    leader: I32 = -1
    leader_epoch: I32 = 0
    replicas: list[I32] = []
    in_sync: list[I32] = []


class UnderReplicatedTopic(Message, frozen=True):
    """A topic with a partition below its replication factor."""

    name: Text = ""
    replication_factor: I32 = 0
    partitions: I32 = 0
    """The number of partitions that lack a replica."""


class ClusterEventsResponse(Outcome, frozen=True):
    draining: list[I32] = []
    """The drained nodes, which must not lead partitions."""
    events: list[ClusterEvent] = []
    slots: Annotated[I32, "0+ tag 0"] = 0
    """The number of key slots; 0 on a single node, or before they are created."""
    weak_slots: Annotated[list[WeakSlot], "0+ tag 1"] = []
    """The key slots that currently lack a leader or an in-sync replica."""
    lacking: Annotated[list[UnderReplicatedTopic], "0+ tag 2"] = []


class DrainNodeRequest(Message, frozen=True):
    node: I32 = 0
    is_draining: Bool = True


class DrainNodeResponse(Outcome, frozen=True):
    pass


class BackupSnapshotRequest(Message, frozen=True):
    """False: the previous snapshot was copied."""

    is_taken: Bool = True


class BackupSnapshotResponse(Outcome, frozen=True):
    path: Text = ""
    """The path on the node's machine."""


class DescribeNodeRequest(Message, frozen=True):
    """Whether to include the node's settings, and the stacks of its threads and tasks."""

    in_full: Bool = False


class DescribeNodeResponse(Outcome, frozen=True):
    version: Text = ""
    description: Bytes = b""
    """A `NodeDescription` of that version as JSON (`model/reporting/node_report.py`)."""
