"""Compare an answer with the expected items, and find the first difference.

The answer may be incomplete; a difference is found as soon as its bytes are available. There is no backtracking: `...`
ends at the first occurrence of the item after it, or at the end of brackets whose length is known.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from braidlog.tools.wire.annotated_hex import (
    Anything,
    Capture,
    Computed,
    Digits,
    Hidden,
    Integer,
    Item,
    Literal,
    NotationError,
    Piece,
    Reference,
    Region,
    Repeat,
    Rest,
    Source,
    Variable,
    Varint,
    Wild,
    checksum,
    encode,
)

_DIGITS_MAX: Final = 20


class Different(Exception):  # noqa: N818 - a result, not an error
    """The position of the first difference, and what was expected there."""

    def __init__(self, position: int, expected: str) -> None:
        super().__init__(f"at byte {position}: expected {expected}")
        self.position = position
        self.expected = expected


class MoreNeeded(Exception):  # noqa: N818 - a result, not an error
    """The bytes match so far; `expected` must follow."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected


class Matched(NamedTuple):
    end: int
    captured: dict[str, int | bytes]


def match(items: Sequence[Item], data: bytes, variables: dict[str, int | bytes], *, complete: bool = False) -> Matched:
    """Return where the expected answer ends in `data`. `complete`: no more bytes will follow."""
    matcher = _Matcher(data, variables, complete=complete)
    end = matcher.sequence(items, 0, None)
    matcher.check_sums()
    return Matched(end, matcher.captured)


class _Sum(NamedTuple):
    position: int
    value: int
    source: Computed
    line: int


