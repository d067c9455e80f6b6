"""Compiles the rows of the table to straight-line code that reads and writes one message in one version.

Invariants: a reader reads nothing beyond the end, and uses no count or length that the remaining bytes could not
hold. A message has a limited number of parts, so that few bytes cannot become many objects. A reader raises only
`ProtocolError`. A writer omits fields that its version does not have.

Code is generated on first use of each message and version.

                plain versions                        flexible versions
    text        i16 length (-1 null), UTF-8           varint length+1 (0 null), UTF-8
    bytes       i32 length (-1 null), bytes           varint length+1 (0 null), bytes
    array       i32 count (-1 null), items            varint count+1 (0 null), items
    struct      fields                                fields, then tagged ones: varint count, each varint tag, varint size, value
    struct that may be null                           i8 -1, or 1 and the struct

Adjacent fields of fixed size are packed and unpacked together. A length is read as one byte with them, and again as a
varint if it has a continuation bit.
"""

import functools
import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

from braidlog.codec.errors import ProtocolError, TooManyPartsError
from braidlog.codec.varint import encode_unsigned
from braidlog.wire.kafka.rows import NEVER, Field, Kind, Message, fields_of

ITEMS_MAX: Final = 1_000_000
"""Maximum array items of a response, in total. `apis.py` has those of requests."""

Reader = Callable[[bytes | bytearray, int, int, list[int]], tuple[Any, int]]
"""reader(data, at, end, room) → message, position after it. `room`: the array items still allowed, and their limit."""
Writer = Callable[[Any, Callable[[Any], None]], None]
"""writer(message, add): calls `add` with each piece of bytes, in order; a `Slice` is passed unchanged."""

_VARINT_BYTES_MAX: Final = 5
_SMALL: Final = tuple(bytes([n]) for n in range(128))
_FIXED: Final = frozenset({Kind.I8, Kind.I16, Kind.U16, Kind.I32, Kind.I64, Kind.F64, Kind.BOOL, Kind.UUID})


# -- functions called by generated code ----------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """Encode an unsigned varint: most are one byte."""
    return _SMALL[value] if value < 0x80 else encode_unsigned(value)


