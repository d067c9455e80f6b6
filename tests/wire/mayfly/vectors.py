"""Read the golden vectors: text files of commented bytes, each with its source.

A file holds entries that begin with `== name`. Their lines: `Source:`; `> ` from the client or `< ` from the server, bytes in hex
and `texts in backticks`, `#` comments; `request:`, `asked:` and `answer:` what the bytes mean, as expressions over the dialect's
messages; `refused: stay|close status id` what a server does instead, `first:` the request before it, `then:` the refusal after
it; `reads only` where the same message may be spelled in other bytes than ours; `unfinished` where more of it would come.
"""

from pathlib import Path
from typing import Any, NamedTuple

from tests.wire.vector_files import Entry, entries

from braidlog.wire.mayfly import messages
from braidlog.wire.mayfly.connection import Request
from braidlog.wire.mayfly.messages import Status

_FOLDER = Path(__file__).parent / "vectors"
_NAMES = {**vars(messages), "Request": Request}


class Refusal(NamedTuple):
    close: bool
    status: Status | None
    id: int


class Vector(NamedTuple):
    name: str
    source: str
    data: bytes
    request: Any
    asked: Any
    answer: Any
    refusals: tuple[Refusal, ...]
    reads_only: bool
    unfinished: bool


def load(file: str) -> list[Vector]:
    return [_vector(entry) for entry in entries(_FOLDER / f"{file}.vec")]


def _vector(entry: Entry) -> Vector:
    said = entry.said
    return Vector(
        name=entry.name,
        source=said["Source"],
        data=entry.data,
        request=_value(said.get("request") or said.get("first")),
        asked=_value(said.get("asked")),
        answer=_value(said.get("answer")),
        refusals=tuple(_refusal(said[key]) for key in ("refused", "then") if key in said),
        reads_only="reads only" in entry.lines,
        unfinished="unfinished" in entry.lines,
    )


def _value(expression: str | None) -> Any:
    return None if expression is None else eval(expression, dict(_NAMES))


def _refusal(words: str) -> Refusal:
    end, status, request_id = words.split()
    return Refusal({"close": True, "stay": False}[end], None if status == "none" else Status[status], int(request_id))


REQUESTS = load("requests")
ANSWERS = load("answers")
REFUSED = load("refused")
