"""Nodes: what happened among them, which are to lead nothing, what a back-up copies, what each says of itself. Messages of our
own on Kafka's port.

Knows: rows (`rows.py` says how to read one). Refuses to know: bytes, and what serving a request means.
No foreign client knows these; they are told in ApiVersions to a client that calls itself `braidlog`.
"""

from typing import Annotated

from braidlog.wire.kafka.messages.parts import Outcome
from braidlog.wire.kafka.rows import I32, I64, Bool, Bytes, Message, Text


class ClusterEventsRequest(Message, frozen=True):
    """What came after this one: the entry of the metadata log, and which of the entry's."""

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


class LackingTopic(Message, frozen=True):
    """A topic of which some partition has fewer replicas than it should have."""

    name: Text = ""
    replication_factor: I32 = 0
    partitions: I32 = 0
    """How many lack a replica."""


class ClusterEventsResponse(Outcome, frozen=True):
    draining: list[I32] = []
    """The nodes that are to lead nothing, now."""
    events: list[ClusterEvent] = []
    slots: Annotated[I32, "0+ tag 0"] = 0
    """How many slots of keys there are; 0: of a lone node, or not made yet."""
    weak_slots: Annotated[list[WeakSlot], "0+ tag 1"] = []
    """Those that lack a leader or an in-sync replica, now."""
    lacking: Annotated[list[LackingTopic], "0+ tag 2"] = []


class DrainNodeRequest(Message, frozen=True):
    node: I32 = 0
    is_draining: Bool = True


class DrainNodeResponse(Outcome, frozen=True):
    pass


class BackupCutRequest(Message, frozen=True):
    """False: the last one was copied."""

    is_taken: Bool = True


class BackupCutResponse(Outcome, frozen=True):
    path: Text = ""
    """On the node's own machine."""


class DescribeNodeRequest(Message, frozen=True):
    """Of the node that is asked. True: with its settings, and where its threads and tasks are."""

    in_full: Bool = False


class DescribeNodeResponse(Outcome, frozen=True):
    version: Text = ""
    description: Bytes = b""
    """JSON, a `NodeDescription` of that version (`model/report.py`)."""
