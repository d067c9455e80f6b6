"""Converts a .proto file to a tree and back.

Supports the grammar of proto2 and proto3. Comments are dropped. Messages may be nested `DEPTH_MAX` deep. Groups and
editions are refused with an error. Does not handle: resolving names (`schema.py`).
"""

import re
from collections.abc import Callable
from typing import Final

from braidlog.registry.errors import RegistryError, invalid
from braidlog.registry.protobuf.schema import SCALARS, Enum, Field, File, Message, Method, Option, Service

DEPTH_MAX: Final = 50
NUMBER_MAX: Final = 2**29 - 1
DIGITS_MAX: Final = 100
_TOKEN: Final = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/"""  # skipped
    r"""|(?P<word>\.?[A-Za-z_][\w.]*|[-+]?(?:0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|inf|nan))"""
    r"""|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<sign>[{}()\[\]<>=;,:/\-])""",
    re.DOTALL,
)
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_LABELS: Final = frozenset({"optional", "required", "repeated"})
_END: Final = ""


def read(text: str) -> File:
    try:
        return _Reader(_tokens(text)).file()
    except RecursionError:
        raise invalid("nested too deep") from None


def _tokens(text: str) -> list[str]:
    found, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise invalid(f"unexpected {text[position : position + 20]!r}")
        if match.lastgroup is not None:
            found.append(match.group())
        position = match.end()
    return found


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    # -- tokens --------------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    def _next(self) -> str:
        token = self._peek()
        if token == _END:
            raise invalid("the file ends too early")
        self._at += 1
        return token

    def _maybe(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._at += 1
        return True

    def _expect(self, token: str) -> None:
        actual = self._next()
        if actual != token:
            raise invalid(f"expected {token!r}, found {actual[:40]!r}")

    def _name(self) -> str:
        token = self._next()
        if not _NAME.fullmatch(token):
            raise invalid(f"expected a name, found {token[:40]!r}")
        return token

    def _type(self) -> str:
        token = self._next()
        if not all(_NAME.fullmatch(each) for each in token.removeprefix(".").split(".")):
            raise invalid(f"expected a type, found {token[:40]!r}")
        return token

    def _string(self) -> str:
        token = self._next()
        if token[:1] not in "\"'":
            raise invalid(f"expected a quoted string, found {token[:40]!r}")
        return token[1:-1]

    def _number(self) -> int:
        sign = -1 if self._maybe("-") else 1
        token = self._next()
        if len(token) > DIGITS_MAX:
            raise invalid(f"a number of {len(token)} digits: {token[:40]!r}…")
        try:
            return sign * int(token, 8 if re.fullmatch(r"0[0-7]+", token) else 0)
        except ValueError:
            raise invalid(f"expected a number, found {token[:40]!r}") from None

    # -- files ---------------------------------------------------------------------------------------------------

    def file(self) -> File:
        made = File()
        rows: dict[str, Callable[[File], None]] = {
            "syntax": self._syntax,
            "package": self._package,
            "import": self._import,
            "option": lambda file: file.options.append(self._option()),
            "message": lambda file: file.messages.append(self._message()),
            "enum": lambda file: file.enums.append(self._enum()),
            "service": lambda file: file.services.append(self._service()),
            "extend": lambda file: file.extends.extend(self._extend()),
            ";": lambda _: None,
        }
        if not self._tokens:
            raise invalid("an empty file")
        while self._peek() != _END:
            word = self._next()
            if word == "edition":
                raise invalid("editions are not supported: write proto2 or proto3")
            if word not in rows:
                raise invalid(f"unexpected {word[:40]!r}")
            rows[word](made)
        return made

    def _syntax(self, file: File) -> None:
        self._expect("=")
        file.syntax = self._string()
        self._expect(";")
        if file.syntax not in ("proto2", "proto3"):
            raise invalid(f"unknown syntax {file.syntax[:20]!r}: use proto2 or proto3")

    def _package(self, file: File) -> None:
        file.package = self._type().removeprefix(".")
        self._expect(";")

    def _import(self, file: File) -> None:
        kind = next((each for each in ("public", "weak") if self._maybe(each)), "")
        file.imports.append((kind, self._string()))
        self._expect(";")

    # -- options -------------------------------------------------------------------------------------------------

    def _option(self) -> Option:
        option = self._assignment(";")
        self._expect(";")
        return option

    def _assignment(self, *ends: str) -> Option:
        name = []
        while self._peek() != "=":
            name.append(self._next())
        self._expect("=")
        value, depth = [], 0
        while depth or self._peek() not in ends:
            token = self._next()
            depth += token in ("{", "[", "<")
            depth -= token in ("}", "]", ">")
            value.append(token)
        return "".join(name), " ".join(value)

    def _brackets(self) -> list[Option]:
        options: list[Option] = []
        if self._maybe("["):
            options.append(self._assignment(",", "]"))
            while self._maybe(","):
                options.append(self._assignment(",", "]"))
            self._expect("]")
        return options

    # -- messages ------------------------------------------------------------------------------------------------

    def _message(self) -> Message:
        made = Message(self._name())
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise invalid(f"messages are nested more than {DEPTH_MAX} deep")
        self._expect("{")
        while not self._maybe("}"):
            self._member(made)
        self._depth -= 1
        return made

    def _member(self, made: Message) -> None:
        word = self._peek()
        is_word = self._tokens[self._at + 1 : self._at + 2] != ["="]
        if word == ";":
            self._next()
        elif word == "message" and is_word and self._declares():
            self._next()
            made.messages.append(self._message())
        elif word == "enum" and is_word and self._declares():
            self._next()
            made.enums.append(self._enum())
        elif word == "extend" and self._tokens[self._at + 2 : self._at + 3] == ["{"]:
            self._next()
            made.extends.extend(self._extend())
        elif word == "option":
            self._next()
            made.options.append(self._option())
        elif word == "oneof" and self._declares():
            self._next()
            self._oneof(made)
        elif word == "reserved":
            self._next()
            self._reserved(made)
        elif word == "extensions":
            self._next()
            made.extension_ranges.extend(self._ranges())
            self._brackets()
            self._expect(";")
        else:
            made.fields.append(self._field())

    def _declares(self) -> bool:
        """Return whether the current word begins a block, and is not the type of a field."""
        return self._tokens[self._at + 2 : self._at + 3] == ["{"]

    def _field(self, oneof: str = "") -> Field:
        label = self._next() if self._peek() in _LABELS and not oneof else ""
        kind, key = self._type(), ""
        if kind == "group":
            raise invalid("groups are not supported: use a message")
        if kind == "map" and self._maybe("<"):
            key = self._type()
            self._expect(",")
            kind = self._type()
            self._expect(">")
            if key not in SCALARS or key in ("double", "float", "bytes") or label:
                raise invalid(f"invalid map key type {key}")
        name = self._name()
        self._expect("=")
        number = self._number()
        if not 0 < number <= NUMBER_MAX or 19_000 <= number < 20_000:
            raise invalid(f"field {name} has the invalid number {number}")
        made = Field(name, number, kind, label, key, oneof, self._brackets())
        self._expect(";")
        return made

    def _oneof(self, made: Message) -> None:
        name = self._name()
        made.oneofs.append(name)
        self._expect("{")
        while not self._maybe("}"):
            if self._maybe("option"):
                self._option()
            elif not self._maybe(";"):
                made.fields.append(self._field(name))

    def _ranges(self) -> list[tuple[int, int]]:
        ranges = []
        while True:
            first = last = self._number()
            if self._maybe("to"):
                last = NUMBER_MAX if self._maybe("max") else self._number()
            ranges.append((first, last))
            if not self._maybe(","):
                return ranges

    def _reserved(self, made: Message | Enum) -> None:
        if self._peek()[:1] in ("'", '"'):
            made.reserved_names.append(self._string())
            while self._maybe(","):
                made.reserved_names.append(self._string())
        else:
            made.reserved.extend(self._ranges())
        self._expect(";")

    def _extend(self) -> list[tuple[str, Field]]:
        extended, fields = self._type(), []
        self._expect("{")
        while not self._maybe("}"):
            fields.append((extended, self._field()))
        return fields

    # -- enums and services --------------------------------------------------------------------------------------

    def _enum(self) -> Enum:
        made = Enum(self._name())
        self._expect("{")
        while not self._maybe("}"):
            if self._maybe("option"):
                made.options.append(self._option())
            elif self._maybe("reserved"):
                self._reserved(made)
            elif not self._maybe(";"):
                name = self._name()
                self._expect("=")
                made.values.append((name, self._number(), self._brackets()))
                self._expect(";")
        if not made.values:
            raise invalid(f"enum {made.name} has no values")
        return made

    def _service(self) -> Service:
        made = Service(self._name())
        self._expect("{")
        while not self._maybe("}"):
            if self._maybe("option"):
                made.options.append(self._option())
            elif not self._maybe(";"):
                self._expect("rpc")
                made.methods.append(self._method())
        return made

    def _method(self) -> Method:
        name = self._name()
        client, given = self._carried()
        self._expect("returns")
        server, returned = self._carried()
        made = Method(name, given, returned, client, server)
        if self._maybe("{"):
            while not self._maybe("}"):
                if not self._maybe(";"):
                    self._expect("option")
                    made.options.append(self._option())
        else:
            self._expect(";")
        return made

    def _carried(self) -> tuple[bool, str]:
        self._expect("(")
        streams = self._peek() == "stream" and self._tokens[self._at + 1 : self._at + 2] != [")"]
        if streams:
            self._next()
        kind = self._type()
        self._expect(")")
        return streams, kind


def is_text(text: str) -> bool:
    """Return whether the text parses as a file; otherwise it may be a descriptor in base64."""
    try:
        read(text)
    except RegistryError:
        return False
    return True


# -- writing -------------------------------------------------------------------------------------------------------


def write(file: File) -> str:
    lines = [f'syntax = "{file.syntax}";']
    if file.package:
        lines.append(f"package {file.package};")
    lines += [""] if file.imports else []
    lines += [f'import {kind + " " if kind else ""}"{path}";' for kind, path in file.imports]
    lines += [""] if file.options else []
    lines += [f"option {name} = {value};" for name, value in file.options]
    for message in file.messages:
        lines += ["", *_message_lines(message)]
    for enum in file.enums:
        lines += ["", *_enum_lines(enum)]
    for service in file.services:
        lines += ["", *_service_lines(service)]
    lines += _extend_lines(file.extends)
    return "\n".join(lines) + "\n"


def _bracketed(options: list[Option]) -> str:
    return f" [{', '.join(f'{name} = {value}' for name, value in options)}]" if options else ""


def _inside(lines: list[str]) -> list[str]:
    return [f"  {each}" if each else each for each in lines]


def _field_line(field: Field) -> str:
    kind = f"map<{field.key}, {field.type}>" if field.key else field.type
    label = f"{field.label} " if field.label else ""
    return f"{label}{kind} {field.name} = {field.number}{_bracketed(field.options)};"


def _message_lines(message: Message) -> list[str]:
    lines = [f"option {name} = {value};" for name, value in message.options]
    lines += _reserved_lines(message)
    lines += [f"extensions {_range(each)};" for each in message.extension_ranges]
    written: set[str] = set()
    for field in message.fields:
        if not field.oneof:
            lines.append(_field_line(field))
        elif field.oneof not in written:
            written.add(field.oneof)
            mine = [_field_line(each) for each in message.fields if each.oneof == field.oneof]
            lines += [f"oneof {field.oneof} {{", *_inside(mine), "}"]
    for inner in message.messages:
        lines += ["", *_message_lines(inner)]
    for enum in message.enums:
        lines += ["", *_enum_lines(enum)]
    lines += _extend_lines(message.extends)
    return [f"message {message.name} {{", *_inside(lines), "}"]


def _extend_lines(extends: list[tuple[str, Field]]) -> list[str]:
    return [line for kind, field in extends for line in (f"extend {kind} {{", f"  {_field_line(field)}", "}")]


def _range(each: tuple[int, int]) -> str:
    first, last = each
    return f"{first}" if first == last else f"{first} to {'max' if last == NUMBER_MAX else last}"


def _reserved_lines(made: Message | Enum) -> list[str]:
    lines = [f"reserved {', '.join(map(_range, made.reserved))};"] if made.reserved else []
    names = ", ".join(f'"{each}"' for each in made.reserved_names)
    return [*lines, f"reserved {names};"] if names else lines


def _enum_lines(enum: Enum) -> list[str]:
    lines = [f"option {name} = {value};" for name, value in enum.options]
    lines += _reserved_lines(enum)
    lines += [f"{name} = {number}{_bracketed(options)};" for name, number, options in enum.values]
    return [f"enum {enum.name} {{", *_inside(lines), "}"]


def _service_lines(service: Service) -> list[str]:
    lines = [f"option {name} = {value};" for name, value in service.options]
    for each in service.methods:
        given = f"{'stream ' if each.client_streaming else ''}{each.input}"
        returned = f"{'stream ' if each.server_streaming else ''}{each.output}"
        lines.append(f"rpc {each.name} ({given}) returns ({returned});")
    return [f"service {service.name} {{", *_inside(lines), "}"]
