"""Jobs of the worker process, their results, and the frames between it and the node.

`job_functions.py` runs the jobs. Invariants: a job states how much it may decompress. Its payload follows the message
and is never copied into it. A job about a file names it, and changes no file in use.

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
"""Priorities of a worker: a niceness, or the processor's idle time only."""


class CheckRecords(msgspec.Struct, frozen=True, tag=True):
    """Check every record of a batch. The payload is the complete batch, with a valid CRC."""

    decompressed_bytes_max: int
    keyed: bool = False
    """Whether every record must have a key: the topic is compacted."""
    heads: bool = False
    """Whether to return the first bytes of the values; the answer's payload is then `Heads`."""


class ClipRecords(msgspec.Struct, frozen=True, tag=True):
    """Return records from an offset and a time on, at least one if any exists, as an uncompressed batch."""

    start_offset: int
    records_max: int
    bytes_max: int
    decompressed_bytes_max: int
    start_timestamp_ms: int | None = None


class ScrubSegment(msgspec.Struct, frozen=True, tag=True):
    """Verify about `bytes_max` bytes of a closed segment on the disk, from a position on. Returns `Scrubbed`."""

    path: str
    base_offset: int
    generation: int
    """Generation of the file to which `position` and `offset` apply; another generation is read from its start."""
    position: int
    offset: int
    bytes_max: int
    epochs: list[tuple[int, int]]
    """Epochs and their start offsets; empty: epochs are not checked."""


class Scrubbed(msgspec.Struct, frozen=True):
    """The progress of a `ScrubSegment`."""

    generation: int
    position: int
    offset: int
    bytes_read: int
    is_end: bool
    damaged: list[int] = []
    """Offsets without a valid batch."""
    fault: str = ""
    """Why the rest could not be read; empty for a deleted file: segments are deleted in normal operation."""


class RewriteSegments(msgspec.Struct, frozen=True, tag=True):
    """Write the next segment of a compaction next to the segments it replaces. The payload is a `Plan`
    (`storage/compaction/compaction_merge.py`), the answer a `Rewritten`."""

    first: int
    """Index of the first of the plan's segments to be replaced."""


class TurnSegments(msgspec.Struct, frozen=True, tag=True):
    """Export closed segments to their topic's table. Payload: a `Plan` (`tables/plan.py`); answer: a `Turned`."""


class CompareSchemas(msgspec.Struct, frozen=True, tag=True):
    """Parse a schema, or compare it with earlier ones. The payload is a `Task` of `registry/compatibility.py`; the
    answer is the result of `Task.answer`."""


Job = CheckRecords | ClipRecords | ScrubSegment | RewriteSegments | TurnSegments | CompareSchemas


class Done(msgspec.Struct, frozen=True, tag=True):
    """The job succeeded: its result is a number, and the payload after this message."""

    number: int = 0
    """CheckRecords: the decompressed size. ClipRecords: the offset after the last returned record."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The job failed. Without a reason, the payload was invalid or the disk failed."""

    reason: str | None
    text: str
    is_fault: bool = False

    def error(self) -> BrokerError | ProtocolError | StorageFault:
        if self.is_fault:
            return StorageFault(self.text)
        return ProtocolError(self.text) if self.reason is None else BrokerError(Reason[self.reason], self.text)


class Answer:
    """A job's result: a number (see `Done`), and bytes that count in the node's memory until the caller releases them.

    Release it with `with`. An answer whose caller was cancelled is released when it is garbage collected.
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
    """Runs jobs."""

    def do(self, job: Job, payload: Buffer) -> Awaitable[Answer]:
        """Return the answer. Raises the errors of `perform`, and `BrokerError` TIMED_OUT if the job cannot run now.

        The caller must release the answer: no job starts while too many bytes are in use.
        """
        ...


_encode = msgspec.msgpack.Encoder().encode
read_job = msgspec.msgpack.Decoder(Job).decode
read_scrubbed = msgspec.msgpack.Decoder(Scrubbed).decode
read_outcome = msgspec.msgpack.Decoder(Done | Failed).decode


def frame(message: Job | Done | Failed, payload: Buffer) -> bytes:
    """Return the bytes before the payload."""
    encoded = _encode(message)
    return FRAME.pack(len(encoded), len(payload)) + encoded
