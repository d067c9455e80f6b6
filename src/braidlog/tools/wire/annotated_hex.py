"""Annotated hex: a notation for messages in bytes. An unknown word is an error with its line number.

Does not handle: lines and cases (`script.py`), sockets (`script_runner.py`), comparison of answers (`answer_matching.py`).

    CA FE 0001                   hex, an even number of digits
    "text\\n"  `text`             UTF-8; in double quotes \\n \\r \\t \\0 \\\\ \\" \\xNN \\uNNNN
    u8 u16 u32 u64 i8 … i64      an integer follows, big-endian; `u32le 7` little-endian; `varint -1` zigzag, `uvarint 300`
    dec 42                       an integer as decimal digits
    u32 len [ … ]                the length of the brackets that follow; also crc32 and crc32c, also `len+4`
    u32 len(body) body:[ … ]     … of named brackets anywhere in the message
    LEN                          u32 length of what follows, up to the next LEN or the end of the message
    repeat 3 { … $n … }          repeat; $n is 0, 1, 2
    $name                        bytes or a number captured before
    ??  ??{12}  ...              in an answer: any byte, any twelve bytes, any number of bytes
    u64 ?offset  bytes 4 ?token  in an answer: capture as $offset, $token
    **                           a byte hidden in a log (`--secret-file` restores it)
"""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from braidlog.codec.varint import encode_unsigned

Variables = Mapping[str, int | bytes]

REPEAT_MAX: Final = 100_000
BYTES_MAX: Final = 128 * 1024 * 1024
"""Limit of a message."""

COUNTER: Final = "n"
HIDDEN: Final = 0x2A
"""Placeholder of a hidden byte."""


class NotationError(ValueError):
    """Invalid annotated hex in `line`."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


# -- items -----------------------------------------------------------------------------------------------------


class Computed(NamedTuple):
    """`len`, `crc32` or `crc32c` of a region, plus a constant."""

    function: str
    region: str
    plus: int


class Variable(NamedTuple):
    name: str


class Capture(NamedTuple):
    name: str


class Anything(NamedTuple):
    """`??` in place of a number."""


Source = int | Computed | Variable | Capture | Anything


class Literal(NamedTuple):
    data: bytes


class Hidden(NamedTuple):
    """A run of hidden bytes."""

    size: int


class Wild(NamedTuple):
    size: int


class Rest(NamedTuple):
    """`...`"""


class Integer(NamedTuple):
    size: int
    is_signed: bool
    order: str
    source: Source
    line: int


class Varint(NamedTuple):
    is_zigzag: bool
    source: Source
    line: int


class Digits(NamedTuple):
    source: Source
    line: int


class Piece(NamedTuple):
    """`bytes 4 ?name`: captures a number of bytes."""

    size: int
    name: str


class Reference(NamedTuple):
    """`$name` alone: captured bytes."""

    name: str
    line: int


class Region(NamedTuple):
    name: str
    items: tuple["Item", ...]


class Repeat(NamedTuple):
    times: int
    items: tuple["Item", ...]


Item = Literal | Hidden | Wild | Rest | Integer | Varint | Digits | Piece | Reference | Region | Repeat

# -- words -----------------------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(
    r"""\#.*
      | "(?:[^"\\]|\\.)*" | `[^`]*`
      | \?\?(?:\{[0-9]{1,9}\})? | \*\* | \.\.\.
      | [A-Za-z_]\w*:\[ | [][{}]
      | [^\s\[\]{}"`#]+
      | ["`]""",
    re.VERBOSE,
)
_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})+")
_INTEGER: Final = re.compile(r"([ui])(8|16|24|32|64)(le|be)?")
_NUMBER: Final = re.compile(r"-?(?:0x[0-9A-Fa-f]{1,16}|[0-9]{1,20})")
_COMPUTED: Final = re.compile(r"(len|crc32c|crc32)(?:\((\w+)\))?([+-][0-9]{1,9})?")
_NAME: Final = re.compile(r"[$?]([A-Za-z_]\w*)")
_ESCAPE: Final = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|.)")
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\", '"': '"'}
_FUNCTIONS: Final[dict[str, Callable[[bytes], int]]] = {"len": len, "crc32": zlib.crc32, "crc32c": crc32c}


