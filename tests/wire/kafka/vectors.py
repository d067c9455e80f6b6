"""Read the golden vectors: text files of commented bytes, each with its source.

A file holds entries that begin with `== name`. Their lines: `Source:`; `> ` from the client or `< ` from the server, bytes in
hex and `texts in backticks`, `#` comments; `header:` what the frame's header says; `message:` what the bytes mean, as an
expression over messages/; `refused: stay|close` what a server does instead; `reads only` where the same message may be spelled in
other bytes than ours.
"""

from pathlib import Path
from typing import Any, NamedTuple

from tests.wire.vector_files import Entry, entries

from braidlog.wire.kafka.apis import BY_KEY, Api
from braidlog.wire.kafka.messages import (
    cluster,
    consumer_groups,
    counting,
    data,
    groups,
    nodes,
    placement,
    security,
    staging,
    topics,
    transactions,
)

_FOLDER = Path(__file__).parent / "vectors"
_MODULES = (cluster, consumer_groups, counting, data, groups, nodes, placement, security, staging, topics, transactions)
_MESSAGES = {name: value for module in _MODULES for name, value in vars(module).items()}


class Vector(NamedTuple):
    name: str
    source: str
    data: bytes
    api: Api | None
    version: int
    correlation_id: int
    client_id: str | None
    message: Any
    closes: bool | None
    reads_only: bool


def load(file: str) -> list[Vector]:
    return [_vector(entry) for entry in entries(_FOLDER / f"{file}.vec")]


def _vector(entry: Entry) -> Vector:
    said = entry.said
    header = dict(word.split("=") for word in said.get("header", "").split())
    return Vector(
        name=entry.name,
        source=said["Source"],
        data=entry.data,
        api=BY_KEY[int(header["api"])] if header else None,
        version=int(header.get("version", -1)),
        correlation_id=int(header.get("correlation_id", -1)),
        client_id=header.get("client_id"),
        message=eval(said["message"], dict(_MESSAGES)) if "message" in said else None,
        closes={"close": True, "stay": False}[said["refused"]] if "refused" in said else None,
        reads_only="reads only" in entry.lines,
    )


REQUESTS = load("requests")
RESPONSES = load("responses")
REFUSED = load("refused")
