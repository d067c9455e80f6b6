"""Both ends of a mayfly connection: bytes in, messages out; messages in, bytes out.

Handles headers and request ids, and decides which faults close a connection. Does not handle: fields (`fields.py`),
services.
Invariants: a peer's bytes never raise. The same bytes, however cut, give the same messages. A length is checked
before the payload is awaited. An answer has its request's id, and may leave in any order.

    version 1   ┌───────────┬───────────┬────────────────┬──────────────┬──────────────────┐
                │ CAFE   2  │ version 1 │ cmd / status 1 │ request id 4 │ payload length 4 │ payload …
                └───────────┴───────────┴────────────────┴──────────────┴──────────────────┘
    version 2   the same, and a thirteenth byte before the payload: the consistency. Answers always have version 1.

| fault | answer | connection |
|---|---|---|
| the magic | none | closes at the first wrong byte |
| the version | UNSUPPORTED_VERSION, request id 0 | closes |
| a payload longer than the connection allows | VALUE_TOO_LARGE | closes |
| a payload longer than its command allows | KEY_TOO_LONG, VALUE_TOO_LARGE or BAD_PAYLOAD | stays; the payload is skipped |
| the command | UNKNOWN_CMD | stays; the payload is skipped |
| a field, the consistency | BAD_PAYLOAD, KEY_TOO_LONG or VALUE_TOO_LARGE | stays |
"""

import struct
from typing import Any, Final, NamedTuple

import msgspec

from braidlog.codec.cursor import Reader
from braidlog.codec.errors import ProtocolError
from braidlog.codec.receive_buffer import Buffer
from braidlog.wire.contract import NEED_DATA, Answered, NeedData, Receiver, Refused
from braidlog.wire.mayfly import fields
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.bursts import read_burst, write_burst
from braidlog.wire.mayfly.fields import KEY, LAYOUTS, VALUE, PayloadError
from braidlog.wire.mayfly.hot import ANSWERS, FIRST, MAGIC, READS, WRITES, Read
from braidlog.wire.mayfly.messages import ANSWER_BYTES_MAX, MANY_BYTES_MAX, Consistency, Status
from braidlog.wire.mayfly.operations import BY_NUMBER, BY_REQUEST, OPERATIONS

NO_ID: Final = 0
"""The request id of an answer without a request. Clients begin with 1."""
HEADER_BYTES: Final = 12
HEADER_2_BYTES: Final = 13
IN_FLIGHT_MAX: Final = 65_536
_VERSIONS: Final = (1, 2)
_STATUSES: Final = frozenset(Status)

_LAYOUT: Final = struct.Struct(">III")
_HEADER: Final = _LAYOUT.unpack_from


class Request(msgspec.Struct, frozen=True, gc=False):
    """A client's request with its id. `consistency`: how many replicas must agree, if its version has the field."""

    id: int
    message: m.Message
    consistency: Consistency = Consistency.QUORUM
    version: int = 1


class Burst(msgspec.Struct, frozen=True):
    """Plain requests of one read, as columns (bursts.py): all of them write, or none does. All have the same version
    and consistency.

    `respond(burst, results)` answers them in one piece, with a result or a message for each.
    """

    kinds: bytes
    """Command numbers."""
    packed_ids: bytes
    """Request ids, four bytes each."""
    keys: list[bytes]
    values: list[bytes]
    """Values of SETs; empty for other writes. Reads have no column of values."""
    ttls: list[int] | None
    """TTLs in seconds; None: no SET has one."""
    consistency: Consistency = Consistency.QUORUM
    version: int = 1

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def mutates(self) -> bool:
        return bool(self.values)

    @property
    def requests(self) -> list[Request]:
        """The requests as separate objects."""
        numbers = struct.unpack(f">{len(self)}I", self.packed_ids)
        said = self.consistency, self.version
        return [Request(number, self.message(row), *said) for row, number in enumerate(numbers)]

    def message(self, row: int) -> m.Message:
        kind: Any = BY_NUMBER[self.kinds[row]].request
        if kind is m.Set:
            return m.Set(self.keys[row], self.values[row], self.ttls[row] if self.ttls else 0)
        return kind(self.keys[row])  # type: ignore[no-any-return]  # all others have only a key


