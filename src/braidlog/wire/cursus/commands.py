"""Parses and writes text commands in both spellings.

Handles blanks, `key=value`, the document's positions, and `message=`, which takes the rest of the line.
Invariant: an argument is never guessed. An unknown word, a repeated argument and an invalid value are each rejected
by name, after the whole text was checked to be UTF-8.

    document  CONSUME orders 0 42
    clients   consume topic=orders partition=0 offset=42 member=c-1
              PUBLISH topic=orders key=k message=everything up to the end, blanks and = included
              BATCH_COMMIT topic=orders group=g member=m generation=3 P0:10,P1:20
"""

import re
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec.structs import replace

from braidlog.codec.errors import ProtocolError
from braidlog.codec.json_guard import check_json
from braidlog.model.limits import PARTITIONS_PER_TOPIC_MAX
from braidlog.wire.cursus.batch import STRING_BYTES_MAX, Spelling
from braidlog.wire.cursus.failures import CommandError, ErrorCode, Failure, decode_text, echo
from braidlog.wire.cursus.messages import BY_NAME, BY_REQUEST, OPERATIONS, Operation, Request
from braidlog.wire.cursus.requests import Acks, Consume, Credentials, PartitionOffset

WORDS_MAX = 64
WORD_BYTES_MAX = 1024 * 1024
"""Maximum bytes of a word: a commit of ten thousand partitions fits. Only `message=` may be longer."""

KEY_BYTES_MAX = 128
"""The `=` of a key must be within this many bytes of a word; no argument has a longer name."""

_BLANKS = b" \t\r\n\v\f"
_WORD = re.compile(rb"[^ \t\r\n\v\f]+")
_NAME = re.compile(rb"[^ \t\r\n\v\f]{1,64}")
_BLANK = re.compile(rb"[ \t\r\n\v\f]")
_DIGITS_MAX = 19
_INTEGER = re.compile(rb"-?[0-9]{1,%d}" % _DIGITS_MAX)
_OFFSET_ENTRY = re.compile(rb"P?([0-9]{1,10}):([0-9]{1,19})")
_BOOLEANS = {b"true": True, b"false": False, b"1": True, b"0": False}
_REST = b"message"  # `message=` takes the rest of the line: the Cursus page, §2
_JSON_ARGUMENTS = {b"metadata={", b"metadata=["}
_ALIASES = {b"isolation": b"isolation_level", b"txn": b"transactional_id", b"transaction": b"transactional_id"}
_ALIASED = {"CONSUME", "STREAM", "FIND_COORDINATOR"}
_PRINCIPAL, _TOKEN = b"principal", b"auth_token"
_PLAIN_BYTES_MAX = 4096
_OFFSET = b" offset="


class _Argument(NamedTuple):
    attribute: str
    wire: bytes
    parse: Callable[[bytes], Any]
    required: bool
    default: Any


# --- values


def _parse_text(raw: bytes) -> str:
    return raw.decode("utf-8")


def _parse_boolean(raw: bytes) -> bool:
    value = _BOOLEANS.get(raw.lower())
    if value is None:
        raise ValueError("must be true or false")
    return value


def _parse_acks(raw: bytes) -> Acks:
    return Acks(raw.decode("utf-8"))


def _parse_offsets(raw: bytes) -> tuple[PartitionOffset, ...]:
    # Count the commas before splitting: a word of a megabyte would become half a million strings.
    if raw.count(b",") >= PARTITIONS_PER_TOPIC_MAX:
        raise ValueError(f"more than {PARTITIONS_PER_TOPIC_MAX} partitions")
    offsets: dict[int, int] = {}
    for entry in raw.split(b","):
        match = _OFFSET_ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError("must be P<partition>:<offset>,…")
        partition, offset = int(match[1]), int(match[2])
        if partition >= 2**31 or offset >= 2**63 or partition in offsets:
            raise ValueError("a number is too large, or a partition is repeated")
        offsets[partition] = offset
    return tuple(PartitionOffset(partition, offset) for partition, offset in offsets.items())


def _integer_parser(low: int, high: int) -> Callable[[bytes], int]:
    def parse(raw: bytes) -> int:
        if (raw.isdigit() and len(raw) < _DIGITS_MAX) or _INTEGER.fullmatch(raw):
            number = int(raw)
            if low <= number <= high:
                return number
        raise ValueError(f"must be a number from {low} to {high}")

    return parse


