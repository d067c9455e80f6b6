"""Intake: a client's own compressed batch, looked into before it is appended.

Knows: how much a request may have decompressed, what of it is done on the loop, whose turn it is. Refuses to know: how a batch is
appended, which client sent it.
Invariants: a request has no more than `bytes_max` decompressed in all, nor a batch more than `ratio_max` times its size; of that
only `HERE_BYTES_MAX` on the loop, the rest by the worker. What a connection sends is appended in the order in which it came,
however long one of its batches takes.
"""

from collections import deque

import msgspec

from braidlog.codec.batch import HEADER_BYTES, BatchHeader
from braidlog.codec.compression import DecompressedTooLarge
from braidlog.codec.records import Heads, check_section, heads_of, read_section
from braidlog.model.errors import BrokerError, ProtocolError, Reason
from braidlog.model.world import Wakeup, World
from braidlog.partition.hosting import Hosting
from braidlog.storage.writing import check_produced
from braidlog.worker.jobs import CheckRecords, Worker

HERE_BYTES_MAX = 1024 * 1024
"""What one request may have decompressed on the loop."""
HERE_COMPRESSED_BYTES_MAX = 256 * 1024
"""A larger payload is not begun on the loop: it may be made of nothing but block headers."""
TURN_SECONDS_MAX = 3600.0
LINE_BYTES_MAX = 64 * 1024 * 1024
"""Of all requests that wait for their turn; more are refused."""

Buffer = bytes | bytearray | memoryview


class DecompressionLimits(msgspec.Struct, frozen=True):
    """What a client may make a node decompress."""

    decompressed_bytes_max: int = 48 * 1024 * 1024
    """By one request. Batches that were stored under a larger limit are still read."""
    decompressed_ratio_max: int = 2000
    """Times its size, of one batch; a few megabytes are free. Gzip can make a thousand bytes of one, zstd thirty thousand."""

    def of(self, compressed_bytes: int) -> int:
        return min(self.decompressed_bytes_max, max(RATIO_FREE_BYTES, compressed_bytes * self.decompressed_ratio_max))


RATIO_FREE_BYTES = 4 * 1024 * 1024


class Allowance:
    """What is left to one request."""

    __slots__ = ("bytes_left", "here_left")

    def __init__(self, limits: DecompressionLimits) -> None:
        self.bytes_left = limits.decompressed_bytes_max
        self.here_left = HERE_BYTES_MAX

    def take(self, size: int, *, here: bool) -> None:
        self.bytes_left -= size
        self.here_left -= size if here else 0


class Intake:
    """The use case."""

    def __init__(self, hosting: Hosting, world: World, worker: Worker, limits: DecompressionLimits) -> None:
        self._hosting = hosting
        self._world = world
        self._worker = worker
        self._limits = limits
        self._turns: dict[object, deque[Wakeup] | None] = {}
        self._line_bytes = 0

    # -- order ---------------------------------------------------------------------------------------------------

    def is_idle(self, source: object) -> bool:
        """Whether everything that `source` sent before is in the log: who appends at once, without a wait, need not `begin`."""
        return source not in self._turns

    def begin(self, source: object) -> bool:
        """Whether everything that `source` sent before is in the log; then `end` must follow. Else it has to `wait`."""
        if source in self._turns:
            return False
        self._turns[source] = None
        return True

    async def wait(self, source: object, size: int) -> None:
        """Until everything that `source` sent before is in the log; then `end` must follow. `size`: the request's bytes."""
        line = self._turns[source]
        if line is None:
            line = self._turns[source] = deque()
        if self._line_bytes + size > LINE_BYTES_MAX and self._line_bytes:
            text = f"{self._line_bytes} bytes of requests wait for their turn, {LINE_BYTES_MAX} may; try again"
            raise BrokerError(Reason.TIMED_OUT, text)
        wakeup = self._world.wakeup()
        line.append(wakeup)
        self._line_bytes += size
        has_come = False
        try:
            has_come = await wakeup.wait(TURN_SECONDS_MAX)
        finally:
            self._line_bytes -= size
            # Whoever leaves (its client is gone) gives its place free, or the turn that it was just given.
            if wakeup in line:
                line.remove(wakeup)
            elif not has_come:
                self.end(source)
        if not has_come:
            raise BrokerError(Reason.TIMED_OUT, f"requests before this one took {TURN_SECONDS_MAX:g} s; try again")

    def end(self, source: object) -> None:
        """What `source` sent is in the log, or refused: the next may."""
        line = self._turns[source]
        if line:
            line.popleft().wake()
        else:
            del self._turns[source]

    # -- what is inside ------------------------------------------------------------------------------------------

    def allowance(self) -> Allowance:
        return Allowance(self._limits)

    async def check(
        self, topic: str, partition: int, batch: Buffer, header: BatchHeader, allowance: Allowance
    ) -> Heads | None:
        """Raise unless a compressed batch is whole and every record in it is sound. What is cheap to see is looked at first.
        Gives what its values begin with, if the topic asks for schemas."""
        hosted = self._hosting.partition(topic, partition)
        hosted.require_leader()
        settings = self._hosting.meta(topic).settings
        check_produced(header, memoryview(batch), 0, settings, records_checked=True)
        keyed, schemas = settings.compact, settings.value_schema_check
        compressed_bytes = header.size_bytes - HEADER_BYTES
        bytes_max = min(self._limits.of(compressed_bytes), allowance.bytes_left)
        if compressed_bytes <= HERE_COMPRESSED_BYTES_MAX and allowance.here_left > 0:
            section = _check_here(batch, header, min(bytes_max, allowance.here_left), keyed=keyed)
            if section is not None:
                allowance.take(len(section), here=True)
                return heads_of(section, header) if schemas else None
        if bytes_max <= 0:
            raise BrokerError(Reason.RECORD_TOO_LARGE, _too_large(self._limits.decompressed_bytes_max))
        with await self._worker.do(CheckRecords(bytes_max, keyed, schemas), batch) as answer:
            allowance.take(answer.number, here=False)
            return msgspec.msgpack.decode(answer.payload, type=Heads) if schemas else None


def _check_here(batch: Buffer, header: BatchHeader, bytes_max: int, *, keyed: bool) -> Buffer | None:
    """The records, decompressed; None if they take more than `bytes_max`."""
    try:
        section = read_section(batch, 0, header, decompressed_bytes_max=bytes_max)
        check_section(section, header, keyed=keyed)
    except DecompressedTooLarge:
        return None
    except ProtocolError as error:
        raise BrokerError(Reason.INVALID_RECORD, str(error)) from error
    return section


def _too_large(bytes_max: int) -> str:
    return f"the batches of this request grow past {bytes_max} bytes when decompressed (limits.decompressed_bytes_max)"