class RefusedFrame(Refused, frozen=True):
    """A frame that is not a valid request. `respond(event, event.answer)` returns its bytes, as for a request."""

    id: int = NO_ID


class Response(msgspec.Struct, frozen=True):
    """A server's answer and its request. None: it came without a request, before the server closes."""

    id: int
    message: m.Message
    request: type[m.Message] | None


class _Row(NamedTuple):
    kind: type[m.Message]
    header_bytes: int
    payload_bytes_max: int
    read: Read | None
    in_bursts: bool


_IN_BURSTS: Final = (m.Get, m.Set, m.Del, m.Incr, m.Decr)


def _rows() -> dict[int, _Row]:
    """Rows by the first four bytes of a header: magic, version and command are checked in one step."""
    rows = {}
    for row in OPERATIONS:
        kind, most = row.request, row.payload_bytes_max
        rows[FIRST | row.number] = _Row(kind, HEADER_BYTES, most, READS.get(kind), kind in _IN_BURSTS)
        rows[FIRST + 0x100 | row.number] = _Row(kind, HEADER_2_BYTES, most, READS.get(kind), kind in _IN_BURSTS)
    return rows


_ROWS: Final = _rows()
_LEVELS: Final = {0: (Consistency.QUORUM, 1)} | {int(level): (level, 2) for level in Consistency}
"""The layout of a header, and its version."""


