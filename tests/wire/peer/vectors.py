"""Read the golden vectors: entries with a `Source:`, lines of bytes in hex that begin with `> `, and what they mean."""

from pathlib import Path
from typing import Any, NamedTuple

from tests.wire.vector_files import Entry, entries

from braidlog.wire.peer import messages

_FOLDER = Path(__file__).parent / "vectors"


class Vector(NamedTuple):
    name: str
    source: str
    data: bytes
    message: Any
    refused: int | None


def load(file: str) -> list[Vector]:
    return [_vector(entry) for entry in entries(_FOLDER / f"{file}.vec")]


def _vector(entry: Entry) -> Vector:
    said = entry.said
    message = eval(said["message"], dict(vars(messages))) if "message" in said else None
    return Vector(entry.name, said["Source"], entry.data, message, int(said["refused"]) if "refused" in said else None)


MESSAGES = load("messages")
REFUSED = load("refused")
