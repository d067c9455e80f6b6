"""The jobs a node gives to its worker process, and what comes back.

Knows: shapes, and how a job travels. Refuses to know: how a job is done (`job_functions.py`), who runs it.
Invariant: a job says how much memory it may take; its payload is bytes beside it, which are never copied into a message. A job
about a file names it, and changes nothing that is in use.

    frame    u32 length of the message | u32 length of the payload | message (msgpack) | payload
"""

from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Protocol, Self

import msgspec

from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault

Buffer = bytes | bytearray | memoryview

FRAME = Struct(">II")
MESSAGE_BYTES_MAX = 64 * 1024
LOW, IDLE = "10", "idle"
"""Priorities of a worker: a niceness, or only what nobody else wants."""


class CheckRecords(msgspec.Struct, frozen=True, tag=True):
    """Is every record of this batch sound? The payload is the batch, whole and with a CRC that holds."""

    decompressed_bytes_max: int
    keyed: bool = False
    """Whether every record must have a key: the topic is compacted."""
    heads: bool = False
    """Whether what the values begin with is asked for; the answer's bytes are its `Heads`."""


class ClipRecords(msgspec.Struct, frozen=True, tag=True):
    """Some records of this batch, as an uncompressed batch: those from an offset and a time on, one at least if there is any."""

    start_offset: int
    records_max: int
    bytes_max: int
    decompressed_bytes_max: int
    start_timestamp_ms: int | None = None


class ScrubSegment(msgspec.Struct, frozen=True, tag=True):
    """Is what the disk has of a closed segment whole? From a place on, about `bytes_max` bytes. Answers with `Scrubbed`."""

    path: str
    base_offset: int
    generation: int
    """Of the file that `position` and `offset` are about; another one is read from its beginning."""
    position: int
    offset: int
    bytes_max: int
    epochs: list[tuple[int, int]]
    """Which epoch wrote from which offset on; none: epochs are not checked."""


class Scrubbed(msgspec.Struct, frozen=True):
    """Where a `ScrubSegment` has come to; at the end of the file if that is so."""

    generation: int
    position: int
    offset: int
    bytes_read: int
    is_end: bool
    damaged: list[int] = []
    """Offsets at which there is no whole batch."""
    fault: str = ""
    """Why the rest could not be read; empty also for a file that is gone, as segments do."""


class RewriteSegments(msgspec.Struct, frozen=True, tag=True):
    """Write the next segment of a compaction beside its place. The payload is its `Plan`
    (`storage/compaction/compaction_merge.py`), the answer
    a `Rewritten`."""

    first: int
    """Which of the plan's segments is the first to be replaced."""


class TurnSegments(msgspec.Struct, frozen=True, tag=True):
    """Make closed segments rows of their topic's table. The payload is a `Plan` (`tables/plan.py`), the answer a `Turned`."""


class CompareSchemas(msgspec.Struct, frozen=True, tag=True):
    """Read a schema, or compare it with earlier ones. The payload is a `Task` of `registry/compatibility.py`, the answer is what
    `Task.answer` returns."""


Job = CheckRecords | ClipRecords | ScrubSegment | RewriteSegments | TurnSegments | CompareSchemas


class Done(msgspec.Struct, frozen=True, tag=True):
    """It went well. What a job gives beside bytes is a number."""

    number: int = 0
    """CheckRecords: what the records take when decompressed. ClipRecords: the offset after those given."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It did not. Without a reason, the bytes were wrong, or the disk failed."""

    reason: str | None
    text: str
    is_fault: bool = False

    def error(self) -> BrokerError | ProtocolError | StorageFault:
        if self.is_fault:
            return StorageFault(self.text)
        return ProtocolError(self.text) if self.reason is None else BrokerError(Reason[self.reason], self.text)


class Answer:
    """What a job gave: a number as `Done` has it, and bytes, which count in the node's memory until whoever asked leaves it.

    Leave it with `with`. One that nobody took, because who asked was gone, is left when it is dropped.
    """

    __slots__ = ("_leave", "number", "payload")

    def __init__(self, number: int, payload: bytes = b"", leave: Callable[[], None] | None = None) -> None:
        self.number = number
        self.payload = payload
        self._leave = leave

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.payload = b""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    def __del__(self) -> None:
        self.__exit__()


class Worker(Protocol):
    """Where jobs are done."""

    def do(self, job: Job, payload: Buffer) -> Awaitable[Answer]:
        """The answer, or what `perform` raises. `BrokerError` with `TIMED_OUT` when it cannot be done now.

        Who asks for bytes leaves the answer when they are used up: no job is begun while too many are in use.
        """
        ...


_encode = msgspec.msgpack.Encoder().encode
read_job = msgspec.msgpack.Decoder(Job).decode
read_scrubbed = msgspec.msgpack.Decoder(Scrubbed).decode
read_outcome = msgspec.msgpack.Decoder(Done | Failed).decode


def frame(message: Job | Done | Failed, payload: Buffer) -> bytes:
    """What goes before the payload."""
    encoded = _encode(message)
    return FRAME.pack(len(encoded), len(payload)) + encoded
