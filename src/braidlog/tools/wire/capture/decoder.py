"""Decode files: raw bytes, hex text, a wire log, or a capture.

Invalid bytes are returned as a message with a fault, never skipped.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from braidlog.tools.wire.annotated_hex import NotationError, encode
from braidlog.tools.wire.capture.observed_connection import Watcher
from braidlog.tools.wire.capture.observed_message import Seen
from braidlog.tools.wire.capture.pcapng import is_capture, segments_of
from braidlog.tools.wire.script import Expect, Send, read_script
from braidlog.tools.wire.script_runner import written
from braidlog.wire.dialect import watched
from braidlog.wire.observer import Side

_HEX: Final = re.compile(rb"\s*(?:[0-9A-Fa-f]{2}\s*)+")
FORMS: Final = ("auto", "raw", "hex", "log", "pcapng")


class Decoded(NamedTuple):
    dialect: str
    connection: str
    client: tuple[str, int] | None
    server: tuple[str, int] | None
    time_ns: int
    seen: Seen


class Unknown(ValueError):  # noqa: N818 - what it is called
    """The form or the dialect of the bytes is unknown."""


def form_of(data: bytes) -> str:
    """Guess the form of the bytes."""
    if is_capture(data):
        return "pcapng"
    begin = data[:65536]
    try:
        text = begin.decode("utf-8") if len(data) <= 65536 else begin[: begin.rfind(b"\n") + 1].decode("utf-8")
    except UnicodeDecodeError:
        return "raw"
    lines = [line for line in text.splitlines() if line.strip()]
    if any(line.startswith((">", "<", "==")) for line in lines) or '"connection":"c' in text:
        return "log"
    if _HEX.fullmatch(begin[: len(text)]) or any(re.match(r"(?:[0-9A-Fa-f]{2} )+\s*#", line) for line in lines):
        return "hex"
    return "raw"


def decode(
    data: bytes, dialect: str | None, side: Side = Side.CLIENT, form: str = "auto", port: int | None = None
) -> Iterator[Decoded]:
    """Yield every message. `side` sent raw or hex bytes; `port` is the server's port in a capture."""
    form = form_of(data) if form == "auto" else form
    if form == "pcapng":
        yield from _captured(data, dialect, port)
    elif form in ("log", "hex"):
        yield from _logged(data, dialect, side)
    else:
        yield from _stream("c1", _named(dialect), [(side, data)])


def _named(dialect: str | None) -> str:
    if dialect is None:
        raise Unknown("unknown dialect: pass --dialect, unless the file is a log, or a capture on a known port")
    return dialect


def _stream(connection: str, dialect: str, pieces: list[tuple[Side, bytes]]) -> Iterator[Decoded]:
    watcher = Watcher(dialect)
    for side, data in pieces:
        for seen in watcher.feed(side, data):
            yield Decoded(dialect, connection, None, None, 0, seen)
    for side in Side:
        for seen in watcher.end(side):
            yield Decoded(dialect, connection, None, None, 0, seen)


def _logged(data: bytes, dialect: str | None, side: Side) -> Iterator[Decoded]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unknown(f"not text: {error}") from error
    arrows = bool(re.search(r"^[<>] ", text, re.MULTILINE)) or text.lstrip().startswith("{")
    for number, case in enumerate(read_script(text), 1):
        pieces: list[tuple[Side, bytes]] = []
        for step in case.steps:
            if isinstance(step, Send | Expect):
                who = side if not arrows else Side.CLIENT if isinstance(step, Send) else Side.SERVER
                pieces.append((who, _bytes_of(step)))
        yield from _stream(case.name or f"c{number}", _named(dialect or case.dialect), pieces)


def _bytes_of(step: Send | Expect) -> bytes:
    try:
        return written(step.items, step.line)
    except NotationError:
        return encode(step.items, {}, step.line)


def _captured(data: bytes, dialect: str | None, port: int | None) -> Iterator[Decoded]:
    known = {each.port: name for name, each in watched().items()}
    watchers: dict[str, Watcher] = {}
    for segment in segments_of(data, port):
        watcher = watchers.get(segment.connection)
        client, server = (
            (segment.source, segment.target) if segment.side is Side.CLIENT else (segment.target, segment.source)
        )
        if watcher is None:
            watcher = watchers[segment.connection] = Watcher(_named(dialect or known.get(server.port)))
        for seen in watcher.feed(segment.side, segment.data):
            yield Decoded(watcher.dialect, segment.connection, client, server, segment.time_ns, seen)
    for connection, watcher in watchers.items():
        for side in Side:
            for seen in watcher.end(side):
                yield Decoded(watcher.dialect, connection, None, None, 0, seen)
