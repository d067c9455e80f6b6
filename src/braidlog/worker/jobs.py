"""The jobs a node gives to its worker process, and what comes back.

Knows: shapes, and how a job travels. Refuses to know: how a job is done (`perform.py`), who runs it.
Invariant: a job says how much memory it may take; its payload is bytes beside it, which are never copied into a message.

    frame    u32 length of the message | u32 length of the payload | message (msgpack) | payload
"""

from collections.abc import Awaitable
from struct import Struct
from typing import Protocol

import msgspec

from braidlog.model.errors import BrokerError, ProtocolError, Reason

Buffer = bytes | bytearray | memoryview

FRAME = Struct(">II")
MESSAGE_BYTES_MAX = 64 * 1024


class CheckRecords(msgspec.Struct, frozen=True, tag=True):
    """Is every record of this batch sound? The payload is the batch, whole and with a CRC that holds."""

    decompressed_bytes_max: int


class ClipRecords(msgspec.Struct, frozen=True, tag=True):
    """Some records of this batch, as an uncompressed batch: those from an offset and a time on, one at least if there is any."""

    start_offset: int
    records_max: int
    bytes_max: int
    decompressed_bytes_max: int
    start_timestamp_ms: int | None = None


Job = CheckRecords | ClipRecords


class Done(msgspec.Struct, frozen=True, tag=True):
    """It went well. What a job gives beside bytes is a number."""

    number: int = 0
    """CheckRecords: what the records take when decompressed. ClipRecords: the offset after those given."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It did not. Without a reason, the bytes were wrong."""

    reason: str | None
    text: str

    def error(self) -> BrokerError | ProtocolError:
        return ProtocolError(self.text) if self.reason is None else BrokerError(Reason[self.reason], self.text)


class Answer(msgspec.Struct, frozen=True):
    number: int
    payload: bytes = b""


class Worker(Protocol):
    """Where jobs are done."""

    def do(self, job: Job, payload: Buffer) -> Awaitable[Answer]:
        """The answer, or what `perform` raises. `BrokerError` with `TIMED_OUT` when it cannot be done now."""
        ...


_encode = msgspec.msgpack.Encoder().encode
read_job = msgspec.msgpack.Decoder(Job).decode
read_outcome = msgspec.msgpack.Decoder(Done | Failed).decode


def frame(message: Job | Done | Failed, payload: Buffer) -> bytes:
    """What goes before the payload."""
    encoded = _encode(message)
    return FRAME.pack(len(encoded), len(payload)) + encoded
