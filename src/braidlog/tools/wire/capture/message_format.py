"""Format messages for a log: a line in the style of the Mayfly document with annotated hex, or a JSON object.

`braid wire send` accepts entries of both logs if they include the bytes.

    2026-11-15T07:39:52.123456Z mayfly c3 <-- RECV [12+13=25 bytes] Magic=0xCAFE Ver=1 Cmd=0x00(AUTH) ReqID=1 Len=13 token=…
    > CA FE 01 00 00 00 00 01 00 00 00 0D                # ............
    > 00 0B ** ** ** ** ** ** ** ** ** ** **             # ..***********
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from braidlog.tools.wire.capture.observed_message import Seen, Span
from braidlog.tools.wire.capture.transcript import ARROWS, PROMPTS

ROW_BYTES: Final = 16
VALUE_CHARS_MAX: Final = 200
LIST_ITEMS_MAX: Final = 8


class Moment(msgspec.Struct, frozen=True):
    """Time, dialect and connection (c1, c2, …) of an entry."""

    time_ns: int
    dialect: str
    connection: str
    peer: str = ""


def stamp(time_ns: int) -> str:
    """Format a time in UTC with microseconds."""
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, tz=UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns // 1000 % 1_000_000:06d}Z"


# -- text ------------------------------------------------------------------------------------------------------


def text_of(moment: Moment, seen: Seen, *, with_bytes: bool) -> str:
    """Return the entry of a message, with a newline."""
    lines = [f"{_head(moment)} {ARROWS[seen.side]} {sentence(seen)}"]
    if with_bytes:
        lines += hex_rows(seen)
    return "\n".join(lines) + "\n"


def event_text(moment: Moment, event: str, detail: str = "") -> str:
    """Return the entry of an event: `open`, `closed`, `gap`."""
    return f"{_head(moment)} --- {event.upper()}{' ' + detail if detail else ''}\n"


def _head(moment: Moment) -> str:
    return f"{stamp(moment.time_ns)} {moment.dialect} {moment.connection}"


def sentence(seen: Seen) -> str:
    """Format size, header, fields and fault of a message."""
    parts = [f"[{seen.header_bytes}+{seen.size - seen.header_bytes}={seen.size} bytes]", seen.name]
    parts += [f"{name}={_value(value)}" for name, value in (*seen.head.items(), *seen.fields.items())]
    if seen.fault is not None:
        where = "" if seen.fault.position is None else f" (at byte {seen.fault.position})"
        parts.append(f"!! {_printable(seen.fault.message)}{where}")
    return " ".join(parts)


def _value(value: Any) -> str:  # noqa: ANN401 - any field
    if isinstance(value, str) and value and value.isprintable() and " " not in value:
        return _cut(value)
    if isinstance(value, bytes):
        return _bytes(value)
    if isinstance(value, list):
        more = f", … {len(value)} in total" if len(value) > LIST_ITEMS_MAX else ""
        return f"[{', '.join(map(_value, value[:LIST_ITEMS_MAX]))}{more}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}={_value(each)}' for name, each in value.items())}}}"
    if isinstance(value, str):
        return value if value.startswith("<hidden") else _cut(msgspec.json.encode(value).decode())
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _bytes(value: bytes) -> str:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return f"0x{value[: VALUE_CHARS_MAX // 2].hex()}" + ("…" if len(value) > VALUE_CHARS_MAX // 2 else "")
    return _cut(msgspec.json.encode(text).decode())


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…({len(text)} characters)"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "·" for letter in text)[:VALUE_CHARS_MAX]


def hex_rows(seen: Seen) -> Iterator[str]:
    """Yield the bytes as annotated hex: the header on separate lines, then the body."""
    for start, end in ((0, seen.header_bytes), (seen.header_bytes, len(seen.data))):
        yield from rows_of(PROMPTS[seen.side], seen.data[:end], seen.hidden, start)
    if seen.left_out:
        yield f"# {seen.left_out} more bytes omitted"


def rows_of(prompt: str, data: bytes, hidden: tuple[Span, ...] = (), start: int = 0) -> Iterator[str]:
    """Yield the bytes from `start`, sixteen per line, with a prompt to send or expect them."""
    for at in range(start, len(data), ROW_BYTES):
        row = data[at : at + ROW_BYTES]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{prompt} {hex_pairs(row, hidden, at):{ROW_BYTES * 3 - 1}}   # {letters}"


def hex_pairs(data: bytes, hidden: tuple[Span, ...] = (), at: int = 0) -> str:
    """Format bytes as `CA FE **`; `at` is the position of `data` for `hidden`."""
    pairs = [f"{byte:02X}" for byte in data]
    for start, end in hidden:
        for index in range(max(start - at, 0), min(end - at, len(pairs))):
            pairs[index] = "**"
    return " ".join(pairs)


def fields_text(seen: Seen) -> Iterator[str]:
    """Yield one line per field."""
    names = [*seen.head, *seen.fields]
    width = max(map(len, names), default=0)
    for name, value in (*seen.head.items(), *seen.fields.items()):
        yield from _field_lines(name.ljust(width), value, "    ")


def _field_lines(name: str, value: Any, indent: str) -> Iterator[str]:  # noqa: ANN401 - any field
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        yield f"{indent}{name}  {len(value)}:"
        for index, each in enumerate(value):
            yield from _field_lines(f"[{index}]", each, indent + "  ")
    elif isinstance(value, dict) and value:
        yield f"{indent}{name}"
        for inner, each in value.items():
            yield from _field_lines(inner, each, indent + "  ")
    else:
        yield f"{indent}{name}  {_value(value)}"


# -- JSON ------------------------------------------------------------------------------------------------------


def json_of(moment: Moment, seen: Seen, *, with_bytes: bool) -> bytes:
    """Return the JSON entry of a message (docs/schemas/wire-log.json), with a newline."""
    entry = {**_json_head(moment), "event": "message", **message_object(seen)}
    if with_bytes:
        entry["hex"] = hex_pairs(seen.data, seen.hidden)
    return msgspec.json.encode(entry) + b"\n"


def event_json(moment: Moment, event: str, detail: str = "") -> bytes:
    entry = {**_json_head(moment), "event": event}
    if detail:
        entry["detail"] = detail
    return msgspec.json.encode(entry) + b"\n"


def _json_head(moment: Moment) -> dict[str, Any]:
    head: dict[str, Any] = {"time": stamp(moment.time_ns), "dialect": moment.dialect, "connection": moment.connection}
    if moment.peer:
        head["peer"] = moment.peer
    return head


def message_object(seen: Seen) -> dict[str, Any]:
    """Return a message as JSON values: UTF-8 bytes as text, other bytes as `{"hex": …}`."""
    found: dict[str, Any] = {
        "side": seen.side.value,
        "name": seen.name,
        "position": seen.position,
        "bytes": seen.size,
        "header_bytes": seen.header_bytes,
        "head": _jsonable(seen.head),
        "fields": _jsonable(seen.fields),
    }
    if seen.fault is not None:
        found["fault"] = {"message": seen.fault.message, "position": seen.fault.position}
    return found


def _jsonable(value: Any) -> Any:  # noqa: ANN401 - any field
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, dict):
        return {name: _jsonable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_jsonable(each) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value
