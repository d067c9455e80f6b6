"""Print and parse records as text: format strings, hex and base64. JSON is in `model/record_json.py`.

Format letters are those of kcat where kcat has them. A line that does not match its format is an error.
"""

import base64
import binascii
import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from braidlog.cli.terminal.output import moment
from braidlog.client.drivers.contract import ConsumedRecord
from braidlog.model.record import Header, NewRecord
from braidlog.model.record_json import ParsedRecord, read_json

Encode = Callable[[bytes], bytes]


class Encoding(NamedTuple):
    """Encoder and decoder of keys and values."""

    write: Encode
    read: Encode


def _from_hex(text: bytes) -> bytes:
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError as error:
        raise ValueError(f"not hex: {error}") from None


def _from_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


ENCODINGS = {
    "text": Encoding(bytes, bytes),
    "hex": Encoding(lambda raw: raw.hex().encode(), _from_hex),
    "base64": Encoding(base64.b64encode, _from_base64),
}

# -- format strings ------------------------------------------------------------------------------------------------


class Token(NamedTuple):
    """A format letter: description, printer, and the pattern that parses it."""

    what: str
    write: Callable[[ConsumedRecord, Encode], bytes]
    pattern: bytes | None = None


def _number(value: int) -> bytes:
    return b"%d" % value


def _length(value: bytes | None) -> bytes:
    return _number(-1 if value is None else len(value))


def _header_text(headers: tuple[Header, ...], encode: Encode) -> bytes:
    return b",".join(name.encode() + b"=" + encode(value or b"") for name, value in headers)


TOKENS: dict[str, Token] = {
    "s": Token("the value", lambda record, encode: encode(record.value or b""), rb".*"),
    "S": Token("the value's length, -1 for none", lambda record, _: _length(record.value)),
    "k": Token("the key", lambda record, encode: encode(record.key or b""), rb".*?"),
    "K": Token("the key's length, -1 for none", lambda record, _: _length(record.key)),
    "h": Token("headers: name=value,…", lambda record, encode: _header_text(record.headers, encode), rb".*?"),
    "t": Token("the topic", lambda record, _: record.topic.encode()),
    "p": Token("the partition", lambda record, _: _number(record.partition), rb"\d+"),
    "o": Token("the offset", lambda record, _: _number(record.offset)),
    "T": Token(
        "the time in milliseconds, -1 for none",
        lambda record, _: _number(-1 if record.timestamp_ms is None else record.timestamp_ms),
        rb"-?\d+",
    ),
    "D": Token(
        "the time in UTC",
        lambda record, _: b"" if record.timestamp_ms is None else moment(record.timestamp_ms).encode(),
    ),
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\", "%": b"%"}
_PART = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)", re.DOTALL)


def unescape(text: str) -> bytes:
    """Resolve escapes of a delimiter: `\\n`, `\\t`, `\\x1f` and so on."""
    parts = split_format(text.replace("%", "%%"))
    return b"".join(part for part in parts if isinstance(part, bytes))


def split_format(text: str) -> list[str | bytes]:
    """Split a format into letters (str) and literal text (bytes). Raises `ValueError`."""
    parts: list[str | bytes] = []
    position = 0
    while position < len(text):
        found = _PART.match(text, position)
        if found is None:
            raise ValueError(f"the format ends with a lone {text[position:]!r}")
        letter, code, escaped, plain = found.groups()
        if letter is not None and letter != "%":
            if letter not in TOKENS:
                raise ValueError(f"unknown %{letter}; use %{', %'.join(TOKENS)}, %%")
            parts.append(letter)
        elif escaped is not None and escaped not in _ESCAPES:
            raise ValueError(f"unknown \\{escaped}; use \\n \\t \\r \\0 \\\\ \\xNN")
        else:
            literal = (
                b"%" if letter else bytes([int(code, 16)]) if code else _ESCAPES[escaped] if escaped else plain.encode()
            )
            parts.append(literal)
        position = found.end()
    return parts


def writer(text: str, encoding: str) -> Callable[[ConsumedRecord], bytes]:
    """Return a function that prints a record in a format."""
    encode = ENCODINGS[encoding].write
    parts = [TOKENS[part].write if isinstance(part, str) else part for part in split_format(text)]

    def write(record: ConsumedRecord) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record, encode) for part in parts)

    return write


# -- reading -------------------------------------------------------------------------------------------------------


class RecordDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults of every record from the options; values of the line take precedence."""

    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None
    empty_is_none: bool = False

    def fill(self, parsed: ParsedRecord) -> ParsedRecord:
        record, partition = parsed
        return ParsedRecord(
            NewRecord(
                None if self.empty_is_none and record.value == b"" else record.value,
                self.key if record.key is None else record.key,
                (*self.headers, *record.headers),
                self.timestamp_ms if record.timestamp_ms is None else record.timestamp_ms,
            ),
            self.partition if partition is None else partition,
        )


def json_reader(defaults: RecordDefaults) -> Callable[[bytes], ParsedRecord]:
    return lambda line: defaults.fill(read_json(line))


def text_reader(text: str, encoding: str, defaults: RecordDefaults) -> Callable[[bytes], ParsedRecord]:
    """Return a function that parses lines, without delimiter, of a format."""
    decode = ENCODINGS[encoding].read
    pattern = _pattern(text)

    def read(line: bytes) -> ParsedRecord:
        found = pattern.fullmatch(line)
        if found is None:
            lacks = "" if "%" in text else "; %s marks the value in a format, and --json reads records in JSON"
            raise ValueError(f"the line does not match the format {text!r}{lacks}")
        parts = found.groupdict()
        record = NewRecord(
            decode(parts["s"]) if "s" in parts else b"",
            decode(parts["k"]) if "k" in parts else None,
            _read_headers(parts["h"], decode) if parts.get("h") else (),
            _time(parts.get("T")),
        )
        return defaults.fill(ParsedRecord(record, int(parts["p"]) if "p" in parts else None))

    return read


def _time(text: bytes | None) -> int | None:
    return None if text is None or int(text) < 0 else int(text)


def _pattern(text: str) -> re.Pattern[bytes]:
    pieces: list[bytes] = []
    for part in split_format(text.removesuffix("\\n").removesuffix("\n")):
        if isinstance(part, bytes):
            pieces.append(re.escape(part))
            continue
        pattern = TOKENS[part].pattern
        if pattern is None or b"(?P<%s>" % part.encode() in b"".join(pieces):
            able = ", ".join(f"%{letter}" for letter, token in TOKENS.items() if token.pattern is not None)
            raise ValueError(f"%{part} cannot be parsed; a format for input may have {able}, each once")
        pieces.append(b"(?P<%s>%s)" % (part.encode(), pattern))
    return re.compile(b"".join(pieces), re.DOTALL)


def _read_headers(text: bytes, decode: Encode) -> tuple[Header, ...]:
    found = []
    for word in text.split(b","):
        name, equals, value = word.partition(b"=")
        if not equals or not name:
            raise ValueError(f"headers are name=value,…, not {word[:60].decode('utf-8', 'backslashreplace')}")
        found.append((name.decode("utf-8"), decode(value)))
    return tuple(found)
