"""Parses and writes one line of flux: the envelope, and the arguments and payloads of the table.

Invariant: `read_request` never raises. `read_request` returns the message that `write_request` wrote. No written line
contains a newline or exceeds the line limit.

    request     V1|<correlation_id>|<command>|<args>
    success     V1|<correlation_id>|OK            V1|<correlation_id>|OK|<payload>
    error       V1|<correlation_id>|ERR|<code>|<message>
"""

import re
from itertools import permutations
from typing import Any, Final

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.model.limits import NAME_CHARS_MAX
from braidlog.wire.contract import Refused
from braidlog.wire.flux.messages import (
    Acks,
    Answer,
    Encoding,
    ErrorCode,
    Failed,
    Produce,
    Produced,
    RecordsAsked,
    RecordsShown,
    Request,
    Response,
)
from braidlog.wire.flux.operations import BY_COMMAND, BY_REQUEST, Argument, Operation, Place
from braidlog.wire.flux.records import LINE_BYTES_MAX, read_records, write_records
from braidlog.wire.flux.tokens import KEY_BYTES_MAX, read_pair, shown, write_pair

VERSION: Final = b"V1"

NO_ID: Final = "0"
"""The id in the answer to a line whose id could not be read. Our requests never use it."""

CORRELATION_ID_BYTES_MAX: Final = 256
"""Maximum bytes of an id: the answer repeats it and must fit a line."""

ERROR_CHARS_MAX: Final = 500
_FIELDS_MAX = 64
_ARGUMENTS_MAX = max(len(operation.arguments) for operation in BY_COMMAND.values())

# Only lists contain blanks. Unless the table declares a list, a bracketed value with an equals sign is not one: a
# name that begins with a bracket, such as the host `[::1]`, must not be read as the start of a list.
_FIELD = re.compile(rb"([a-z_]+)=(\[[^\[\]=]*\]|[^ ]*)(?: +|$)")
_LIST_FIELD = re.compile(rb"([a-z_]+)=(\[[^\[\]]*\])(?: +|$)")
_CODE = re.compile(r"[A-Z_]{1,64}")


class WordError(ProtocolError):
    """An invalid word of a line."""

    def __init__(self, message: str, word: bytes) -> None:
        super().__init__(message)
        self.word = word


class Reader(msgspec.Struct, frozen=True):
    """A row of the table, its arguments grouped by place."""

    operation: Operation
    required: tuple[Argument, ...]
    optional: tuple[Argument, ...]
    options: dict[bytes, Argument]

    @classmethod
    def of(cls, operation: Operation) -> "Reader":
        places: dict[Place, list[Argument]] = {place: [] for place in Place}
        for argument in operation.arguments:
            places[argument.place].append(argument)
        options = {argument.word.encode(): argument for argument in places[Place.OPTION]}
        return cls(operation, tuple(places[Place.REQUIRED]), tuple(places[Place.OPTIONAL]), options)


READERS: Final = {command: Reader.of(operation) for command, operation in BY_COMMAND.items()}
_BY_REQUEST: Final = {reader.operation.request: reader for reader in READERS.values()}


# --- requests ---------------------------------------------------------------------------------------------------------------


def read_request(line: bytes) -> Request | Refused:
    """Return the request on a line (without its newline), or the refusal that answers it. These refusals never close
    the connection.

    The line is split at most at three bars, so args may contain a bar (the document's "exactly four sections" would
    forbid it). A carriage return before the newline counts as a blank after the last argument.
    """
    parts = line.split(b"|", 3)
    if len(parts) != 4:
        return _TOO_FEW[len(parts)]
    version, word, command, args = parts
    if version != VERSION or not word or not command or len(word) > CORRELATION_ID_BYTES_MAX:
        fault = _envelope_fault(version, word)
        at = 0 if version != VERSION else len(version) + 1
        return refusal(NO_ID, ErrorCode.BAD_REQUEST, fault, ProtocolError(fault).at(at))
    try:
        correlation_id = word.decode("utf-8")
    except UnicodeDecodeError:
        return refusal(NO_ID, ErrorCode.BAD_REQUEST, "the correlation id is not UTF-8")
    try:
        if command == b"PRODUCE" and (request := read_produce(correlation_id, args)) is not None:
            return request
        reader = READERS.get(command) or READERS.get(command.upper())  # the Flux page, §1
        if reader is None:
            unknown = f"unsupported command {shown(command)}"
            error = ProtocolError(unknown).at(len(version) + len(word) + 2)
            return refusal(correlation_id, ErrorCode.UNKNOWN_COMMAND, unknown, error)
        return read_arguments(reader, correlation_id, args)
    except ProtocolError as error:
        at = line.rfind(error.word, len(line) - len(args)) if isinstance(error, WordError) else len(line)
        return refusal(correlation_id, ErrorCode.BAD_REQUEST, str(error), error.at(at))


