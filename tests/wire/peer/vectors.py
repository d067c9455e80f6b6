"""Read the golden vectors: entries that begin with `== name`, a `Source:`, bytes in hex with `#` comments, and what they mean."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from braidlog.wire.peer import messages

_FOLDER = Path(__file__).parent / "vectors"
_BYTES = re.compile(r"(?:[0-9A-F]{2}(?: |$))+")


class Vector(NamedTuple):
    name: str
    source: str
    data: bytes
    message: Any
    refused: int | None


def load(file: str) -> list[Vector]:
    _, *entries = re.split(r"^== ", (_FOLDER / f"{file}.vec").read_text("utf-8"), flags=re.MULTILINE)
    return [_entry(*entry.splitlines()) for entry in entries]


def _entry(name: str, *lines: str) -> Vector:
    said = {key: value.strip() for key, colon, value in (line.partition(":") for line in lines) if colon}
    bare = [line.partition("#")[0].strip() for line in lines]
    data = b"".join(bytes.fromhex(line) for line in bare if _BYTES.fullmatch(line))
    message = eval(said["message"], dict(vars(messages))) if "message" in said else None
    return Vector(name, said["Source"], data, message, int(said["refused"]) if "refused" in said else None)


MESSAGES = load("messages")
REFUSED = load("refused")