def _parser(annotation: Any) -> Callable[[bytes], Any]:  # noqa: ANN401 - type annotations have no common type
    if get_origin(annotation) in {Union, UnionType}:
        (annotation,) = (option for option in get_args(annotation) if option is not NoneType)
    if get_origin(annotation) is Annotated:
        meta = get_args(annotation)[1]
        return _integer_parser(meta.ge, meta.le)
    return _PARSERS[annotation]


_PARSERS: dict[Any, Callable[[bytes], Any]] = {
    str: _parse_text,
    bytes: bytes,
    bool: _parse_boolean,
    Acks: _parse_acks,
    tuple[PartitionOffset, ...]: _parse_offsets,
}


def _arguments(request: type) -> tuple[_Argument, ...]:
    return tuple(
        _Argument(
            field.name,
            field.encode_name.encode(),
            _parser(field.type),
            field.default is msgspec.NODEFAULT,
            field.default,
        )
        for field in msgspec.structs.fields(request)
    )


_ARGUMENTS: dict[str, tuple[_Argument, ...]] = {row.name: _arguments(row.request) for row in OPERATIONS[1:]}
_TAKES_REST = {name for name, arguments in _ARGUMENTS.items() if any(each.wire == _REST for each in arguments)}


# --- reading


def command_name(text: bytes) -> bytes:
    """Return the first word in capitals, cut to the length of the longest command."""
    match = _NAME.search(text)
    return match[0].upper() if match else b""


class CommandReader:
    """`read_command` for one connection. A consumer repeats the same CONSUME, and only its offset changes."""

    __slots__ = ("_around", "_last")

    def __init__(self) -> None:
        self._around: tuple[bytes, bytes] | None = None
        self._last: Request | None = None
        """The cached request, whose text has these parts before and after its offset."""

    def read(self, text: bytes) -> Request:
        if len(text) > _PLAIN_BYTES_MAX:
            return read_command(text)
        before, _, rest = text.partition(_OFFSET)
        digits, blank, after = rest.partition(b" ")
        is_number = digits.isdigit() and len(digits) < _DIGITS_MAX
        last = self._last
        if is_number and last is not None and (before, blank + after) == self._around:
            return Request(last.operation, replace(last.message, offset=int(digits)), last.spelling)
        request = read_command(text)
        # A JSON value may contain blanks, and words that look like arguments.
        if is_number and type(request.message) is Consume and request.credentials is None and b"metadata=" not in text:
            self._around, self._last = (before, blank + after), request
        return request


def read_command(text: bytes) -> Request:
    """Parse the request in the text of a frame. CommandError has the dialect's error code."""
    try:
        decode_text(text)
    except ProtocolError as error:
        raise CommandError(Failure.of(ErrorCode.MALFORMED_INPUT, reason=error)).at(error.position) from error
    name = command_name(text)
    if not name:
        raise CommandError(Failure.of(ErrorCode.EMPTY_COMMAND))
    operation = BY_NAME.get(name)
    if operation is None:
        unknown = CommandError(Failure.of(ErrorCode.UNKNOWN_COMMAND, command=echo(name)))
        raise unknown.at(len(text) - len(text.lstrip(_BLANKS)))
    try:
        keyed, bare = _split_plain(operation, text) or _split(operation, text)
        if not keyed and operation.positional is not None:
            return Request(operation, _read_positional(operation, bare), Spelling.DOCUMENT)
        return _read_keyed(operation, keyed, bare)
    except CommandError as error:
        raise error.at(_place(text, error)) from error.__cause__


def _place(text: bytes, error: CommandError) -> int:
    """Return the position in the text that an error is about: the value, the name, or the end if it is missing."""
    failure = error.failure
    value, name = failure.get("value"), failure.get("argument") or re.sub("^(missing|invalid)_", "", failure.code)
    for sought in (value and value.encode(), f" {name}=".encode()):
        if sought and (at := text.rfind(sought)) >= 0:
            return at + sought.startswith(b" ")
    return len(text)