def _envelope_fault(version: bytes, correlation_id: bytes) -> str:
    if version != VERSION:
        return f"protocol version must be V1, not {shown(version)}"
    if not 1 <= len(correlation_id) <= CORRELATION_ID_BYTES_MAX:
        return f"a correlation id must have 1 to {CORRELATION_ID_BYTES_MAX} bytes, this one has {len(correlation_id)}"
    return "the command is empty"


def refusal(
    correlation_id: str, code: ErrorCode, message: str, error: ProtocolError | None = None, *, close: bool = False
) -> Refused:
    return Refused(error or ProtocolError(message), Response(correlation_id, Failed(code, message)), close)


# Built once: a peer that sends a megabyte of newlines should not cost a million errors.
_TOO_FEW: Final = {
    count: refusal(
        NO_ID, ErrorCode.BAD_REQUEST, f"a request must have four fields separated by bars, this one has {count}"
    )
    for count in (1, 2, 3)
}

# Every spelling of PRODUCE's two options with its meaning; and the spelling that we write for each meaning.
_PRODUCE_OPTIONS: Final = {
    words: (acks, encoding)
    for acks in Acks
    for encoding in Encoding
    for acks_words in ({(b"acks=" + acks.encode(),), ()} if acks is Acks.LEADER else {(b"acks=" + acks.encode(),)})
    for words in permutations((*acks_words, b"enc=b64") if encoding is Encoding.BASE64 else acks_words)
}
_PRODUCE_WORDS: Final = {
    (acks, encoding): (b"" if acks is Acks.LEADER else b" acks=" + acks.encode())
    + (b" enc=b64" if encoding is Encoding.BASE64 else b"")
    for acks in Acks
    for encoding in Encoding
}


def read_produce(correlation_id: str, args: bytes) -> Produce | None:
    """Read a usual PRODUCE, the hot request, by hand. None for anything else, which the table then reads or rejects.

    A test compares it with `read_arguments`.
    """
    words = args.split(None, 4)
    if len(words) < 2 or (options := _PRODUCE_OPTIONS.get(tuple(words[2:]))) is None:
        return None
    topic = words[0]
    if len(topic) > NAME_CHARS_MAX or not topic.isascii() or not (name := topic.decode()).isprintable():
        return None
    acks, encoding = options
    if encoding is Encoding.BASE64:
        key, value = read_pair(words[1], base64=True)
        return Produce(correlation_id, name, key, value, acks, encoding)
    plain_key, colon, plain_value = words[1].partition(b":")
    if not colon or len(plain_key) > KEY_BYTES_MAX:
        return None
    return Produce(correlation_id, name, plain_key, plain_value, acks)


def read_arguments(reader: Reader, correlation_id: str, args: bytes) -> Request:
    """Return the request of a command's arguments; a ProtocolError has a message for the peer."""
    operation = reader.operation
    words = args.split(None, _ARGUMENTS_MAX + 1)  # one more than any command has: enough to detect too many
    count = len(reader.required)
    if len(words) < count:
        raise ProtocolError(_usage(operation))
    values: dict[str, Any] = {}
    for argument, word in zip(reader.required, words, strict=False):
        values[argument.field] = _read_word(operation, argument, word)
    rest = words[count:]
    for argument in reader.optional:
        if rest and b"=" not in rest[0]:
            values[argument.field] = _read_word(operation, argument, rest.pop(0))
    for word in rest:
        name, _, value = word.partition(b"=")
        option = reader.options.get(name)
        if option is None or option.field in values:  # an unknown option, or a repeated one
            raise WordError(f"unexpected {shown(word)}; {_usage(operation)}", word)
        values[option.field] = _read_word(operation, option, value)
    return (operation.build or operation.request)(correlation_id, **values)


def _usage(operation: Operation) -> str:
    if not operation.arguments:
        return f"{operation.command} takes no arguments"
    hint = "; use enc=b64 for text with blanks" if operation.request is Produce else ""
    return f"{operation.command} requires: {operation.syntax}{hint}"


def _read_word(operation: Operation, argument: Argument, word: bytes) -> Any:  # noqa: ANN401 - the type is the kind's
    try:
        return argument.kind.read(word)
    except ProtocolError as error:
        raise WordError(f"{operation.command}: {argument.word}: {error}", word) from error


def write_request(request: Request) -> bytes:
    """Return the request's line with its newline. Raises ValueError for a message that the dialect cannot express."""
    reader = _BY_REQUEST[type(request)]
    word = request.correlation_id.encode("utf-8")
    if not 1 <= len(word) <= CORRELATION_ID_BYTES_MAX or b"|" in word or b"\n" in word or word == b"0":
        raise ValueError(f"{request.correlation_id[:40]!r} cannot be a correlation id")
    args = write_produce(request, reader) if isinstance(request, Produce) else write_arguments(request, reader)
    return _line(b"V1|%b|%b|%b" % (word, reader.operation.command.encode(), args))


