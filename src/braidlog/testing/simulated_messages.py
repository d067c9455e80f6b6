"""What nodes and clients of a simulated cluster say to each other, besides the messages of replication and detection."""

from typing import NamedTuple

from braidlog.model.errors import Reason

TOPIC = "t"


class Ping(NamedTuple):
    """Answered by `swim.Pong`."""


class Produce(NamedTuple):
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


class Read(NamedTuple):
    client: int
    number: int
    offset: int


class ReadAnswer(NamedTuple):
    number: int
    watermark: int
    records: tuple[tuple[int, bytes], ...]
    life: int
    """Of the node that answers: its watermark does not go back in one life."""