class Word(NamedTuple):
    text: str
    line: int


def words_of(text: str, line: int) -> list[Word]:
    """Split a line into words, without its comment."""
    found = [Word(match[0], line) for match in _TOKEN.finditer(text)]
    if found and found[-1].text.startswith("#"):
        found.pop()
    return found


def parse(words: Sequence[Word]) -> tuple[Item, ...]:
    """Parse words into items."""
    parser = _Parser(words)
    items = parser.sequence(None, 0)
    return _with_lengths(items)


class _Length(NamedTuple):
    """`LEN`, before the rest of the message is parsed."""

    line: int


class _Parser:
    def __init__(self, words: Sequence[Word]) -> None:
        self._words = words
        self._at = 0
        self._regions = 0
        self._times = 1

    def _next(self, what: str, line: int) -> Word:
        if self._at == len(self._words):
            raise NotationError(f"expected {what} before the end of the message", line)
        self._at += 1
        return self._words[self._at - 1]

    def sequence(self, until: str | None, line: int) -> list["Item | _Length"]:
        """Parse items up to a closing bracket, or to the end."""
        items: list[Item | _Length] = []
        waiting = f" {self._regions}"  # for computed values of the brackets that follow; real names contain no blank
        self._regions += 1
        while self._at < len(self._words):
            word = self._next("", line)
            if word.text == until:
                return items
            if word.text.endswith("["):
                name = word.text[:-2] or waiting
                inner = _with_lengths(self.sequence("]", word.line))
                items.append(Region(name, inner))
                if name == waiting:
                    waiting = f" {self._regions}"
                    self._regions += 1
            else:
                items.append(self._item(word, waiting))
        if until is not None:
            raise NotationError(f"missing closing bracket {until}", line)
        return items

    def _item(self, word: Word, waiting: str) -> "Item | _Length":  # noqa: C901, PLR0911 - one line for each word
        text, line = word
        if integer := _INTEGER.fullmatch(text):
            order = "little" if integer[3] == "le" else "big"
            return Integer(int(integer[2]) // 8, integer[1] == "i", order, self._source(word, waiting), line)
        if text in ("varint", "uvarint"):
            return Varint(text == "varint", self._source(word, waiting), line)
        if text == "dec":
            return Digits(self._source(word, waiting), line)
        if text == "LEN":
            return _Length(line)
        if text == "repeat":
            return self._repeat(line)
        if text == "bytes":
            return self._piece(line)
        if _HEX.fullmatch(text):
            return Literal(bytes.fromhex(text))
        if text[0] in '"`' and len(text) > 1:
            return Literal(_text(word))
        if text.startswith("??"):
            return Wild(int(text[3:-1]) if len(text) > 2 else 1)
        if text == "**":
            return Hidden(1)
        if text == "...":
            return Rest()
        if text[0] == "$" and (name := _NAME.fullmatch(text)):
            return Reference(name[1], line)
        raise NotationError(_complaint(text), line)

    def _source(self, of: Word, waiting: str) -> Source:
        text, line = self._next(f"a value for {of.text}", of.line)
        if _NUMBER.fullmatch(text):
            return int(text, 0) if "x" in text else int(text)
        if computed := _COMPUTED.fullmatch(text):
            return Computed(computed[1], computed[2] or waiting, int(computed[3] or 0))
        if text == "??":
            return Anything()
        if name := _NAME.fullmatch(text):
            return Variable(name[1]) if text[0] == "$" else Capture(name[1])
        raise NotationError(
            f"invalid value {text!r} for {of.text}: use a number, len, crc32, crc32c, $name or ?name", line
        )

    def _repeat(self, line: int) -> Repeat:
        count = self._next("a count", line)
        if not count.text.isdigit() or not 0 <= int(count.text) <= REPEAT_MAX:
            raise NotationError(f"invalid count {count.text!r}: use 0 to {REPEAT_MAX}", count.line)
        if self._next("{", line).text != "{":
            raise NotationError("repeat N needs { … }", line)
        outside, self._times = self._times, self._times * max(int(count.text), 1)
        if self._times > REPEAT_MAX:
            raise NotationError(f"nested repeats exceed {REPEAT_MAX}", line)
        inner = _with_lengths(self.sequence("}", line))
        self._times = outside
        return Repeat(int(count.text), inner)

    def _piece(self, line: int) -> Piece:
        count, name = self._next("a count", line), self._next("?name", line)
        found = _NAME.fullmatch(name.text)
        if not count.text.isdigit() or found is None or name.text[0] != "?":
            raise NotationError("expected bytes N ?name, which captures N bytes of an answer", line)
        return Piece(int(count.text), found[1])


def _complaint(text: str) -> str:
    if text in ('"', "`"):
        return f"text that starts with {text} does not end on its line"
    if re.fullmatch(r"[0-9A-Fa-f]+", text):
        return f"{text!r} has an odd number of hex digits"
    if text in ("]", "}"):
        return f"unmatched {text}"
    return f"unknown word {text!r}"


def _text(word: Word) -> bytes:
    if word.text[0] == "`":
        return word.text[1:-1].encode()
    out = bytearray()
    at, inner = 0, word.text[1:-1]
    for match in _ESCAPE.finditer(inner):
        out += inner[at : match.start()].encode()
        code, at = match[1], match.end()
        if code[0] == "x" and len(code) > 1:
            out.append(int(code[1:], 16))
        elif code[0] == "u" and len(code) > 1:
            out += chr(int(code[1:], 16)).encode()
        elif code in _ESCAPES:
            out += _ESCAPES[code].encode()
        else:
            raise NotationError(f'unknown escape \\{code}: use \\n \\r \\t \\0 \\\\ \\" \\xNN', word.line)
    return bytes(out + inner[at:].encode())


def _with_lengths(items: list["Item | _Length"]) -> tuple[Item, ...]:
    """Replace each LEN by a number and the region that it measures; merge runs of hidden bytes."""
    out: list[Item] = []
    for index, item in enumerate(items):
        if isinstance(item, _Length):
            following = _with_lengths(items[index + 1 :])
            inner = [each for each in following if not _is_made(each)]
            rest = [each for each in following if _is_made(each)]
            # The rest was split at the next LEN: it starts with its own number.
            name = f"LEN {index} {item.line} {len(items)}"
            made = Region(name, tuple(inner))
            return (*out, Integer(4, False, "big", Computed("len", name, 0), item.line), made, *rest)  # noqa: FBT003
        if isinstance(item, Hidden) and out and isinstance(out[-1], Hidden):
            out[-1] = Hidden(out[-1].size + 1)
        else:
            out.append(item)
    return tuple(out)


def _is_made(item: Item) -> bool:
    if isinstance(item, Region):
        return item.name.startswith("LEN ")
    return isinstance(item, Integer) and isinstance(item.source, Computed) and item.source.region.startswith("LEN ")


# -- bytes -----------------------------------------------------------------------------------------------------


def encode(items: Sequence[Item], variables: Variables, line: int = 0, secret: bytes | None = None) -> bytes:
    """Encode items to bytes. Raises `NotationError` for items that are valid in answers only."""
    return _Encoder(variables, line, secret).encode(items)


class _Patch(NamedTuple):
    position: int
    item: Integer
    source: Computed


class _Encoder:
    """One-pass encoder. Fills in lengths afterwards, then checksums, inner ones first."""

    def __init__(self, variables: Variables, line: int, secret: bytes | None) -> None:
        self._variables = dict(variables)
        self._line = line
        self._secret = secret
        self._out = bytearray()
        self._regions: dict[str, tuple[int, int]] = {}
        self._patches: list[_Patch] = []

    def encode(self, items: Sequence[Item]) -> bytes:
        self._all(items)
        self._fill([patch for patch in self._patches if patch.source.function == "len"])
        sums = [patch for patch in self._patches if patch.source.function != "len"]
        self._fill(sorted(sums, key=self._size))
        return bytes(self._out)

    def _size(self, patch: _Patch) -> int:
        start, end = self._span(patch.source, patch.item.line)
        return end - start

    def _span(self, source: Computed, line: int) -> tuple[int, int]:
        found = self._regions.get(source.region)
        if found is None:
            raise NotationError(f"{source.function} of unknown brackets", line)
        return found

    def _fill(self, patches: Sequence[_Patch]) -> None:
        for position, item, source in patches:
            start, end = self._span(source, item.line)
            value = _FUNCTIONS[source.function](bytes(self._out[start:end])) + source.plus
            self._out[position : position + item.size] = _pack(item, value)

    def _all(self, items: Sequence[Item]) -> None:
        for index, item in enumerate(items):
            self._one(item, items[index + 1 :])
            if len(self._out) > BYTES_MAX:
                raise NotationError(f"message exceeds {BYTES_MAX} bytes", self._line)

    def _one(self, item: Item, following: Sequence[Item]) -> None:
        match item:
            case Literal(data):
                self._out += data
            case Integer():
                self._integer(item)
            case Varint(is_zigzag, source, line):
                value = self._following(source, following, line) if isinstance(source, Computed) else None
                value = self._number(source, line) if value is None else value
                number = (value << 1 ^ value >> 63) if is_zigzag else value
                if not 0 <= number < 2**64:
                    raise NotationError(f"{number} does not fit a varint", line)
                self._out += encode_unsigned(number)
            case Digits(source, line):
                self._out += b"%d" % self._number(source, line)
            case Reference(name, line):
                self._out += self._bytes(name, line)
            case Region(name, items):
                start = len(self._out)
                self._all(items)
                self._regions[name] = (start, len(self._out))
            case Repeat(count, items):
                self._repeat(count, items)
            case Hidden(count):
                self._hidden(count)
            case _:
                raise NotationError("??, ... and bytes N ?name are valid in answers (lines with <) only", self._line)

    def _integer(self, item: Integer) -> None:
        if isinstance(item.source, Computed):
            self._patches.append(_Patch(len(self._out), item, item.source))
            self._out += bytes(item.size)
        else:
            self._out += _pack(item, self._number(item.source, item.line))

    def _repeat(self, count: int, items: Sequence[Item]) -> None:
        before = self._variables.get(COUNTER)
        for number in range(count):
            self._variables[COUNTER] = number
            # Inner brackets are measured per repetition, so each repetition is encoded separately.
            inner = _Encoder(self._variables, self._line, self._secret)
            self._out += inner.encode(items)
            if len(self._out) > BYTES_MAX:
                raise NotationError(f"message exceeds {BYTES_MAX} bytes", self._line)
        if before is not None:
            self._variables[COUNTER] = before

    def _hidden(self, count: int) -> None:
        if self._secret is None:
            raise NotationError("** is a hidden byte: replace it, or pass --secret-file", self._line)
        if len(self._secret) != count:
            raise NotationError(f"{count} hidden bytes, but the secret has {len(self._secret)}", self._line)
        self._out += self._secret

    def _following(self, source: Computed, following: Sequence[Item], line: int) -> int:
        for item in following:
            if isinstance(item, Region) and item.name == source.region:
                return (
                    _FUNCTIONS[source.function](_Encoder(self._variables, line, self._secret).encode(item.items))
                    + source.plus
                )
        raise NotationError("a varint can only measure the brackets that follow it", line)

    def _number(self, source: Source, line: int) -> int:
        if isinstance(source, int):
            return source
        if isinstance(source, Variable):
            value = self._variables.get(source.name)
            if value is None:
                raise NotationError(f"${source.name} is not captured before this line", line)
            return value if isinstance(value, int) else int.from_bytes(value, "big")
        raise NotationError("??, ?name are valid in answers (lines with <) only", line)

    def _bytes(self, name: str, line: int) -> bytes:
        value = self._variables.get(name)
        if not isinstance(value, bytes):
            raise NotationError(
                f"${name} is not captured before this line"
                if value is None
                else f"${name} is a number: write u32 ${name}",
                line,
            )
        return value


def _pack(item: Integer, value: int) -> bytes:
    try:
        return value.to_bytes(item.size, item.order, signed=item.is_signed)  # type: ignore[arg-type]  # "big" or "little"
    except OverflowError:
        raise NotationError(
            f"{value} does not fit {'i' if item.is_signed else 'u'}{item.size * 8}", item.line
        ) from None


def checksum(function: str, data: bytes) -> int:
    return _FUNCTIONS[function](data)
