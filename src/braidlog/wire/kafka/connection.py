"""Both ends of a Kafka connection: bytes in, messages out; messages in, bytes out.

Handles frames, headers and versions, and decides which faults close a connection. Does not handle: fields
(`messages/`), their encoding (`compiler.py`), services.
Invariant: a peer's bytes never raise. The same bytes, however cut, give the same events. An unsupported version is
never answered in another one, except ApiVersions, which is answered in version 0.

    request     i32 size │ i16 api │ i16 version │ i32 correlation id │ i16-text client id │ tags │ message
    response    i32 size │ i32 correlation id │ tags │ message
                                                       tags: in flexible versions; never in a response to ApiVersions
    token       i32 size │ bytes                       after SaslHandshake 0, until the client is authenticated
"""

import struct
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from braidlog.codec.errors import ProtocolError, TooManyPartsError
from braidlog.codec.receive_buffer import lone_payload
from braidlog.wire.contract import NEED_DATA, Answered, NeedData, Output, Receiver, Refused, Slice
from braidlog.wire.kafka.apis import APIS, BY_KEY, BY_REQUEST, FRAME_BYTES_MAX, OPERATIONS, OWN_CLIENT, Api, Key
from braidlog.wire.kafka.codes import ErrorCode
from braidlog.wire.kafka.compiler import (
    Reader,
    Writer,
    past_tags,
    read_message,
    read_with,
    reader,
    size_of,
    varint,
    write_message,
    write_with,
    writer,
)
from braidlog.wire.kafka.messages.cluster import ApiVersionsResponse, ApiVersionsResponseApi
from braidlog.wire.kafka.messages.data import ProduceRequest
from braidlog.wire.kafka.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from braidlog.wire.kafka.rows import Message, Span, fields_of

RAW: Final = -1
"""The version of a SaslAuthenticate that arrived as a bare token."""

_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhih")
_HEAD: Final = struct.Struct(">Iih")  # the same; API and version in one number
_API: Final = struct.Struct(">hh")
_PLAIN: Final = struct.Struct(">ii")
_TAGGED: Final = struct.Struct(">iix")
_BYTES: Final = frozenset({bytes, bytearray, memoryview})

Served = Mapping[Key, Span]
LARGE_BYTES: Final = 128 * 1024
"""A larger incomplete response is received directly into its own buffer."""
ALL: Final[Served] = {api.key: api.versions for api in OPERATIONS}


def advertised_versions(served: Served, client: str = "") -> list[ApiVersionsResponseApi]:
    """Return the versions of every served API for ApiVersions. Only our own client sees our own APIs."""
    return [
        ApiVersionsResponseApi(int(api.key), api.advertised.first, served[api.key].last)
        for api in (OPERATIONS if client == OWN_CLIENT else APIS)
        if api.key in served
    ]


class Spoken(NamedTuple):
    """The encoding of a request and its response in one version."""

    api: Api
    version: int
    flexible: bool
    request_bytes_max: int
    request_parts_max: int
    read_request: Reader
    write_response: Writer
    response_header: struct.Struct
    """Size and correlation id; in flexible versions an empty tag section, except for ApiVersions' response."""

    @property
    def can_refuse(self) -> bool:
        """Whether the response has an error code for the whole request."""
        return any(each.name == "error_code" and self.version in each.versions for each in fields_of(self.api.response))

    def request_at(self, payload: bytes, at: int) -> tuple[Message, int]:
        """Return the request after a header, and its number of parts. Bytes after it are ignored: some clients send
        them.
        """
        if self.flexible:
            # Header tags: no client sends any, so there is a single zero byte.
            at = at + 1 if payload[at : at + 1] == b"\0" else past_tags(payload, at)
        read, request = self.read_request, self.api.request
        room = [self.request_parts_max, self.request_parts_max]
        message: Message = read_with(read, request, self.version, payload, at, room)[0]
        return message, room[1] - room[0]

    def response_pieces(self, answer: Message) -> list[Any]:
        """Return the pieces of a response. The first is empty and reserved for the header."""
        pieces: list[Any] = [b""]
        write_with(self.write_response, answer, self.version, pieces.append)
        return pieces


_MADE: dict[tuple[type[Message], int], Spoken] = {}


def spoken(api: Api, version: int) -> Spoken:
    """Return the encoding of a version, cached on first use."""
    found = _MADE.get((api.request, version))
    if found is None:
        flexible = api.is_flexible(version)
        found = _MADE[api.request, version] = Spoken(
            api,
            version,
            flexible,
            api.request_bytes_max,
            api.request_parts_max,
            reader(api.request, version, flexible=flexible),
            writer(api.response, version, flexible=flexible),
            _TAGGED if api.response_header_is_flexible(version) else _PLAIN,
        )
    return found


