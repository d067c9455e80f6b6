"""Read wire logs, text and JSON, that `message_format.py` wrote: connection, side and bytes.

2026-11-15T07:39:52.123456Z mayfly c3 <-- RECV [12+13=25 bytes] Magic=0xCAFE …
> CA FE 01 00 …
"""

import re
from typing import Final, NamedTuple

import msgspec

from braidlog.wire.observer import Side

HEAD: Final = re.compile(r"\S+Z ([a-z]+) (c[0-9]+) (<-- RECV|--> SEND|---)(?: .*)?")
ARROWS: Final = {Side.CLIENT: "<-- RECV", Side.SERVER: "--> SEND"}
PROMPTS: Final = {Side.CLIENT: ">", Side.SERVER: "<"}
_SIDES: Final = {arrow: side for side, arrow in ARROWS.items()}


class Head(NamedTuple):
    dialect: str
    connection: str
    side: Side | None
    """None: the connection opened or closed."""


class _Line(msgspec.Struct):
    dialect: str
    connection: str
    event: str
    side: Side | None = None
    hex: str | None = None


_lines: Final = msgspec.json.Decoder(_Line)


def head_of(line: str) -> Head | None:
    """Parse the first line of a text entry; None for other lines."""
    found = HEAD.fullmatch(line)
    return None if found is None else Head(found[1], found[2], _SIDES.get(found[3]))


def is_json_log(text: str) -> bool:
    return text.lstrip().startswith("{")


def lines_of_json_log(text: str) -> str:
    """Convert a JSON log to a text log."""
    out: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = _lines.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number} is not an entry of a wire log: {error}") from error
        arrow = "---" if entry.side is None else ARROWS[entry.side]
        out.append(f"Z {entry.dialect} {entry.connection} {arrow}".replace("Z ", "0Z ", 1))
        if entry.side is not None and entry.hex:
            out.append(f"{PROMPTS[entry.side]} {entry.hex}")
    return "\n".join(out)