def read_varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return the varint at `at`, and the position after it."""
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        byte = data[at + index]
        if index == _VARINT_BYTES_MAX - 1 and byte > 0x0F:
            raise ProtocolError("a varint does not fit 32 bits", at)
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise AssertionError("the last byte either ends the number or is rejected")


def skip_tags(data: bytes | bytearray, at: int, end: int) -> int:
    """Skip tagged fields that this version does not have: a newer client may send more."""
    count, at = read_varint(data, at)
    for _ in range(count):
        _, at = read_varint(data, at)
        size, at = read_varint(data, at)
        at += size
        if at > end:
            bad_length("a tagged field", size, at - size, end)
    return at


def bad_length(what: str, size: int, at: int, end: int) -> NoReturn:
    if size < 0:
        raise ProtocolError(f"{what} may not be null", at)
    raise ProtocolError(f"{what} announces {size} bytes, {end - at} are left", at)


def bad_count(what: str, count: int, at: int, end: int) -> NoReturn:
    if count < 0:
        raise ProtocolError(f"{what} may not be null", at)
    raise ProtocolError(f"{count} {what} do not fit the remaining {end - at} bytes", at)


def too_many(what: str, count: int, at: int, parts_max: int) -> NoReturn:
    raise TooManyPartsError(f"{count} {what} exceed the {parts_max} parts that this message may have", at)


def bad_tag(what: str, at: int) -> NoReturn:
    raise ProtocolError(f"tagged field {what} does not have its announced size", at)


def not_null(what: str) -> NoReturn:
    raise ValueError(f"{what} may not be null in this version")


def size_of(records: Any) -> int:  # noqa: ANN401 - a buffer, or an object with a size
    """Return the size of a batch, in memory or in a file."""
    if isinstance(records, bytes | bytearray):
        return len(records)
    return records.nbytes if isinstance(records, memoryview) else int(records.size)


# -- whole messages --------------------------------------------------------------------------------------------


def read_message(
    message: type[Message], version: int, data: bytes | bytearray, at: int, *, flexible: bool
) -> tuple[Message, int]:
    """Read the message at `at`; return it and the position after it. Bytes may follow: some clients send them."""
    read = reader(message, version, flexible=flexible)
    return read_with(read, message, version, data, at, [ITEMS_MAX, ITEMS_MAX])


def read_with(
    read: Reader, message: type[Message], version: int, data: bytes | bytearray, at: int, room: list[int]
) -> tuple[Any, int]:
    """Run the reader of `message`; every failure becomes a `ProtocolError`."""
    try:
        return read(data, at, len(data), room)
    except (struct.error, IndexError) as error:
        cut = ProtocolError(f"{message.__name__} in version {version} is truncated after {len(data)} bytes")
        raise cut.at(len(data)) from error
    except UnicodeDecodeError as error:
        # A decoder knows only the string it was given, not its position.
        found = data.find(error.object)
        wrong = ProtocolError(f"a string of {message.__name__} is not UTF-8")
        raise wrong.at(None if found < 0 else found + error.start) from error


def past_tags(data: bytes | bytearray, at: int) -> int:
    """Skip the tags of a header."""
    try:
        return skip_tags(data, at, len(data))
    except IndexError as error:
        raise ProtocolError("the tags of a header are truncated", at) from error


def write_message(message: Message, version: int, add: Callable[[Any], None], *, flexible: bool) -> None:
    """Call `add` with each piece of the message. Raises ValueError if a field does not fit its type, or must not be
    null.
    """
    write_with(writer(type(message), version, flexible=flexible), message, version, add)


def write_with(write: Writer, message: Message, version: int, add: Callable[[Any], None]) -> None:
    try:
        write(message, add)
    except struct.error as error:
        raise ValueError(f"{type(message).__name__} does not fit version {version}: {error}") from error


# -- the two compilers -----------------------------------------------------------------------------------------


@functools.cache
def reader(message: type[Message], version: int, *, flexible: bool) -> Reader:
    """Return the function that reads `message` in `version`."""
    return _ReaderSource(message, version, flexible=flexible).compiled()


@functools.cache
def writer(message: type[Message], version: int, *, flexible: bool) -> Writer:
    """Return the function that writes `message` in `version`."""
    return _WriterSource(message, version, flexible=flexible).compiled()


class _Source:
    """The lines of a generated function, and the names that they use."""

    def __init__(self, message: type[Message], version: int, *, flexible: bool) -> None:
        self.message = message
        self.version = version
        self.flexible = flexible
        self.fields = [field for field in fields_of(message) if version in field.versions]
        self.plain = [field for field in self.fields if field.tag is None]
        self.tagged = sorted(
            (field for field in self.fields if field.tag is not None), key=lambda field: field.tag or 0
        )
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.indent = 1

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def named(self, prefix: str, value: Any) -> str:  # noqa: ANN401
        """Return a name in the function's globals for `value`."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def finish(self, kind: str, arguments: str) -> Any:  # noqa: ANN401
        source = "\n".join([f"def {kind}({arguments}):", *self.lines, ""])
        where = f"<kafka {self.message.__name__} v{self.version} {kind}>"
        namespace = {**_CALLED, **self.names}
        exec(compile(source, where, "exec"), namespace)  # noqa: S102 - generated from our own rows, never from a peer's bytes
        return namespace[kind]


_CALLED: Final[dict[str, Any]] = {
    "bad_count": bad_count,
    "bad_length": bad_length,
    "bad_tag": bad_tag,
    "not_null": not_null,
    "read_varint": read_varint,
    "size_of": size_of,
    "skip_tags": skip_tags,
    "too_many": too_many,
    "unpack_from": struct.unpack_from,
    "pack": struct.pack,
    "varint": varint,
}


