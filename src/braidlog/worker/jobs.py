"""The jobs that a node sends to its worker process, and their results.

Does not handle: executing jobs (`job_functions.py`), running the process. A job states the maximum memory of its result.
Its payload follows the message, and is never copied into it. A job about a file names it, and does not change files
in use.

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
"""Priority of a worker: a niceness, or idle."""


class CheckRecords(msgspec.Struct, frozen=True, tag=True):
    """Validate every record of a batch. The payload is the whole batch, with a valid CRC."""

    decompressed_bytes_max: int
    keyed: bool = False
    """Whether every record must have a key: the topic is compacted."""
    heads: bool = False
    """Whether to return what the values begin with: the answer's bytes are their `Heads`."""


class ClipRecords(msgspec.Struct, frozen=True, tag=True):
    """Return part of a batch, uncompressed: the records from an offset and a time on, at least one if there is any."""

    start_offset: int
    records_max: int
    bytes_max: int
    decompressed_bytes_max: int
    start_timestamp_ms: int | None = None


class ScrubSegment(msgspec.Struct, frozen=True, tag=True):
    """Verify about `bytes_max` bytes of a closed segment on disk, from a position on. Answers with `Scrubbed`."""

    path: str
    base_offset: int
    generation: int
    """The identity of the file for `position` and `offset`; another file is read from its beginning."""
    position: int
    offset: int
    bytes_max: int
    epochs: list[tuple[int, int]]
    """The start offset of each epoch; empty: epochs are not checked."""


class Scrubbed(msgspec.Struct, frozen=True):
    """How far a `ScrubSegment` has come, and whether it has reached the end of the file."""

    generation: int
    position: int
    offset: int
    bytes_read: int
    is_end: bool
    damaged: list[int] = []
    """Offsets without a whole batch."""
    fault: str = ""
    """Why the rest could not be read; empty also for a removed file, because segments are removed regularly."""


class RewriteSegments(msgspec.Struct, frozen=True, tag=True):
    """Write the next segment of a compaction to a temporary file. The payload is its `Plan`
    (`storage/compaction/compaction_merge.py`), the answer a `Rewritten`."""

    first: int
    """The first of the plan's segments to replace."""


class TurnSegments(msgspec.Struct, frozen=True, tag=True):
    """Export closed segments to their topic's table. The payload is a `Plan` (`tables/plan.py`), the answer a
    `Turned`."""


class CompareSchemas(msgspec.Struct, frozen=True, tag=True):
    """Parse a schema, or compare it with earlier ones. The payload is a `Task` of `registry/compatibility.py`, the
    answer is what `Task.answer` returns."""


Job = CheckRecords | ClipRecords | ScrubSegment | RewriteSegments | TurnSegments | CompareSchemas


class Done(msgspec.Struct, frozen=True, tag=True):
    """The job succeeded. Its result is a number, and bytes that follow the message."""

    number: int = 0
    """CheckRecords: the decompressed size of the records. ClipRecords: the offset after the returned records."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The job failed. Without a reason the bytes were invalid, or the disk failed."""

    reason: str | None
    text: str
    is_fault: bool = False

    def error(self) -> BrokerError | ProtocolError | StorageFault:
        if self.is_fault:
            return StorageFault(self.text)
        return ProtocolError(self.text) if self.reason is None else BrokerError(Reason[self.reason], self.text)


class Answer:
    """The result of a job: a number as in `Done`, and bytes that count in the node's memory until the caller releases
    them.

    Use it in a `with` statement. An answer whose caller was cancelled is released when it is garbage collected.
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
    """Executes jobs."""

    def do(self, job: Job, payload: Buffer) -> Awaitable[Answer]:
        """Return the answer, or raise what `perform` raises. `BrokerError` with `TIMED_OUT` if the job cannot be done
        now.

        The caller must release the answer after use: no job is started while too many bytes are in use.
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