def _split(operation: Operation, text: bytes) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Split the words after the name into those with `=` and those without."""
    takes_rest = operation.name in _TAKES_REST
    keyed: dict[bytes, bytes] = {}
    bare: list[bytes] = []
    first = _WORD.search(text)
    assert first is not None, "the command has a name"
    position = first.end()
    while (match := _WORD.search(text, position)) is not None:
        start, position = match.span()
        if len(keyed) + len(bare) == WORDS_MAX:
            raise _refuse(operation, ErrorCode.UNEXPECTED_ARGUMENT, reason=f"more than {WORDS_MAX} words")
        key, equals, _ = text[start : min(position, start + KEY_BYTES_MAX)].partition(b"=")
        if takes_rest and equals and key == _REST:
            position = len(text)
        elif position - start > WORD_BYTES_MAX:
            raise _refuse(operation, ErrorCode.UNEXPECTED_ARGUMENT, reason=f"a word of {position - start} bytes")
        elif text[start : start + 10] in _JSON_ARGUMENTS:
            position = _json_end(text, start + 9, position)
        if not equals:
            bare.append(text[start:position])
            continue
        key = _canonical(operation, key)
        if key in keyed:
            raise _refuse(operation, ErrorCode.DUPLICATE_ARGUMENT, argument=echo(key))
        keyed[key] = text[text.index(b"=", start) + 1 : position]
    return keyed, bare


def _canonical(operation: Operation, key: bytes) -> bytes:
    return _ALIASES.get(key, key) if operation.name in _ALIASED else key


def _split_plain(operation: Operation, text: bytes) -> tuple[dict[bytes, bytes], list[bytes]] | None:
    """Split a short text in which every word ends at a blank, as repeated requests do. None if a word needs a check
    or is invalid.
    """
    if operation.name in _TAKES_REST or len(text) > _PLAIN_BYTES_MAX or b"metadata=" in text:
        return None
    words = text.split()
    if len(words) > WORDS_MAX:
        return None
    is_aliased = operation.name in _ALIASED
    keyed: dict[bytes, bytes] = {}
    bare: list[bytes] = []
    for word in words[1:]:
        key, equals, value = word.partition(b"=")
        if len(key) >= KEY_BYTES_MAX:
            return None
        if not equals:
            bare.append(word)
            continue
        if is_aliased:
            key = _ALIASES.get(key, key)
        if key in keyed:
            return None
        keyed[key] = value
    return keyed, bare


def _json_end(text: bytes, start: int, word_end: int) -> int:
    """Return where a value that begins like JSON ends: after a valid document, else at the end of the word.

    Clients write `metadata=` unescaped before `message=`, including blanks; splitting at blanks would lose half of
    it.
    """
    window = text[start : start + STRING_BYTES_MAX]
    depth, in_string, skip = 0, False, False
    for index, byte in enumerate(window):
        if skip:
            skip = False
        elif in_string:
            skip, in_string = byte == 0x5C, byte != 0x22
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
        elif byte in b"]}":
            depth -= 1
            if depth == 0:
                return start + index + 1 if _is_document(window[: index + 1], window[index + 1 :]) else word_end
    return word_end


def _is_document(value: bytes, rest: bytes) -> bool:
    if rest and rest[0] not in _BLANKS:
        return False
    try:
        check_json(value)
        msgspec.json.decode(value)
    except (ProtocolError, msgspec.DecodeError):
        return False
    return True


def _read_positional(operation: Operation, words: list[bytes]) -> Any:  # noqa: ANN401 - any request of the table
    names = operation.positional or ()
    if len(words) > len(names):
        raise _refuse(operation, ErrorCode.UNEXPECTED_ARGUMENT, reason=f"at most {len(names)} arguments")
    given = dict(zip(names, words, strict=False))
    return _build(operation, {a.wire: given[a.attribute] for a in _ARGUMENTS[operation.name] if a.attribute in given})


def _read_keyed(operation: Operation, keyed: dict[bytes, bytes], bare: list[bytes]) -> Request:
    for word in bare:
        wire = (operation.bare or "").encode()
        if not wire or wire in keyed:
            raise _refuse(operation, ErrorCode.UNEXPECTED_ARGUMENT, reason="a word without = is not an argument")
        keyed[wire] = word
    credentials = None
    if operation.name != "AUTH":
        credentials = _take_credentials(operation, keyed)
    return Request(operation, _build(operation, keyed), Spelling.CLIENTS, credentials)


def _take_credentials(operation: Operation, keyed: dict[bytes, bytes]) -> Credentials | None:
    principal, token = keyed.pop(_PRINCIPAL, b""), keyed.pop(_TOKEN, b"")
    if not principal and not token:
        return None
    if not principal or not token:
        raise _refuse(operation, ErrorCode.INVALID_AUTH, reason="principal and auth_token must be given together")
    return Credentials(principal.decode("utf-8"), token.decode("utf-8"))


def _build(operation: Operation, given: dict[bytes, bytes]) -> Any:  # noqa: ANN401 - any request of the table
    """Build the message from the arguments' text. Unknown arguments are ignored, as in the published brokers."""
    values: dict[str, Any] = {}
    for argument in _ARGUMENTS[operation.name]:
        raw = given.get(argument.wire)
        if raw is None or (not raw and argument.required):
            # `topic=` counts as a missing topic, as in the published brokers.
            if argument.required:
                raise _refuse(operation, f"missing_{_snake(argument.wire)}")
            continue
        try:
            values[argument.attribute] = argument.parse(raw)
        except ValueError as error:
            raise _refuse(
                operation, f"invalid_{_snake(argument.wire)}", value=echo(raw), reason=echo(str(error))
            ) from error
    return operation.request(**values)