class Request(msgspec.Struct, frozen=True):
    """A client's request."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    message: Any
    parts: int = 0
    """The array items of the message, in total."""

    @property
    def key(self) -> Key:
        return self.api.key


class RefusedRequest(Refused, frozen=True):
    """A frame that is not served. If it has an answer, `respond(event, event.answer)` returns its bytes."""

    correlation_id: int = 0
    spelled: Spoken | None = None
    """The version of its answer; None: ApiVersions in version 0."""


class Response(msgspec.Struct, frozen=True):
    """A server's response."""

    api: Api
    version: int
    correlation_id: int
    message: Any


class ServerConnection(Receiver):
    """The server's end. Answers must leave in the order of the requests: clients match by order, and check by id."""

    def __init__(
        self, served: Served = ALL, frame_bytes_max: int = FRAME_BYTES_MAX, apis: Mapping[int, Api] = BY_KEY
    ) -> None:
        super().__init__()
        self._served = served
        self._apis = apis
        self.frame_bytes_max = frame_bytes_max
        self._takes_tokens = False
        self._met: dict[int, Spoken] = {}  # API and version of requests served before: they are not checked again

    def single_frame(self, data: bytes) -> Request | None:
        payload = lone_payload(data, self.frame_bytes_max)
        if payload is None or self._takes_tokens:
            return None
        try:
            found = self._understand(payload)
        except ProtocolError:
            return None
        return found if type(found) is Request else None

    def next_event(self) -> Request | RefusedRequest | NeedData:
        if self._closed:
            return NEED_DATA
        try:
            payload = self._take()
            if payload is None:
                return NEED_DATA
            return self._token(payload) if self._takes_tokens else self._understand(payload)
        except ProtocolError as error:
            return self._refuse(error)

    def _take(self) -> bytes | None:
        """Return the next frame, None until it is complete. A frame that is too large is rejected by its first bytes."""
        try:
            payload = self._inbox.take_frame(self.frame_bytes_max)
        except ProtocolError as error:
            raise ProtocolError(f"{error}{_guess(self._inbox.peek_u32() or 0)}") from None
        if payload is None:
            self._check_announced()
        return payload

    def _check_announced(self) -> None:
        """Check the size by the API in the frame's first bytes: a request that is too large for its API is not
        awaited.
        """
        size, head = self._inbox.peek_u32(), self._inbox.peek(4, at=4)
        if size is not None and head is not None and not self._takes_tokens:
            key, version = _API.unpack(head)
            self._api(key, version, size)

    def _api(self, key: int, version: int, size: int) -> Api | None:
        """Return the API of a served request; None for an ApiVersions in an unknown version."""
        api = self._apis.get(key)
        if api is None or api.key not in self._served:
            raise ProtocolError(f"API {key} is not served", 4)
        if size > api.request_bytes_max:
            raise ProtocolError(f"a {api.name} announces {size} bytes, the limit is {api.request_bytes_max}", 0)
        if version in self._served[api.key]:
            return api
        if api.key is Key.API_VERSIONS:
            return None
        raise ProtocolError(f"{api.name} is not served in version {version}", 6)

    def _understand(self, payload: bytes) -> Request | RefusedRequest:
        if len(payload) < _HEAD.size:
            raise ProtocolError(f"a request of {len(payload)} bytes is too short for its header", 0)
        number, correlation_id, size = _HEAD.unpack_from(payload)
        found = self._met.get(number)
        if found is None or len(payload) > found.request_bytes_max:
            key, version = _API.unpack_from(payload)
            api = self._api(key, version, len(payload))
            if api is None:
                return self._tell_versions(version, correlation_id)
            found = self._met[number] = spoken(api, version)
        at = _HEAD.size
        client_id = None
        if size >= 0:
            end = at + size
            if end > len(payload):
                raise ProtocolError(f"a client id of {size} bytes does not fit its request", at)
            client_id = payload[at:end].decode("utf-8", "replace")
            at = end
        try:
            return Request(found.api, found.version, correlation_id, client_id, *found.request_at(payload, at))
        except TooManyPartsError as error:
            if not found.can_refuse:
                raise
            answer = found.api.response(error_code=ErrorCode.INVALID_REQUEST)
            return RefusedRequest(error, answer, close=False, correlation_id=correlation_id, spelled=found)

    def _tell_versions(self, version: int, correlation_id: int) -> RefusedRequest:
        error = ProtocolError(f"ApiVersions is not served in version {version}", 6)
        answer = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, advertised_versions(self._served))
        return RefusedRequest(error, answer, close=False, correlation_id=correlation_id)

    def _token(self, payload: bytes) -> Request:
        return Request(BY_KEY[Key.SASL_AUTHENTICATE], RAW, 0, None, SaslAuthenticateRequest(payload))

    def authenticated(self) -> None:
        """The client is authenticated: requests follow, no more tokens."""
        self._takes_tokens = False

    def respond(self, request: Request | RefusedRequest, answer: Message) -> Output:
        """Return the frame that answers a request. Raises ValueError if a value does not fit, or the frame is too
        large.
        """
        if not isinstance(request, Request):
            return _frame(request.correlation_id, answer, request.spelled or spoken(BY_KEY[Key.API_VERSIONS], 0))
        if type(answer) is not request.api.response:
            raise TypeError(f"{type(answer).__name__} does not answer {request.api.name}")
        if request.version == RAW:
            assert isinstance(answer, SaslAuthenticateResponse)
            # A bare token's response cannot hold an error: a client that fails to authenticate is disconnected.
            return _SIZE.pack(len(answer.auth_bytes)) + answer.auth_bytes if not answer.error_code else b""
        if request.version == 0 and isinstance(answer, SaslHandshakeResponse) and not answer.error_code:
            self._takes_tokens = True
        return _frame(request.correlation_id, answer, spoken(request.api, request.version))

    def turn_away(self, reason: str) -> RefusedRequest:
        """Reject a client that is not admitted: Kafka has no message for that, so the connection closes."""
        return self._refuse(ProtocolError(reason))

    def _refuse(self, error: ProtocolError) -> RefusedRequest:
        """Close without an answer, as Kafka does: the protocol has no general error."""
        self._close()
        return RefusedRequest(error, None, close=True)