class _ReaderSource(_Source):
    """Fields are read into `f_<name>`; `n` is the current length, `e` its end."""

    def compiled(self) -> Reader:
        self.run: list[tuple[str, str]] = []
        for field in self.plain:
            self.value(field, f"f_{field.name}")
        if self.flexible:
            self.tags()
        self.flush()
        named = ", ".join(
            f"f_{field.name}" if field in self.fields else self._default(field) for field in fields_of(self.message)
        )
        self.line(f"return {self.named('Struct', self.message)}({named}), at")
        compiled: Reader = self.finish("read", "data, at, end, room")
        return compiled

    def _default(self, field: Field) -> str:
        return "[]" if field.default == [] else self.named("default", field.default)

    def flush(self) -> None:
        """Unpack the collected fixed-size fields together."""
        if self.run:
            layout = struct.Struct(">" + "".join(code for _, code in self.run))
            targets = ", ".join(target for target, _ in self.run)
            self.line(f"({targets},) = {self.named('unpack', layout.unpack_from)}(data, at)")
            self.line(f"at += {layout.size}")
            self.run = []

    def value(self, field: Field, target: str) -> None:
        if field.is_array:
            self.array(field, target)
        elif field.kind in _FIXED:
            self.run.append((target, field.kind.value))
        elif field.kind is Kind.STRUCT:
            self.struct(field, target)
        else:
            self.length("h" if field.kind is Kind.TEXT else "i")
            self.sized(field.kind, field.name, target, nullable=self.version in field.nullable)

    def length(self, code: str) -> None:
        """Read a length or count into `n`, -1 for null."""
        self.run.append(("n", "B" if self.flexible else code))
        self.flush()
        if self.flexible:
            self.line("if n > 127:")
            self.line("    n, at = read_varint(data, at - 1)")
            self.line("n -= 1")

    def sized(self, kind: Kind, what: str, target: str, *, nullable: bool) -> None:
        """Read the `n` bytes of a text, of bytes or of records."""
        if nullable:
            self.line("if n < 0:")
            self.line(f"    {target} = None")
            self.line("else:")
            self.indent += 1
        self.line("e = at + n")
        self.line("if e > end:" if nullable else "if n < 0 or e > end:")
        self.line(f"    bad_length({what!r}, n, at, end)")
        bytes_of = {Kind.TEXT: "str(data[at:e], 'utf-8')", Kind.BYTES: "data[at:e]"}
        self.line(f"{target} = {bytes_of.get(kind, 'memoryview(data)[at:e]')}")
        self.line("at = e")
        if nullable:
            self.indent -= 1

    def struct(self, field: Field, target: str) -> None:
        assert field.struct is not None
        nested = self.named("read", reader(field.struct, self.version, flexible=self.flexible))
        call = f"{target}, at = {nested}(data, at, end, room)"
        if self.version in field.nullable:
            self.run.append(("n", "b"))
            self.flush()
            self.line("if n < 0:")
            self.line(f"    {target} = None")
            self.line("else:")
            self.line(f"    {call}")
        else:
            self.flush()
            self.line(call)

    def array(self, field: Field, target: str) -> None:
        self.length("i")
        nullable = self.version in field.nullable
        if nullable:
            self.line("if n < 0:")
            self.line(f"    {target} = None")
            self.line("else:")
            self.indent += 1
        smallest = least_bytes(field, self.version, flexible=self.flexible)
        self.line(f"if {'' if nullable else 'n < 0 or '}n * {smallest} > end - at:")
        self.line(f"    bad_count({field.name!r}, n, at, end)")
        self.line("room[0] -= n")
        self.line("if room[0] < 0:")
        self.line(f"    too_many({field.name!r}, n, at, room[1])")
        if field.kind in _FIXED:
            self.line(f"{target} = list(unpack_from(f'>{{n}}{field.kind.value}', data, at))")
            self.line(f"at += n * {struct.calcsize(field.kind.value)}")
        else:
            self.items(field, target)
        if nullable:
            self.indent -= 1

    def items(self, field: Field, target: str) -> None:
        self.line(f"{target} = []")
        self.line("for _ in range(n):")
        self.indent += 1
        one = field._replace(is_array=False, nullable=NEVER)
        self.value(one, "item")
        self.line(f"{target}.append(item)")
        self.indent -= 1

    def tags(self) -> None:
        for field in self.tagged:
            default = self._default(field)
            self.line(f"f_{field.name} = {default}")
        self.run.append(("n", "B"))
        self.flush()
        self.line("if n:")
        self.indent += 1
        if self.tagged:
            self.known_tags()
        else:
            self.line("at = skip_tags(data, at - 1, end)")
        self.indent -= 1

    def known_tags(self) -> None:
        self.line("count, at = read_varint(data, at - 1)")
        self.line("for _ in range(count):")
        self.indent += 1
        self.line("tag, at = read_varint(data, at)")
        self.line("size, at = read_varint(data, at)")
        self.line("stop = at + size")
        self.line("if stop > end:")
        self.line("    bad_length('a tagged field', size, at, end)")
        for index, field in enumerate(self.tagged):
            self.line(f"{'elif' if index else 'if'} tag == {field.tag}:")
            self.indent += 1
            self.value(field, f"f_{field.name}")
            self.flush()
            self.line("if at != stop:")
            self.line(f"    bad_tag({field.name!r}, at)")
            self.indent -= 1
        self.line("at = stop")
        self.indent -= 1


