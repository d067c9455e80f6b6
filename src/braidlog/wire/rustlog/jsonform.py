"""The JSON form: payload text ⇄ messages, as the protocol document writes them.

Knows: JSON, and which of its faults end a connection. Refuses to know: frames, the binary form, and who asks.
Invariant: a payload becomes a declared message, a `MalformedError` (the peer does not speak JSON: the connection ends) or an
`InvalidError` (it does, but this is no message: it is told so and goes on).

No document is built of what a peer sends: msgspec decodes straight into the declared types and skips every unknown field without
making objects of it, so a frame grows by a small factor only, however many brackets it has; nesting ends at the interpreter's own
limit, as a `RecursionError` that is caught here. The one open value, `details` of an Error, passes `check_json`. A large
request is refused by its number of commas before time is spent on values that no request can have.
"""

from functools import reduce
from operator import or_
from typing import Annotated, Any, Final

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.codec.jsonguard import TOKENS_MAX, check_json, place_of
from braidlog.codec.layout import Kind, Part
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.operations import OPERATIONS

_BLANKS: Final = b" \t\n\r"
_LARGE_BYTES: Final = 64 * 1024
_DETAILS_BYTES_MAX: Final = 64 * 1024
_FAULT_CHARS_MAX: Final = 300


class MalformedError(ProtocolError):
    """Not UTF-8, not JSON, or not an object. The protocol document ends the connection for it."""


class InvalidError(ProtocolError):
    """An object, but no message of the dialect: an unknown type, a field that is missing or wrong, bad base64."""

    def __init__(self, message: str, request_id: m.Id) -> None:
        super().__init__(message)
        self.request_id = request_id


class _Envelope(msgspec.Struct):
    id: m.Id = None


class _OpenError(m.Message, frozen=True, tag="Error"):
    """An Error whose details are still text."""

    code: Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]
    message: str
    details: msgspec.Raw = msgspec.Raw(b"null")


_encoder: Final = msgspec.json.Encoder()
_requests: Final = msgspec.json.Decoder(reduce(or_, [row.request for row in OPERATIONS]))
_answers: Final = msgspec.json.Decoder(reduce(or_, [row.response for row in OPERATIONS], _OpenError))
_envelopes: Final = msgspec.json.Decoder(_Envelope)
_any_text: Final = msgspec.json.Decoder(msgspec.Raw)
_details: Final = msgspec.json.Decoder(dict[str, Any] | None)


def read_request(payload: bytes) -> m.Message:
    _check_utf8(payload)
    if len(payload) > _LARGE_BYTES and (values := payload.count(b",")) > TOKENS_MAX:
        raise MalformedError(f"a request of {values} values is announced, {TOKENS_MAX} is the limit")
    try:
        request: m.Message = _requests.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _fault(payload, error) from error
    return request


def read_answer(payload: bytes) -> m.Message:
    _check_utf8(payload)
    try:
        answer: m.Message = _answers.decode(payload)
        if isinstance(answer, _OpenError):
            return _closed(answer)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _fault(payload, error) from error
    return answer


RECORD_ROW: Final = (
    Part(Kind.LITERAL, b'{"offset":'),
    Part(Kind.OFFSET_DECIMAL),
    Part(Kind.LITERAL, b',"timestamp":'),
    Part(Kind.MICROS_DECIMAL),
    Part(Kind.LITERAL, b',"payload":'),
    Part(Kind.VALUE_BASE64, b'""'),
    Part(Kind.MAYBE_KEY_BASE64, b',"key":"'),
    Part(Kind.LITERAL, b"}"),
)
"""A `FetchedRecord` without headers, as `write` spells it; commas stand between rows."""


def around(answer: m.PackedFetchResponse, request_id: m.Id) -> tuple[bytes, bytes]:
    """What stands before and after the rows of a packed answer."""
    empty = write(m.FetchResponse(records=[], next_offset=answer.next_offset, id=request_id))
    place = empty.index(b"[") + 1
    return empty[:place], empty[place:]


def write(message: msgspec.Struct) -> bytes:
    """The payload of a message. The order of its keys is the document's, there are no blanks, `id` comes last."""
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError as error:
        raise ValueError(f"{type(message).__name__} cannot be written as JSON: {error}") from error


def with_id(message: m.Message, request_id: m.Id) -> m.Message:
    return message if request_id is None else msgspec.structs.replace(message, id=request_id)


def _check_utf8(payload: bytes) -> None:
    """msgspec does not look into the strings it skips; the protocol document wants the whole payload in UTF-8."""
    if payload.isascii():
        return
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError("the payload is not UTF-8", error.start) from error


def _closed(error: _OpenError) -> m.Error:
    raw = bytes(error.details)
    if len(raw) > _DETAILS_BYTES_MAX:
        raise InvalidError(f"an Error has {len(raw)} bytes of details, {_DETAILS_BYTES_MAX} is the limit", error.id)
    check_json(raw)
    return m.Error(error.code, error.message, _details.decode(raw), id=error.id)


def _fault(payload: bytes, error: Exception) -> ProtocolError:
    """Decide what an undecodable payload is.

    A typed decoder stops at the first wrong field, before it has seen whether the rest is JSON at all; so the rest is looked at
    here, where nothing is hot any more.
    """
    if isinstance(error, RecursionError):
        return MalformedError("the JSON is nested too deep")
    try:
        _any_text.decode(payload)
    except msgspec.DecodeError as fault:
        return MalformedError(str(fault)).at(place_of(payload, fault))
    except RecursionError:
        return MalformedError("the JSON is nested too deep")
    if payload.lstrip(_BLANKS)[:1] != b"{":
        return MalformedError("the JSON is not an object").at(0)
    return InvalidError(str(error)[:_FAULT_CHARS_MAX], _request_id(payload)).at(place_of(payload, error))


def _request_id(payload: bytes) -> m.Id:
    try:
        return _envelopes.decode(payload).id
    except msgspec.DecodeError:
        return None