class _Waiting(msgspec.Struct, frozen=True):
    api: Api
    version: int
    correlation_id: int


class ClientConnection(Answered):
    """The client's end: sends each request in the highest version that both sides support, after `learn` was called."""

    def __init__(
        self,
        client_id: str | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        apis: Mapping[type[Message], Api] = BY_REQUEST,
        *,
        in_order: bool = True,
    ) -> None:
        super().__init__()
        self._apis = apis
        self._client_id = client_id
        self._frame_bytes_max = frame_bytes_max
        self._in_order = in_order
        self._next_id = 0
        self._asked: deque[_Waiting] = deque()
        self._large: bytearray | None = None
        self._large_bytes = 0
        self._versions: dict[int, Span] = {}

    @property
    def next_id(self) -> int:
        """The correlation id of the next request."""
        return self._next_id

    def set_server_versions(self, told: ApiVersionsResponse) -> None:
        """Store the versions that the server supports."""
        self._versions = {each.api_key: Span(each.min_version, each.max_version) for each in told.api_keys}

    def version_of(self, message: type[Message]) -> int:
        """Return the version in which `message` is sent: the highest common one. Raises ValueError if there is none."""
        api = self._apis[message]
        if not self._versions:
            return api.versions.last
        theirs = self._versions.get(api.key)
        if theirs is None or max(theirs.first, api.versions.first) > min(theirs.last, api.versions.last):
            raise ValueError(f"the server and this client have no common version of {api.name}")
        return min(theirs.last, api.versions.last)

    def request(self, message: Message, version: int | None = None) -> bytes:
        """Return the frame of a request. A Produce with `acks` 0 has no response, so none is awaited."""
        return b"".join(self.request_in_pieces(message, version))

    def request_in_pieces(self, message: Message, version: int | None = None) -> list[bytes]:
        """Return the frame in pieces, with the records not copied."""
        api = self._apis[type(message)]
        version = self.version_of(type(message)) if version is None else version
        if version not in api.versions:
            raise ValueError(f"{api.name} has no version {version}")
        correlation_id = self._next_id
        pieces = request_pieces(Request(api, version, correlation_id, self._client_id, message))
        self._next_id = (correlation_id + 1) % 2**31
        if not (isinstance(message, ProduceRequest) and message.acks == 0):
            self._asked.append(_Waiting(api, version, correlation_id))
        return pieces

    def receive_buffer(self) -> memoryview | None:
        """Return the buffer for the rest of a large response, if one has begun: reading into it directly saves two
        copies.

        Call it when `next_event` returned NEED_DATA. Report what was read with `filled`; until the buffer is full,
        nothing else may be received.
        """
        if self._large is None and not self._closed:
            size, held = self._inbox.peek_u32(), len(self._inbox) - _SIZE.size
            if size is not None and LARGE_BYTES <= size <= self._frame_bytes_max and held < size:
                self._large = bytearray(size)
                self._large[:held] = memoryview(self._inbox.take(_SIZE.size + held) or b"")[_SIZE.size :]
                self._large_bytes = held
        return None if self._large is None else memoryview(self._large)[self._large_bytes :]

    def filled(self, size: int) -> None:
        self._large_bytes += size

    def _payload(self) -> bytes | bytearray | None:
        if self._large is None:
            return self._inbox.take_frame(self._frame_bytes_max)
        if self._large_bytes < len(self._large):
            return None
        payload, self._large = self._large, None
        return payload

    def _next(self) -> Response | NeedData:
        payload = self._payload()
        if payload is None:
            return NEED_DATA
        if len(payload) < 4:
            raise ProtocolError(f"a response of {len(payload)} bytes is too short for its header", 0)
        correlation_id = int.from_bytes(payload[:4], "big", signed=True)
        asked = self._answered(correlation_id)
        return read_response(asked.api, asked.version, correlation_id, payload)

    def _answered(self, correlation_id: int) -> _Waiting:
        if self._asked and self._asked[0].correlation_id == correlation_id:
            return self._asked.popleft()
        later = () if self._in_order else self._asked
        found = next((each for each in later if each.correlation_id == correlation_id), None)
        if found is None:
            raise ProtocolError(f"response {correlation_id} does not match the oldest request", 0)
        self._asked.remove(found)
        return found