def write_arguments(request: Request, reader: Reader) -> bytes:
    """Return the arguments in the table's order; options with their default value are omitted."""
    words = [argument.kind.write(getattr(request, argument.field)) for argument in reader.required]
    for argument in (*reader.optional, *reader.options.values()):
        value = getattr(request, argument.field)
        if value != _default(type(request), argument.field):
            prefix = argument.word.encode() + b"=" if argument.place is Place.OPTION else b""
            words.append(prefix + argument.kind.write(value))
    return b" ".join(words)


def write_produce(request: Produce, reader: Reader) -> bytes:
    topic = reader.required[0].kind.write(request.topic)
    pair = write_pair(request.key, request.value, base64=request.encoding is Encoding.BASE64)
    return b"%b %b%b" % (topic, pair, _PRODUCE_WORDS[request.acks, request.encoding])


def _default(request: type[Request], field: str) -> object:
    names = request.__struct_fields__
    return request.__struct_defaults__[names.index(field) - len(names)]


def _line(text: bytes) -> bytes:
    if len(text) > LINE_BYTES_MAX:
        raise ValueError(f"a line of {len(text)} bytes is too long, the limit is {LINE_BYTES_MAX}")
    return text + b"\n"


# --- answers ----------------------------------------------------------------------------------------------------------------


def write_response(request: Request, answer: Answer) -> bytes:
    """Return the answer's line with its newline. Raises ValueError if the answer does not match the request or is too
    long.
    """
    word = request.correlation_id.encode("utf-8")
    if isinstance(answer, Produced) and isinstance(
        request, Produce
    ):  # the hot answer; a test compares it with the table's
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
    records: bytes | Failed = b""
    if isinstance(answer, RecordsShown) and isinstance(request, RecordsAsked):
        records = write_records(request, answer.records)
    if isinstance(records, Failed):
        return write_error(request.correlation_id, records)
    return _line(b"V1|%b|OK|%b" % (word, write_payload(operation, answer, records)))


def write_payload(operation: Operation, answer: Answer, records: bytes = b"") -> bytes:
    """Return `word=value word=value` in the table's order; empty optional values are omitted. `records` are already
    encoded.
    """
    if operation.text:
        return operation.text.encode()
    words = []
    for part in operation.payload:
        value = records if part.field == "records" else getattr(answer, part.field, None)
        if value or part.place is not Place.OPTIONAL:
            words.append(b"%b=%b" % (part.word.encode(), part.kind.write(value)))
    return b" ".join(words)


def write_error(correlation_id: str, failed: Failed) -> bytes:
    """Return an error's line. Its message is made printable and short."""
    if not _CODE.fullmatch(failed.code):
        raise ValueError(f"{failed.code[:40]!r} cannot be an error code")
    message = failed.message[:ERROR_CHARS_MAX]
    if not message.isprintable():
        message = "".join(letter if letter.isprintable() else " " for letter in message)
    return _line(b"V1|%b|ERR|%b|%b" % (correlation_id.encode(), failed.code.encode(), message.encode()))


def read_envelope(line: bytes) -> tuple[str, bytes, bytes]:
    """Return id, status and the rest of an answer's line; raises ProtocolError for other lines."""
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
    """Parse `<code>|<message>`; the message may contain bars. Unknown codes are kept: V1 grows additively."""
    code, _, message = rest.partition(b"|")
    try:
        failed = Failed(code.decode("utf-8"), message.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ProtocolError("an error is not UTF-8") from error
    if not _CODE.fullmatch(failed.code):
        raise ProtocolError(f"{shown(code)} is not an error code")
    return failed


def read_payload(request: Request, payload: bytes) -> Answer:
    """Return the answer in a payload, given its request. Unknown words are ignored: payloads "may evolve additively"."""
    operation = BY_REQUEST[type(request)]
    if operation.text:
        if payload not in (b"", operation.text.encode()):  # the protocol document also knows a success without payload
            raise ProtocolError(f"{shown(payload)} is not the expected {operation.text}")
        return operation.answer()
    words = _read_fields(payload, {part.word for part in operation.payload if part.kind.shape.startswith("[")})
    values: dict[str, Any] = {}
    for part in operation.payload:
        if part.word not in words:
            if part.place is Place.OPTIONAL:
                continue
            raise ProtocolError(f"the answer to {operation.command} has no {part.word}")
        value = _read_word(operation, part, words[part.word])
        if part.field:
            values[part.field] = value
    if isinstance(request, RecordsAsked):
        values["records"] = read_records(request, values["records"])
    return operation.answer(**values)


def _read_fields(payload: bytes, lists: set[str]) -> dict[str, bytes]:
    fields: dict[str, bytes] = {}
    position = 0
    while position < len(payload):
        found = _LIST_FIELD.match(payload, position)
        if found is None or found[1].decode() not in lists:
            found = _FIELD.match(payload, position)
        if found is None or (word := found[1].decode()) in fields:
            raise ProtocolError(f"{shown(payload[position:])} is not word=value, or the word is repeated")
        if len(fields) == _FIELDS_MAX:
            raise ProtocolError(f"an answer may have at most {_FIELDS_MAX} words")
        fields[word] = found[2]
        position = found.end()
    return fields
