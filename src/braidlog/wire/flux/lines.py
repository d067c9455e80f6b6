"""One line of flux, taken apart and put together.

Knows: the envelope, and how the table's arguments and payloads stand in it. Refuses to know: connections, what was asked before.
Invariant: `read_request` never raises, whatever the line; what `write_request` gives, `read_request` takes back as the
same message; no line that is written holds a newline, or is longer than a line may be.

    request     V1|<correlation_id>|<command>|<args>
    success     V1|<correlation_id>|OK            V1|<correlation_id>|OK|<payload>
    error       V1|<correlation_id>|ERR|<code>|<message>
"""

import re
from typing import Any, Final

from braidlog.codec.errors import ProtocolError
from braidlog.model.limits import TOPIC_NAME_CHARS_MAX
from braidlog.wire.contract import Refused
from braidlog.wire.flux.messages import (
    Acks,
    Answer,
    Consume,
    Consumed,
    Encoding,
    ErrorCode,
    Failed,
    Produce,
    Produced,
    Request,
    Response,
)
from braidlog.wire.flux.operations import BY_COMMAND, BY_REQUEST, Argument, Operation, Place
from braidlog.wire.flux.records import LINE_BYTES_MAX, read_messages, write_messages
from braidlog.wire.flux.tokens import KEY_BYTES_MAX, PAIR, shown, write_pair

VERSION: Final = b"V1"

NO_ID: Final = "0"
"""Seed, Response Format: the id in the answer to a line whose own id could not be read. No request of ours may have it."""

CORRELATION_ID_BYTES_MAX: Final = 256
"""An answer repeats the id, and has to fit a line with it."""

ERROR_CHARS_MAX: Final = 500
_FIELDS_MAX = 64
_ARGUMENTS_MAX = max(len(operation.arguments) for operation in BY_COMMAND.values())

# A list is the one value with blanks in it. No item of a list has a bracket or an equals sign, so a name that begins with a
# bracket, such as the host `[::1]`, cannot be mistaken for the beginning of one.
_FIELD = re.compile(rb"([a-z_]+)=(\[[^\[\]=]*\]|[^ ]*)(?: +|$)")
_CODE = re.compile(r"[A-Z_]{1,64}")

_ACKS_WORDS: Final = {b"acks=" + acks.encode(): acks for acks in Acks}


# --- requests ---------------------------------------------------------------------------------------------------------------


def read_request(line: bytes) -> Request | Refused:
    """The request on a line (without its newline), or the refusal that answers it. No refusal here closes the connection.

    protocols.md: the line is split at three bars at most, so a bar is legal inside args (the seed's "exactly four sections" would
    forbid it). A carriage return before the newline is a blank after the last argument, and so is no part of it.
    """
    parts = line.split(b"|", 3)
    if len(parts) != 4:
        return refusal(
            NO_ID, ErrorCode.BAD_REQUEST, f"a request has four fields between bars, this one has {len(parts)}"
        )
    version, word, command, args = parts
    try:
        correlation_id = word.decode("utf-8")
    except UnicodeDecodeError:
        return refusal(NO_ID, ErrorCode.BAD_REQUEST, "the correlation id is not UTF-8")
    if fault := _envelope_fault(version, word, command):
        return refusal(NO_ID, ErrorCode.BAD_REQUEST, fault)
    operation = BY_COMMAND.get(command) or BY_COMMAND.get(
        command.upper()
    )  # protocols.md: commands are case-insensitive
    if operation is None:
        return refusal(correlation_id, ErrorCode.UNKNOWN_COMMAND, f"unsupported command {shown(command)}")
    try:
        if operation.request is Produce and (request := read_produce(correlation_id, args)) is not None:
            return request
        return read_arguments(operation, correlation_id, args)
    except ProtocolError as error:
        return refusal(correlation_id, ErrorCode.BAD_REQUEST, str(error), error)


def _envelope_fault(version: bytes, correlation_id: bytes, command: bytes) -> str | None:
    if version != VERSION:
        return f"protocol version must be V1, not {shown(version)}"
    if not 1 <= len(correlation_id) <= CORRELATION_ID_BYTES_MAX:
        return f"a correlation id has 1 to {CORRELATION_ID_BYTES_MAX} bytes, this one has {len(correlation_id)}"
    return None if command else "the command is empty"


def refusal(
    correlation_id: str, code: ErrorCode, message: str, error: ProtocolError | None = None, *, close: bool = False
) -> Refused:
    return Refused(error or ProtocolError(message), Response(correlation_id, Failed(code, message)), close)