def request_pieces(request: Request) -> list[bytes]:
    """Return the frame of a request in pieces, records not copied. Raises ValueError if it does not fit a frame."""
    api, version, client_id = request.api, request.version, request.client_id
    name = None if client_id is None else client_id.encode()
    out: list[Any] = [_HEADER.pack(api.key, version, request.correlation_id, -1 if name is None else len(name))]
    if name:
        out.append(name)
    flexible = api.is_flexible(version)
    if flexible:
        out.append(varint(0))
    write_message(request.message, version, out.append, flexible=flexible)
    size = sum(map(size_of, out))
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a {api.name} of {size} bytes does not fit a frame of {FRAME_BYTES_MAX}")
    return [_SIZE.pack(size), *out]


def read_response(api: Api, version: int, correlation_id: int, payload: bytes | bytearray) -> Response:
    """Parse the response to a request of that version. An ApiVersions in a version unknown to the server gives
    version 0.
    """
    if api.key is Key.API_VERSIONS and payload[4:6] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big"):
        version = 0
    at = past_tags(payload, 4) if api.response_header_is_flexible(version) else 4
    message, _ = read_message(api.response, version, payload, at, flexible=api.is_flexible(version))
    return Response(api, version, correlation_id, message)


def _frame(correlation_id: int, answer: Message, spelled: Spoken) -> Output:
    """Join the pieces of a response, except file slices, which stay as they are."""
    pieces = spelled.response_pieces(answer)
    slices = not _BYTES.issuperset(map(type, pieces))
    gathered = _gathered(pieces) if slices else pieces
    size = sum(map(size_of if slices else len, gathered))
    size += spelled.response_header.size - _SIZE.size
    if size > 2**31 - 1:
        raise ValueError(f"a response of {size} bytes does not fit a frame")
    gathered[0] = spelled.response_header.pack(size, correlation_id) + gathered[0]
    return gathered if slices else b"".join(gathered)


def _gathered(pieces: list[Any]) -> list[Any]:
    """Join adjacent bytes; the first piece is always bytes, file slices stay separate."""
    gathered: list[bytes | Slice] = []
    run: list[Any] = []
    for piece in pieces:
        if type(piece) in _BYTES:
            run.append(piece)
            continue
        gathered.append(b"".join(run))
        gathered.append(piece)
        run = []
    if run:
        gathered.append(b"".join(run))
    return gathered


def _guess(size: int) -> str:
    """Describe the likely protocol of a client that does not speak Kafka, for the log."""
    first = size.to_bytes(4, "big")
    if first[:2] == b"\x16\x03":
        return ": this is TLS, and this listener does not use it"
    return f": {first.decode()!r} is not a length" if first.isalpha() or first in (b"GET ", b"PUT ") else ""
