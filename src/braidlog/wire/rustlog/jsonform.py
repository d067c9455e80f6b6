"""The JSON form: payload text ⇄ messages, as in the protocol document.

Invariant: a payload becomes a declared message, a `MalformedError` (not JSON: the connection closes) or an
`InvalidError` (JSON, but not a message: the peer gets an error and the connection stays).

msgspec decodes directly into the declared types and skips unknown fields without creating objects, so memory grows
only by a small factor, however many brackets a frame has. Nesting ends at the interpreter's limit with a
`RecursionError` that is caught here. The one open value, `details` of an Error, is checked with `check_json`. A large
request is rejected by its number of commas before it is decoded.
"""

from functools import reduce
from operator import or_
from typing import Annotated, Any, Final

import msgspec

from braidlog.codec.batch.row_layout import Kind, Part
from braidlog.codec.errors import ProtocolError
from braidlog.codec.json_guard import TOKENS_MAX, check_json, error_position
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.operations import OPERATIONS

_BLANKS: Final = b" \t\n\r"
_LARGE_BYTES: Final = 64 * 1024
_DETAILS_BYTES_MAX: Final = 64 * 1024
_FAULT_CHARS_MAX: Final = 300


class MalformedError(ProtocolError):
    """Not UTF-8, not JSON, or not an object. The protocol document closes the connection for it."""


class InvalidError(ProtocolError):
    """An object that is not a message: an unknown type, a missing or invalid field, bad base64."""

    def __init__(self, message: str, request_id: m.Id) -> None:
        super().__init__(message)
        self.request_id = request_id


class _Envelope(msgspec.Struct):
    id: m.Id = None


class _OpenError(m.Message, frozen=True, tag="Error"):
    """An Error whose details are not parsed yet."""

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
        raise MalformedError(f"a request has {values} values, the limit is {TOKENS_MAX}")
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
"""A `FetchedRecord` without headers, as `write` spells it; rows are separated by commas."""


def envelope(answer: m.PackedFetchResponse, request_id: m.Id) -> tuple[bytes, bytes]:
    """Return the bytes before and after the rows of a packed answer."""
    empty = write(m.FetchResponse(records=[], next_offset=answer.next_offset, id=request_id))
    place = empty.index(b"[") + 1
    return empty[:place], empty[place:]


def write(message: msgspec.Struct) -> bytes:
    """Return the payload of a message. Keys have the document's order, without blanks; `id` comes last."""
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError as error:
        raise ValueError(f"{type(message).__name__} cannot be written as JSON: {error}") from error


def with_id(message: m.Message, request_id: m.Id) -> m.Message:
    return message if request_id is None else msgspec.structs.replace(message, id=request_id)


def _check_utf8(payload: bytes) -> None:
    """Check UTF-8: msgspec does not check strings that it skips, but the protocol document requires UTF-8 for the
    whole payload.
    """
    if payload.isascii():
        return
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError("the payload is not UTF-8", error.start) from error


def _closed(error: _OpenError) -> m.Error:
    raw = bytes(error.details)
    if len(raw) > _DETAILS_BYTES_MAX:
        raise InvalidError(f"an Error has {len(raw)} bytes of details, the limit is {_DETAILS_BYTES_MAX}", error.id)
    check_json(raw)
    return m.Error(error.code, error.message, _details.decode(raw), id=error.id)


def _fault(payload: bytes, error: Exception) -> ProtocolError:
    """Classify a payload that cannot be decoded.

    A typed decoder stops at the first invalid field, before it knows whether the rest is JSON. The rest is checked
    here, off the hot path.
    """
    if isinstance(error, RecursionError):
        return MalformedError("the JSON is nested too deep")
    try:
        _any_text.decode(payload)
    except msgspec.DecodeError as fault:
        return MalformedError(str(fault)).at(error_position(payload, fault))
    except RecursionError:
        return MalformedError("the JSON is nested too deep")
    if payload.lstrip(_BLANKS)[:1] != b"{":
        return MalformedError("the JSON is not an object").at(0)
    return InvalidError(str(error)[:_FAULT_CHARS_MAX], _request_id(payload)).at(error_position(payload, error))


def _request_id(payload: bytes) -> m.Id:
    try:
        return _envelopes.decode(payload).id
    except msgspec.DecodeError:
        return None
