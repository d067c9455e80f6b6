"""What nodes and clients of a simulated cluster say to each other, besides the messages of replication and detection."""

from typing import NamedTuple

from braidlog.cluster.membership import name_of
from braidlog.cluster.metadata.image import Image
from braidlog.model.errors import Reason
from braidlog.replication.assignment import Assignment
from braidlog.replication.messages import Answer, Complaint, CorruptAnswer, Fetch

TOPIC = "t"
Key = tuple[str, int]


def key_of(name: str) -> Key:
    """Of the partition with this name."""
    topic, _, number = name.rpartition("/")
    return topic, int(number)


def assignments(image: Image) -> dict[str, Assignment]:
    """By the partition's name."""
    topic = image.topics.get(TOPIC)
    return {name_of(TOPIC, number): each for number, each in enumerate(topic.assignments if topic else ())}


class ForReplica(NamedTuple):
    """Between the replicas of one partition."""

    name: str
    message: Fetch | Answer | Complaint | CorruptAnswer


class Ping(NamedTuple):
    """Answered by `swim.Pong`."""


class Produce(NamedTuple):
    name: str
    client: int
    number: int
    data: bytes
    needs_all: bool = True
    """acks=all; else the leader's own promise is enough, and a new leader may not keep it."""


class Produced(NamedTuple):
    """`end` is None if it was refused, for `reason`."""

    number: int
    end: int | None
    reason: Reason | None = None


class Delete(NamedTuple):
    """DeleteRecords: the log is to begin at `offset`. Answered by `Produced`, with that offset as its end."""

    name: str
    client: int
    number: int
    offset: int


class Read(NamedTuple):
    name: str
    client: int
    number: int
    offset: int


class ReadAnswer(NamedTuple):
    number: int
    start: int
    watermark: int
    records: tuple[tuple[int, bytes], ...]
    copy: str
    """Which opening of which node's log answers: the watermark of one does not go back."""
