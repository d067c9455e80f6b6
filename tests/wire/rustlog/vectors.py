"""Read the golden vectors: text files of commented bytes, each with its source.

A file holds entries that begin with `== name`. Their lines: `Source:`; `> ` from the client or `< ` from the server, bytes in
hex and `texts in backticks`, `#` comments; `asked:` the request that an answer belongs to; `message:` what the bytes mean, as an
expression over messages.py; `refused: stay|close code form [id=…]` what a server does instead; `reads only` where the same
message may be spelled in other bytes than ours.
"""

from pathlib import Path
from typing import Any, NamedTuple

from tests.wire.vector_files import Entry, entries

from braidlog.wire.rustlog import messages
from braidlog.wire.rustlog.messages import Form, Id

_FOLDER = Path(__file__).parent / "vectors"


class Refusal(NamedTuple):
    close: bool
    code: int
    form: Form
    id: Id


class Vector(NamedTuple):
    name: str
    source: str
    data: bytes
    form: Form
    message: Any
    asked: Any
    refusal: Refusal | None
    reads_only: bool


def load(file: str) -> list[Vector]:
    form = Form.BINARY if file.startswith("binary") else Form.JSON
    return [_vector(entry, form) for entry in entries(_FOLDER / f"{file}.vec")]


def _vector(entry: Entry, form: Form) -> Vector:
    said = entry.said
    return Vector(
        name=entry.name,
        source=said["Source"],
        data=entry.data,
        form=form,
        message=_value(said.get("message")),
        asked=_value(said.get("asked")),
        refusal=_refusal(said.get("refused")),
        reads_only="reads only" in entry.lines,
    )


def _value(expression: str | None) -> Any:
    return None if expression is None else eval(expression, dict(vars(messages)))


def _refusal(words: str | None) -> Refusal | None:
    if words is None:
        return None
    end, code, form, *more = words.split(maxsplit=3)
    request_id = eval(more[0].removeprefix("id=")) if more else None
    return Refusal(close={"close": True, "stay": False}[end], code=int(code), form=Form(form), id=request_id)


REQUESTS = load("json-requests") + load("binary-requests")
ANSWERS = load("json-answers") + load("binary-answers")
REFUSED = load("refused")