def _snake(wire: bytes) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", wire.decode()).lower()


def _refuse(operation: Operation, code: str, **fields: object) -> CommandError:
    return CommandError(Failure.of(code, command=operation.name, **fields))


# --- writing


def write_command(message: Any, spelling: Spelling, credentials: Credentials | None = None) -> bytes:  # noqa: ANN401
    """Return the text of a command. Raises ValueError for what the spelling cannot hold: a blank in a value, an empty
    required value.
    """
    operation = BY_REQUEST[type(message)]
    if spelling is Spelling.DOCUMENT and operation.positional is not None and credentials is None:
        return _write_positional(operation, message)
    words = [operation.name.encode()]
    rest = b""
    if credentials is not None:
        words += [_word(_PRINCIPAL, credentials.principal), _word(_TOKEN, credentials.token)]
    for argument in _ARGUMENTS[operation.name]:
        value = getattr(message, argument.attribute)
        if argument.wire == _REST:
            decode_text(value)
            rest = b" message=" + value
        elif argument.attribute == operation.bare:
            rest = b" " + _offsets(value)
        elif argument.required or value != argument.default:
            words.append(_word(argument.wire, value))
        if argument.required and value in ("", b"", ()):
            raise ValueError(f"{operation.name} needs {argument.attribute}")
    return b" ".join(words) + rest


def _write_positional(operation: Operation, message: Any) -> bytes:  # noqa: ANN401 - any request of the table
    arguments = {argument.attribute: argument for argument in _ARGUMENTS[operation.name]}
    names = list(operation.positional or ())
    for name in arguments.keys() - set(names):
        if getattr(message, name) != arguments[name].default:
            raise ValueError(f"{operation.name} has no position for {name}")
    while names and not arguments[names[-1]].required and getattr(message, names[-1]) is None:
        names.pop()
    words = [operation.name.encode()]
    for name in names:
        value = getattr(message, name)
        raw = _offsets(value) if name == operation.bare else _bytes(value)
        if not raw or b"=" in raw or value is None:
            raise ValueError(f"{operation.name} cannot carry {name}={value!r} by position")
        words.append(raw)
    return b" ".join(words)


def _word(wire: bytes, value: Any) -> bytes:  # noqa: ANN401 - any argument
    raw = _bytes(value, blanks_allowed=wire == b"metadata")
    if wire == b"metadata" and (raw[:1] in {b"{", b"["} or _BLANK.search(raw)) and not _is_metadata(raw):
        raise ValueError("metadata with a blank or a bracket must be a JSON document of less than 64 KiB")
    return wire + b"=" + raw


def _is_metadata(raw: bytes) -> bool:
    """A document may contain blanks. An incomplete document would swallow part of the message, so it is never sent."""
    return raw[:1] in {b"{", b"["} and len(raw) < STRING_BYTES_MAX and _is_document(raw, b"")


def _bytes(value: Any, *, blanks_allowed: bool = False) -> bytes:  # noqa: ANN401 - any argument
    if isinstance(value, bool):
        return b"true" if value else b"false"
    raw = value if isinstance(value, bytes) else str(value).encode()
    decode_text(raw)
    if not blanks_allowed and _BLANK.search(raw) is not None:
        raise ValueError("an argument cannot contain a blank")
    if len(raw) > WORD_BYTES_MAX - KEY_BYTES_MAX:
        raise ValueError(f"an argument of {len(raw)} bytes is too long")
    return raw


def _offsets(offsets: tuple[PartitionOffset, ...]) -> bytes:
    return ",".join(f"P{entry.partition}:{entry.offset}" for entry in offsets).encode()