def read_produce(correlation_id: str, args: bytes) -> Produce | None:
    """PRODUCE in its usual forms, `topic key:value` with or without `acks=`; None for any other, which the table then reads.

    The hot request, by hand: a test holds it equal to `read_arguments`.
    """
    words = args.split(None, 3)
    acks: Acks | None = Acks.LEADER
    if len(words) == 3:
        acks = _ACKS_WORDS.get(words[2])
    if acks is None or not 2 <= len(words) <= 3:
        return None
    topic = words[0]
    key, colon, value = words[1].partition(b":")
    if not colon or len(topic) > TOPIC_NAME_CHARS_MAX or len(key) > KEY_BYTES_MAX or not topic.isascii():
        return None
    name = topic.decode()
    return Produce(correlation_id, name, key, value, acks) if name.isprintable() else None


def read_arguments(operation: Operation, correlation_id: str, args: bytes) -> Request:
    """The request that a command's arguments make; ProtocolError in words for the peer."""
    words = args.split(None, _ARGUMENTS_MAX + 1)  # one more than any command has: enough to see that there are too many
    required = operation.placed(Place.REQUIRED)
    if len(words) < len(required):
        raise ProtocolError(_usage(operation))
    values: dict[str, Any] = {}
    for argument, word in zip(required, words, strict=False):
        values[argument.field] = _read_word(operation, argument, word)
    rest = words[len(required) :]
    for argument in operation.placed(Place.OPTIONAL):
        if rest and b"=" not in rest[0]:
            values[argument.field] = _read_word(operation, argument, rest.pop(0))
    options = {argument.word.encode(): argument for argument in operation.placed(Place.OPTION)}
    for word in rest:
        option, equals, value = word.partition(b"=")
        if not equals or option not in options:  # no option, an unknown one, or one given twice
            raise ProtocolError(f"{shown(word)} is too much; {_usage(operation)}")
        argument = options.pop(option)
        values[argument.field] = _read_word(operation, argument, value)
    return (operation.build or operation.request)(correlation_id, **values)


def _usage(operation: Operation) -> str:
    if not operation.arguments:
        return f"{operation.command} requires no arguments"
    hint = "; what has blanks is sent with enc=b64" if operation.request is Produce else ""
    return f"{operation.command} requires: {operation.syntax}{hint}"


def _read_word(operation: Operation, argument: Argument, word: bytes) -> Any:  # noqa: ANN401 - the type is the kind's
    try:
        return argument.kind.read(word)
    except ProtocolError as error:
        raise ProtocolError(f"{operation.command}: {argument.word}: {error}") from error


def write_request(request: Request) -> bytes:
    """The line that asks it, newline included; ValueError for a message that the dialect cannot say."""
    operation = BY_REQUEST[type(request)]
    words = [_write_argument(request, argument) for argument in operation.placed(Place.REQUIRED)]
    for argument in operation.placed(Place.OPTIONAL) + operation.placed(Place.OPTION):
        value = getattr(request, argument.field)
        if value == _default(operation.request, argument.field):
            continue
        prefix = argument.word.encode() + b"=" if argument.place is Place.OPTION else b""
        words.append(prefix + argument.kind.write(value))
    word = request.correlation_id.encode("utf-8")
    if not 1 <= len(word) <= CORRELATION_ID_BYTES_MAX or b"|" in word or b"\n" in word or word == NO_ID.encode():
        raise ValueError(f"{request.correlation_id[:40]!r} cannot be a correlation id")
    return _line(b"%b|%b|%b|%b" % (VERSION, word, operation.command.encode(), b" ".join(words)))


def _write_argument(request: Request, argument: Argument) -> bytes:
    if isinstance(request, Produce) and argument.kind is PAIR:
        return write_pair(request.key, request.value, base64=request.encoding is Encoding.BASE64)
    return argument.kind.write(getattr(request, argument.field))


def _default(request: type[Request], field: str) -> object:
    names = request.__struct_fields__
    return request.__struct_defaults__[names.index(field) - len(names)]


def _line(text: bytes) -> bytes:
    if len(text) > LINE_BYTES_MAX:
        raise ValueError(f"a line of {len(text)} bytes is too long, {LINE_BYTES_MAX} is the limit")
    return text + b"\n"


# --- answers ----------------------------------------------------------------------------------------------------------------


