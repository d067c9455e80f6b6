"""Annotated hex: bytes as a person writes them.

Knows: the words of the notation, and how they become bytes. Refuses to know: lines, cases and sockets (`script.py`,
`script_runner.py`), and how an answer is compared (`answer_matching.py`).
Invariant: what is written is what is sent; a word that means nothing is refused with its line, and never skipped.

    CA FE 0001                   hex, an even number of digits
    "text\\n"  `text`             UTF-8; in double quotes \\n \\r \\t \\0 \\\\ \\" \\xNN \\uNNNN
    u8 u16 u32 u64 i8 … i64      an integer follows, big-endian; `u32le 7` little-endian; `varint -1` zigzag, `uvarint 300`
    dec 42                       an integer as decimal digits
    u32 len [ … ]                the length of the brackets that follow; also crc32 and crc32c, also `len+4`
    u32 len(body) body:[ … ]     … of brackets with a name, wherever they stand
    LEN                          u32 length of what follows, up to the next LEN or the end of the message
    repeat 3 { … $n … }          again and again; $n is 0, 1, 2
    $name                        bytes or a number captured before
    ??  ??{12}  ...              in an answer: any byte, any twelve, any number of them
    u64 ?offset  bytes 4 ?token  in an answer: remember as $offset, $token
    **                           a byte that a log did not show (`--secret-file` puts it back)
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
"""Of one message."""

COUNTER: Final = "n"
HIDDEN: Final = 0x2A
"""What stands in the place of a byte that is not shown."""


class NotationError(ValueError):
    """The text is not annotated hex; `line` says where."""

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
    """`??` in the place of a number."""


Source = int | Computed | Variable | Capture | Anything


class Literal(NamedTuple):
    data: bytes


class Hidden(NamedTuple):
    """A run of bytes that a log did not show."""

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
    """`bytes 4 ?name`: so many bytes, remembered."""

    size: int
    name: str


class Reference(NamedTuple):
    """`$name` by itself: bytes that were captured."""

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
    """The words of one line, without its comment."""
    found = [Word(match[0], line) for match in _TOKEN.finditer(text)]
    if found and found[-1].text.startswith("#"):
        found.pop()
    return found


def parse(words: Sequence[Word]) -> tuple[Item, ...]:
    """The items that words stand for."""
    parser = _Parser(words)
    items = parser.sequence(None, 0)
    return _with_lengths(items)


class _Length(NamedTuple):
    """`LEN`, before it is known what follows."""

    line: int


class _Parser:
    def __init__(self, words: Sequence[Word]) -> None:
        self._words = words
        self._at = 0
        self._regions = 0
        self._times = 1

    def _next(self, what: str, line: int) -> Word:
        if self._at == len(self._words):
            raise NotationError(f"{what} is expected, and the message ends", line)
        self._at += 1
        return self._words[self._at - 1]

    def sequence(self, until: str | None, line: int) -> list["Item | _Length"]:
        """Items up to a closing bracket, or to the end."""
        items: list[Item | _Length] = []
        waiting = f" {self._regions}"  # of computed values that mean the brackets that follow; no name has a blank
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
            raise NotationError(f"the bracket is never closed by {until}", line)
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
        raise NotationError(f"{text!r} is no value for {of.text}: a number, len, crc32, crc32c, $name or ?name", line)

    def _repeat(self, line: int) -> Repeat:
        count = self._next("a count", line)
        if not count.text.isdigit() or not 0 <= int(count.text) <= REPEAT_MAX:
            raise NotationError(f"{count.text!r} is no count from 0 to {REPEAT_MAX}", count.line)
        if self._next("{", line).text != "{":
            raise NotationError("repeat N is followed by { … }", line)
        outside, self._times = self._times, self._times * max(int(count.text), 1)
        if self._times > REPEAT_MAX:
            raise NotationError(f"repeats in repeats make more than {REPEAT_MAX}", line)
        inner = _with_lengths(self.sequence("}", line))
        self._times = outside
        return Repeat(int(count.text), inner)

    def _piece(self, line: int) -> Piece:
        count, name = self._next("a count", line), self._next("?name", line)
        found = _NAME.fullmatch(name.text)
        if not count.text.isdigit() or found is None or name.text[0] != "?":
            raise NotationError("bytes N ?name: so many bytes of an answer are remembered", line)
        return Piece(int(count.text), found[1])


def _complaint(text: str) -> str:
    if text in ('"', "`"):
        return f"a text begins with {text} and does not end on its line"
    if re.fullmatch(r"[0-9A-Fa-f]+", text):
        return f"{text!r} has an odd number of hex digits"
    if text in ("]", "}"):
        return f"{text} closes nothing"
    return f"{text!r} is no word of annotated hex"


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
            raise NotationError(f'\\{code} is no escape: \\n \\r \\t \\0 \\\\ \\" \\xNN are', word.line)
    return bytes(out + inner[at:].encode())


def _with_lengths(items: list["Item | _Length"]) -> tuple[Item, ...]:
    """Each LEN becomes a number and the region that it measures; runs of hidden bytes become one."""
    out: list[Item] = []
    for index, item in enumerate(items):
        if isinstance(item, _Length):
            following = _with_lengths(items[index + 1 :])
            inner = [each for each in following if not _is_made(each)]
            rest = [each for each in following if _is_made(each)]
            # What follows was split at the next LEN: it begins with its own number, and everything behind belongs to it.
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
    """The bytes that items stand for. NotationError for what only an answer can have."""
    return _Encoder(variables, line, secret).encode(items)


class _Patch(NamedTuple):
    position: int
    item: Integer
    source: Computed


class _Encoder:
    """Bytes in one pass. What is computed over brackets is filled in afterwards: lengths, then checksums, inner ones first."""

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
            raise NotationError(f"{source.function} of brackets that are not there", line)
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
                raise NotationError(f"a message of more than {BYTES_MAX} bytes", self._line)

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
                raise NotationError(
                    "??, ... and bytes N ?name stand in answers (lines with <), not in what is sent", self._line
                )

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
            # Brackets inside are measured anew each time, so each time is a message of its own.
            inner = _Encoder(self._variables, self._line, self._secret)
            self._out += inner.encode(items)
            if len(self._out) > BYTES_MAX:
                raise NotationError(f"a message of more than {BYTES_MAX} bytes", self._line)
        if before is not None:
            self._variables[COUNTER] = before

    def _hidden(self, count: int) -> None:
        if self._secret is None:
            raise NotationError("** is a byte that the log did not show: write it, or give --secret-file", self._line)
        if len(self._secret) != count:
            raise NotationError(f"{count} bytes were hidden here, the secret has {len(self._secret)}", self._line)
        self._out += self._secret

    def _following(self, source: Computed, following: Sequence[Item], line: int) -> int:
        for item in following:
            if isinstance(item, Region) and item.name == source.region:
                return (
                    _FUNCTIONS[source.function](_Encoder(self._variables, line, self._secret).encode(item.items))
                    + source.plus
                )
        raise NotationError("a varint measures brackets that follow it", line)

    def _number(self, source: Source, line: int) -> int:
        if isinstance(source, int):
            return source
        if isinstance(source, Variable):
            value = self._variables.get(source.name)
            if value is None:
                raise NotationError(f"${source.name} was not captured before", line)
            return value if isinstance(value, int) else int.from_bytes(value, "big")
        raise NotationError("??, ?name stand in answers (lines with <), not in what is sent", line)

    def _bytes(self, name: str, line: int) -> bytes:
        value = self._variables.get(name)
        if not isinstance(value, bytes):
            raise NotationError(
                f"${name} was not captured before" if value is None else f"${name} is a number: write u32 ${name}", line
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