class _Matcher:
    def __init__(self, data: bytes, variables: dict[str, int | bytes], *, complete: bool) -> None:
        self._data = data
        self._complete = complete
        self._variables = variables
        self.captured: dict[str, int | bytes] = {}
        self._sizes: dict[str, int] = {}
        self._regions: dict[str, tuple[int, int]] = {}
        self._sums: list[_Sum] = []

    def sequence(self, items: Sequence[Item], at: int, limit: int | None) -> int:
        for index, item in enumerate(items):
            at = self._rest(items[index + 1 :], at, limit) if isinstance(item, Rest) else self._one(item, at, limit)
        return at

    def check_sums(self) -> None:
        for position, value, source, line in self._sums:
            if source.region not in self._regions:
                raise NotationError(f"{source.function} of unknown brackets", line)
            start, end = self._regions[source.region]
            right = checksum(source.function, self._data[start:end]) + source.plus
            if right != value:
                raise Different(position, f"{source.function} {right:#x}")

    def _one(self, item: Item, at: int, limit: int | None) -> int:  # noqa: C901, PLR0911 - a line or two for each item
        match item:
            case Literal(data):
                return self._literal(data, at, limit)
            case Wild(count):
                return self._advance(at, count, limit, f"{count} bytes")
            case Piece(count, name):
                end = self._advance(at, count, limit, f"{count} bytes for ?{name}")
                self.captured[name] = self._data[at:end]
                return end
            case Integer():
                return self._integer(item, at, limit)
            case Varint():
                return self._varint(item, at, limit)
            case Digits():
                return self._digits(item, at, limit)
            case Region(name, items):
                return self._region(name, items, at, limit)
            case Repeat(count, items):
                for number in range(count):
                    self.captured["n"] = number
                    at = self.sequence(items, at, limit)
                return at
            case Hidden(count):
                return self._advance(at, count, limit, f"{count} bytes")
            case Reference():
                return self._literal(encode((item,), self._known()), at, limit)
            case Rest():
                raise AssertionError("... is handled by the sequence")

    def _known(self) -> dict[str, int | bytes]:
        return {**self._variables, **self.captured}

    def _literal(self, wanted: bytes, at: int, limit: int | None) -> int:
        found = self._data[at : at + len(wanted)]
        for index, (one, other) in enumerate(zip(found, wanted, strict=False)):
            if one != other or (limit is not None and at + index >= limit):
                raise Different(at + index, f"{other:02X}{_readable(wanted, index)}")
        return self._advance(at, len(wanted), limit, f"{wanted[len(found)]:02X}" if len(found) < len(wanted) else "")

    def _advance(self, at: int, count: int, limit: int | None, wanted: str) -> int:
        """Advance by `count` bytes, if they are available."""
        end = at + count
        if limit is not None and end > limit:
            raise Different(limit, wanted)
        if end > len(self._data):
            self._short(wanted)
        return end

    def _short(self, wanted: str) -> None:
        if self._complete:
            raise Different(len(self._data), wanted)
        raise MoreNeeded(wanted)

    def _integer(self, item: Integer, at: int, limit: int | None) -> int:
        kind = f"{'i' if item.is_signed else 'u'}{item.size * 8}"
        if isinstance(item.source, int | Variable):
            number = self._constant(item.source, item.line)
            return self._literal(encode((item._replace(source=number),), {}), at, limit)
        end = self._advance(at, item.size, limit, kind)
        value = int.from_bytes(self._data[at:end], item.order, signed=item.is_signed)  # type: ignore[arg-type]
        self._found(item.source, value, at, item.line)
        return end

    def _varint(self, item: Varint, at: int, limit: int | None) -> int:
        value = shift = 0
        end = at
        while True:
            end = self._advance(end, 1, limit, "a varint")
            byte = self._data[end - 1]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 63:
                raise Different(at, "a varint of at most 10 bytes")
        self._value(item.source, (value >> 1) ^ -(value & 1) if item.is_zigzag else value, at, item.line)
        return end

    def _digits(self, item: Digits, at: int, limit: int | None) -> int:
        if isinstance(item.source, int | Variable):
            return self._literal(b"%d" % self._constant(item.source, item.line), at, limit)
        end = at
        bound = len(self._data) if limit is None else min(limit, len(self._data))
        while end < bound and (self._data[end : end + 1].isdigit() or (end == at and self._data[end] == 0x2D)):
            end += 1
        if end == len(self._data) and (limit is None or limit > end) and not self._complete:
            raise MoreNeeded("a digit, or what follows them")
        if not self._data[at:end].lstrip(b"-") or end - at > _DIGITS_MAX:
            raise Different(at, "a decimal number")
        self._found(item.source, int(self._data[at:end]), at, item.line)
        return end

    def _value(self, source: Source, value: int, at: int, line: int) -> None:
        if isinstance(source, int | Variable):
            wanted = self._constant(source, line)
            if value != wanted:
                raise Different(at, str(wanted))
        else:
            self._found(source, value, at, line)

    def _found(self, source: Source, value: int, at: int, line: int) -> None:
        """Check or capture a number of unknown value."""
        if isinstance(source, Capture):
            self.captured[source.name] = value
        elif isinstance(source, Computed):
            if source.function == "len" and source.region not in self._regions:
                self._sizes[source.region] = value - source.plus
            else:
                self._sums.append(_Sum(at, value, source, line))
        else:
            assert isinstance(source, Anything)

    def _constant(self, source: int | Variable, line: int) -> int:
        if isinstance(source, int):
            return source
        value = self._known().get(source.name)
        if value is None:
            raise NotationError(f"${source.name} is not captured before this line", line)
        return value if isinstance(value, int) else int.from_bytes(value, "big")

    def _region(self, name: str, items: Sequence[Item], at: int, limit: int | None) -> int:
        size = self._sizes.get(name)
        inner = limit
        if size is not None:
            if limit is not None and at + size > limit:
                raise Different(limit, f"{size} bytes, the announced length")
            inner = at + size
        end = self.sequence(items, at, inner)
        if size is not None and end != inner:
            raise Different(end, f"the end of the announced {size} bytes")
        self._regions[name] = (at, end)
        return end

    def _rest(self, following: Sequence[Item], at: int, limit: int | None) -> int:
        if not following:
            if limit is not None:
                return self._advance(at, max(limit - at, 0), None, "more bytes")
            if not self._complete:
                raise MoreNeeded("any bytes until the connection closes")
            return len(self._data)
        first = following[0]
        if not isinstance(first, Literal):
            raise NotationError("... must be followed by bytes or a text, or end its brackets", 0)
        bound = len(self._data) if limit is None else min(limit, len(self._data))
        found = self._data.find(first.data, at, bound)
        if found < 0:
            if limit is not None and limit <= len(self._data):
                raise Different(limit, f"{first.data!r} before")
            self._short(f"{first.data!r} after anything")
        return found


def _readable(wanted: bytes, index: int) -> str:
    text = wanted[index : index + 24]
    return (
        f" ({text.decode('ascii')!r})"
        if len(wanted) > 3 and text.isascii() and text.decode("ascii").isprintable()
        else ""
    )


def cells(items: Sequence[Item], variables: dict[str, int | bytes]) -> list[str]:
    """Return the expected answer as two characters per byte, as far as its positions are fixed."""
    out: list[str] = []
    for item in items:
        match item:
            case Wild(count) | Piece(count, _) | Hidden(count):
                out += ["??"] * count
            case Region(_, inner):
                part = cells(inner, variables)
                out += part
                if part[-1:] == [".."]:
                    return out
            case Integer() if not isinstance(item.source, int | Variable):
                out += ["??"] * item.size
            case Literal() | Integer() | Reference() | Digits():
                try:
                    out += [f"{byte:02X}" for byte in encode((item,), variables)]
                except NotationError:
                    return [*out, ".."]
            case _:
                return [*out, ".."]
    return out