def write_response(request: Request, answer: Answer) -> bytes:
    """The line that answers a request, newline included. ValueError if the answer is not one to this request, or too long."""
    word = request.correlation_id.encode("utf-8")
    if isinstance(answer, Produced) and isinstance(
        request, Produce
    ):  # the hot answer; a test holds it equal to the table's
        return b"V1|%b|OK|partition=%d offset=%d hw=%d\n" % (
            word,
            answer.partition,
            answer.offset,
            answer.high_watermark,
        )
    if isinstance(answer, Failed):
        return write_error(request.correlation_id, answer)
    operation = BY_REQUEST[type(request)]
    if type(answer) is not operation.answer:
        raise ValueError(f"{type(answer).__name__} does not answer {operation.command}")
    payload = write_messages(request, answer) if isinstance(answer, Consumed) and isinstance(request, Consume) else None
    if isinstance(payload, Failed):
        return write_error(request.correlation_id, payload)
    return _line(b"V1|%b|OK|%b" % (word, payload if payload is not None else write_payload(operation, answer)))


def write_payload(operation: Operation, answer: Answer) -> bytes:
    """`word=value word=value`, in the table's order."""
    if operation.text:
        return operation.text.encode()
    return b" ".join(
        [
            b"%b=%b" % (part.word.encode(), part.kind.write(getattr(answer, part.field, None)))
            for part in operation.payload
        ]
    )


def write_error(correlation_id: str, failed: Failed) -> bytes:
    """An error's line. Its message is made fit for one: printable, and not long."""
    if not _CODE.fullmatch(failed.code):
        raise ValueError(f"{failed.code[:40]!r} cannot be an error code")
    message = failed.message[:ERROR_CHARS_MAX]
    if not message.isprintable():
        message = "".join(letter if letter.isprintable() else " " for letter in message)
    return _line(b"V1|%b|ERR|%b|%b" % (correlation_id.encode(), failed.code.encode(), message.encode()))


def read_envelope(line: bytes) -> tuple[str, bytes, bytes]:
    """Id, status and the rest of an answer's line; ProtocolError if it is none."""
    parts = line.removesuffix(b"\r").split(b"|", 3)
    if len(parts) < 3 or parts[0] != VERSION or parts[2] not in (b"OK", b"ERR"):
        raise ProtocolError(f"{shown(line)} is not an answer")
    if not 1 <= len(parts[1]) <= CORRELATION_ID_BYTES_MAX:
        raise ProtocolError(f"an answer's correlation id has {len(parts[1])} bytes")
    try:
        return parts[1].decode("utf-8"), parts[2], parts[3] if len(parts) == 4 else b""
    except UnicodeDecodeError as error:
        raise ProtocolError("an answer's correlation id is not UTF-8") from error


def read_error(rest: bytes) -> Failed:
    """`<code>|<message>`; a bar in the message belongs to it. Codes we do not know are kept as they are: V1 grows additively."""
    code, _, message = rest.partition(b"|")
    try:
        failed = Failed(code.decode("utf-8"), message.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ProtocolError("an error is not UTF-8") from error
    if not _CODE.fullmatch(failed.code):
        raise ProtocolError(f"{shown(code)} is not an error code")
    return failed


def read_payload(request: Request, payload: bytes) -> Answer:
    """The answer that a payload tells, given what was asked. Unknown words are passed over: payloads "may evolve additively"."""
    operation = BY_REQUEST[type(request)]
    if operation.text:
        if payload not in (b"", operation.text.encode()):  # the seed also knows a success without payload
            raise ProtocolError(f"{shown(payload)} stands where {operation.text} must stand")
        return operation.answer()
    words = _read_fields(payload)
    values: dict[str, Any] = {}
    for part in operation.payload:
        if part.word not in words:
            raise ProtocolError(f"the answer to {operation.command} has no {part.word}")
        value = _read_word(operation, part, words[part.word])
        if part.field:
            values[part.field] = value
    if isinstance(request, Consume):
        values["records"] = read_messages(request, values["records"])
    return operation.answer(**values)


def _read_fields(payload: bytes) -> dict[str, bytes]:
    fields: dict[str, bytes] = {}
    position = 0
    while position < len(payload):
        found = _FIELD.match(payload, position)
        if found is None or (word := found[1].decode()) in fields:
            raise ProtocolError(f"{shown(payload[position:])} is not word=value, or the word comes twice")
        if len(fields) == _FIELDS_MAX:
            raise ProtocolError(f"an answer has at most {_FIELDS_MAX} words")
        fields[word] = found[2]
        position = found.end()
    return fields