class ServerConnection(Receiver):
    """The server's end. With `burst_max` over 1, `next_event` also returns bursts of at most that many requests."""

    def __init__(self, *, burst_max: int = 1) -> None:
        super().__init__()
        self.frame_bytes_max = MANY_BYTES_MAX
        """Maximum bytes of a received payload."""
        self._burst_max = burst_max
        self._passing_over = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes that have arrived and do not form a request yet; at least 1 while more of a frame must come."""
        return len(self._inbox) or (1 if self._passing_over else 0)

    def single_frame(self, data: bytes) -> Request | None:
        """Frequent requests of version 1 are on the fast path."""
        if len(data) < HEADER_BYTES:
            return None
        first, request_id, size = _HEADER(data)
        row = _ROWS.get(first)
        if row is None or row.read is None or row.header_bytes != HEADER_BYTES or size != len(data) - HEADER_BYTES:
            return None
        if size > row.payload_bytes_max or size > self.frame_bytes_max:
            return None
        message = row.read(data, HEADER_BYTES, len(data))
        return None if message is None else Request(request_id, message)

    def next_event(self) -> Request | Burst | RefusedFrame | NeedData:
        if self._passing_over and not self._pass_over():
            return NEED_DATA
        data, at = self._inbox.window()
        if len(data) - at < HEADER_BYTES:
            return self._begun(data, at)
        first, request_id, size = _HEADER(data, at)
        row = _ROWS.get(first)
        if row is None or size > row.payload_bytes_max or size > self.frame_bytes_max:
            return self._strange(data, at, request_id, size, row)
        start = at + row.header_bytes
        end = start + size
        if end > len(data):
            return NEED_DATA
        if type(data) is not bytes:
            data, moved = self._inbox.as_bytes()
            at, start, end = moved, moved + start - at, moved + end - at
        if row.in_bursts and self._burst_max > 1 and len(data) - end >= HEADER_BYTES:
            level = 0 if row.header_bytes == HEADER_BYTES else data[start - 1]
            read = read_burst(data, at, self._burst_max, self.frame_bytes_max, level)
            if read[0] > end and level in _LEVELS:
                self._inbox.skip(read[0] - at)
                return Burst(*read[1:], *_LEVELS[level])
        self._inbox.skip(end - at)
        message = None if row.read is None else row.read(data, start, end)
        if message is None or row.header_bytes != HEADER_BYTES:
            return self._read(row, request_id, data, start, end, message)
        return Request(request_id, message)

    def _read(
        self, row: _Row, request_id: int, data: bytes, start: int, end: int, message: m.Message | None
    ) -> Request | RefusedFrame:
        """Read a request by its declaration: rare requests, and invalid ones."""
        try:
            message = fields.read_request(row.kind, data[start:end]) if message is None else message
            if row.header_bytes == HEADER_2_BYTES:
                return Request(request_id, message, _consistency(data[start - 1]), 2)
            return Request(request_id, message)
        except PayloadError as error:
            return self._refuse(error, error.status, request_id, close=False)

    def _begun(self, data: Buffer, at: int) -> RefusedFrame | NeedData:
        """Handle an incomplete header: an invalid first byte is rejected immediately."""
        if self._closed:
            return NEED_DATA
        begun = bytes(data[at : at + 3])
        for place, (actual, expected) in enumerate(zip(begun, b"\xca\xfe", strict=False)):
            if actual != expected:
                return self._refuse(ProtocolError(f"{actual:02X} is not {expected:02X}: this is mayfly", place), None)
        if len(begun) == 3 and begun[2] not in _VERSIONS:
            return self._unsupported(begun[2])
        return NEED_DATA

    def _strange(self, data: Buffer, at: int, request_id: int, size: int, row: _Row | None) -> RefusedFrame | NeedData:
        """Handle an unknown command, or a payload that is too long; its payload is skipped as it arrives."""
        if row is None and ((fault := self._begun(data, at)) is not NEED_DATA):
            return fault
        if size > self.frame_bytes_max:
            text = f"a payload announces {size} bytes, the limit is {self.frame_bytes_max}"
            return self._refuse(ProtocolError(text, 8), Status.VALUE_TOO_LARGE, request_id)
        self._passing_over = (HEADER_2_BYTES if data[at + 2] == 2 else HEADER_BYTES) + size
        self._pass_over()
        if row is None:
            text = f"unknown command 0x{data[at + 3]:02X}"
            return self._refuse(ProtocolError(text, 3), Status.UNKNOWN_CMD, request_id, close=False)
        text = f"{row.kind.__name__} with {size} bytes, the limit is {row.payload_bytes_max}"
        return self._refuse(ProtocolError(text, 8), _too_long(row.kind), request_id, close=False)

    def _pass_over(self) -> bool:
        """Skip a payload; return whether all of it was skipped."""
        size = min(self._passing_over, len(self._inbox))
        self._inbox.skip(size)
        self._passing_over -= size
        return not self._passing_over

    def turn_away(self, reason: str) -> RefusedFrame:
        """Return the error for a client that is not admitted."""
        return self._refuse(ProtocolError(reason), Status.AUTH_FAILED)

    def _unsupported(self, version: int) -> RefusedFrame:
        # Its header layout is unknown, and so is its request id.
        return self._refuse(
            ProtocolError(f"version {version} is not supported, 1 and 2 are", 2), Status.UNSUPPORTED_VERSION
        )

    def _refuse(
        self, error: ProtocolError, status: Status | None, request_id: int = NO_ID, *, close: bool = True
    ) -> RefusedFrame:
        if close:
            self._close()
        answer = None if status is None else m.Failure(status, str(error))
        return RefusedFrame(error, answer, close, request_id)

    def respond(self, request: Request | Burst | RefusedFrame, answer: Any) -> bytes:  # noqa: ANN401 - or a list of answers
        """Return the frames that answer, in any order of requests. Raises ValueError if one is too large."""
        if type(request) is Burst:
            return write_burst(request.packed_ids, answer, write_frame)
        return write_frame(request.id, answer)  # type: ignore[union-attr]  # bursts returned above


class ClientConnection(Answered):
    """The client's end: it stores its open requests by id, because an answer can be read only with its request."""

    def __init__(self, *, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        super().__init__()
        self._in_flight_max = in_flight_max
        self._asked: dict[int, type[m.Message]] = {}
        self._last_id = NO_ID

    def next_id(self) -> int:
        """Return an id without an open request. Ids wrap around and are never 0."""
        while True:
            self._last_id = self._last_id % m.U32_MAX + 1
            if self._last_id not in self._asked:
                return self._last_id

    def request(self, request: Request, *, version: int = 1) -> bytes:
        """Return the bytes of a request; version 1 has no consistency. Raises ValueError if it cannot be sent."""
        if request.id in self._asked or not NO_ID < request.id <= m.U32_MAX:
            raise ValueError(f"{request.id} is not a valid id, or its request is still unanswered")
        if len(self._asked) >= self._in_flight_max:
            raise ValueError(f"{self._in_flight_max} requests are unanswered, which is the limit")
        if version not in _VERSIONS or (version == 1 and request.consistency is not Consistency.QUORUM):
            raise ValueError(f"version {version} cannot express {request.consistency.name}")
        frame = write_request(request, version)
        self._asked[request.id] = type(request.message)
        return frame

    def _next(self) -> Response | NeedData:
        """Return an answer, in the server's order."""
        data, at = self._inbox.window()
        if len(data) - at < HEADER_BYTES:
            if not b"\xca\xfe\x01".startswith(bytes(data[at : at + 3])):
                raise ProtocolError("the server does not speak mayfly, version 1", 0)
            return NEED_DATA
        first, request_id, size = _HEADER(data, at)
        if first & 0xFFFFFF00 != FIRST:
            raise ProtocolError("the server does not speak mayfly, version 1", 0)
        if size > ANSWER_BYTES_MAX:
            raise ProtocolError(f"an answer announces {size} bytes, the limit is {ANSWER_BYTES_MAX}", 8)
        end = at + HEADER_BYTES + size
        if end > len(data):
            return NEED_DATA
        if type(data) is not bytes:
            data, moved = self._inbox.as_bytes()
            at, end = moved, moved + end - at
        self._inbox.skip(end - at)
        asked = self._asked.pop(request_id, None)
        if asked is None and request_id != NO_ID:
            raise ProtocolError(f"an answer to the unknown request {request_id}", 4)
        return Response(request_id, read_answer(asked, first & 0xFF, data, at + HEADER_BYTES, end), asked)


def write_request(request: Request, version: int) -> bytes:
    """Return the bytes of a request."""
    payload = fields.write_request(request.message)
    number = BY_REQUEST[type(request.message)].number
    head = _LAYOUT.pack(MAGIC << 16 | version << 8 | number, request.id, len(payload))
    return head + payload if version == 1 else head + bytes((request.consistency,)) + payload


def read_answer(asked: type[m.Message] | None, status: int, data: bytes, start: int, end: int) -> m.Message:
    if status == Status.OK and asked is not None:
        kind = BY_REQUEST[asked].answer
        read = ANSWERS.get(kind)
        found = None if read is None else read(data, start, end)
        return fields.read_answer(kind, data[start:end]) if found is None else found
    if status == Status.OK or status not in _STATUSES:
        raise ProtocolError(
            f"0x{status:02X} is not a status of an answer to {asked.__name__ if asked else 'nothing'}", 3
        )
    reader = Reader(data[start:end])
    if status == Status.MOVED:
        return fields.read_address(reader)
    if status == Status.TOPOLOGY_CHANGED:
        return m.TopologyChanged(**fields.read_tagged(reader, fields.TAGS[m.TopologyChanged]))
    return m.Failure(Status(status), **fields.read_tagged(reader, fields.TAGS[m.Failure]))


def write_frame(request_id: int, answer: m.Message) -> bytes:
    """Return the frame of one answer."""
    write = WRITES.get(type(answer))
    frame = None if write is None else write(request_id, answer)
    return _declared_frame(request_id, answer) if frame is None else frame


def _declared_frame(request_id: int, answer: m.Message) -> bytes:
    status = Status.OK
    if isinstance(answer, m.Failure | m.TopologyChanged):
        status = answer.status if isinstance(answer, m.Failure) else Status.TOPOLOGY_CHANGED
        payload = fields.write_tagged(answer, fields.TAGS[type(answer)])
    elif isinstance(answer, m.Moved):
        status, payload = Status.MOVED, fields.write_address(answer)
    else:
        payload = fields.write_answer(answer)
    if len(payload) > ANSWER_BYTES_MAX:
        raise ValueError(f"an answer of {len(payload)} bytes does not fit {ANSWER_BYTES_MAX}")
    return _LAYOUT.pack(FIRST | status, request_id, len(payload)) + payload


def _consistency(value: int) -> Consistency:
    try:
        return Consistency(value)
    except ValueError:
        raise PayloadError(f"{value} is not a consistency: use 1 (ONE), 2 (QUORUM) or 3 (ALL)", 12) from None


def _too_long(kind: type[m.Message]) -> Status:
    """Return the status for a payload that exceeds its command's limit."""
    parts = [field for _, field in LAYOUTS[kind]]
    if any(field is VALUE or field.rows for field in parts):
        return Status.VALUE_TOO_LARGE
    return Status.KEY_TOO_LONG if KEY in parts else Status.BAD_PAYLOAD