class _WriterSource(_Source):
    """`m` is the message; each piece goes to `add`."""

    def compiled(self) -> Writer:
        self.run: list[tuple[str, str]] = []
        for field in self.plain:
            self.value(field, f"m.{field.name}")
        if self.flexible:
            self.tags()
        self.flush()
        if not self.lines:
            self.line("pass")
        compiled: Writer = self.finish("write", "m, add")
        return compiled

    def flush(self) -> None:
        if self.run:
            layout = struct.Struct(">" + "".join(code for _, code in self.run))
            values = ", ".join(value for value, _ in self.run if value)
            self.line(f"add({self.named('pack', layout.pack)}({values}))")
            self.run = []

    def value(self, field: Field, source: str) -> None:
        if field.kind in _FIXED and not field.is_array:
            self.run.append((source, field.kind.value))
            return
        if self.version in field.nullable:
            self.flush()
            self.line(f"if {source} is None:")
            self.line(f"    add({self._null(field)!r})")
            self.line("else:")
            self.indent += 1
            if field.kind is Kind.STRUCT and not field.is_array:
                self.run.append(("1", "b"))
            self.present(field, source)
            self.flush()
            self.indent -= 1
        else:
            self.present(field, source)

    def _null(self, field: Field) -> bytes:
        if field.kind is Kind.STRUCT and not field.is_array:
            return b"\xff"
        if self.flexible:
            return b"\x00"
        return b"\xff\xff" if field.kind is Kind.TEXT and not field.is_array else b"\xff\xff\xff\xff"

    def length(self, size: str, code: str) -> None:
        """Write a length or count with the collected fields, unless it is a varint."""
        if self.flexible:
            self.flush()
            self.line(f"add(varint({size} + 1))")
        else:
            self.run.append((size, code))
            self.flush()

    def present(self, field: Field, source: str) -> None:
        """Write a value that is not null."""
        if field.is_array:
            self.array(field, source)
        elif field.kind is Kind.STRUCT:
            assert field.struct is not None
            self.flush()
            nested = self.named("write", writer(field.struct, self.version, flexible=self.flexible))
            self.line(f"{nested}({source}, add)")
        elif field.kind is Kind.TEXT:
            if self.version not in field.nullable:
                self.line(f"if {source} is None: not_null({field.name!r})")
            self.line(f"text = {source}.encode()")
            self.length("len(text)", "h")
            self.line("add(text)")
        elif field.kind is Kind.BYTES:
            self.length(f"len({source})", "i")
            self.line(f"add({source})")
        else:
            self.length(f"size_of({source})", "i")
            self.line(f"add({source})")

    def array(self, field: Field, source: str) -> None:
        if self.version not in field.nullable:
            self.line(f"if {source} is None: not_null({field.name!r})")
        self.length(f"len({source})", "i")
        if field.kind in _FIXED:
            self.line(f"add(pack(f'>{{len({source})}}{field.kind.value}', *{source}))")
            return
        self.line(f"for item in {source}:")
        self.indent += 1
        self.value(field._replace(is_array=False, nullable=NEVER), "item")
        self.flush()
        self.indent -= 1

    def tags(self) -> None:
        if not self.tagged:
            self.run.append(("", "x"))  # a pad byte: no tagged fields
            return
        self.flush()
        self.line("tags = []")
        for field in self.tagged:
            default = self.named("default", field.default)
            self.line(f"if m.{field.name} != {default}:")
            self.indent += 1
            self.line("value = []; outer = add; add = value.append")
            self.value(field, f"m.{field.name}")
            self.flush()
            self.line("add = outer; value = b''.join(value)")
            self.line(f"tags += [varint({field.tag}), varint(len(value)), value]")
            self.indent -= 1
        self.line("add(varint(len(tags) // 3))")
        self.line("for piece in tags: add(piece)")


# -- sizes -----------------------------------------------------------------------------------------------------


def least_bytes(field: Field, version: int, *, flexible: bool) -> int:
    """Return the minimum size of an array item, which bounds a count."""
    if field.kind in _FIXED:
        return struct.calcsize(">" + field.kind.value)
    if field.kind is not Kind.STRUCT:
        return 1 if flexible else 2 if field.kind is Kind.TEXT else 4
    assert field.struct is not None
    return max(_least_struct(field.struct, version, flexible=flexible), 1)


def _least_struct(message: type[Message], version: int, *, flexible: bool) -> int:
    total = 1 if flexible else 0
    for field in fields_of(message):
        if version not in field.versions or field.tag is not None:
            continue
        if field.is_array:
            total += 1 if flexible else 4
        elif field.kind is Kind.STRUCT and version in field.nullable:
            total += 1
        else:
            total += least_bytes(field, version, flexible=flexible)
    return total
