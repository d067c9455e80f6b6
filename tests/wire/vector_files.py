"""Read files of golden vectors: entries that begin with `== name`, with bytes in annotated hex and what they mean."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_TOKEN = re.compile(r"`([^`]*)`|([0-9A-F]{2})(?![^\s])|#.*|(\S+)")


class Entry(NamedTuple):
    name: str
    data: bytes
    """The bytes of all lines that begin with `> ` (from the client) or `< ` (from the server)."""
    said: dict[str, str]
    """`key: value` lines."""
    lines: list[str]


def entries(path: Path) -> Iterator[Entry]:
    _, *blocks = re.split(r"^== ", path.read_text("utf-8"), flags=re.MULTILINE)
    for block in blocks:
        name, *lines = block.splitlines()
        data = b"".join(spelled(line[2:]) for line in lines if line[:2] in ("> ", "< "))
        said = {key: value.strip() for key, colon, value in (line.partition(":") for line in lines) if colon}
        yield Entry(name, data, said, lines)


def spelled(line: str) -> bytes:
    """The bytes of a line of hex pairs, `texts in backticks` and # comments."""
    data = bytearray()
    for match in _TOKEN.finditer(line):
        text, pair, wrong = match.groups()
        if wrong is not None:
            raise ValueError(f"{wrong!r} is neither a byte nor a text")
        if text is not None:
            data += text.encode("utf-8")
        elif pair is not None:
            data.append(int(pair, 16))
    return bytes(data)
