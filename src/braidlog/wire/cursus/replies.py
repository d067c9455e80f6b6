"""Encodes and decodes answer bodies.

Handles `OK key=value …`, the JSON answers and `STREAM_CONTROL`.
Invariant: every written answer is read back unchanged; a value with a blank is rejected when written, because every
client splits at blanks.

    OK topic=orders partitions=4 …                 a line, fields in the order of the type
    OK generation=1 member=m assignments=[0 1 2]   numbers: in brackets, separated by blanks
    OK count=2 topics=a,b                          names: separated by commas
    OK brokers=[{"id":"1",…},…]                    a document with a name
    OK topic=t partitions=1 offsets=P0:earliest=0:latest=3:leo=3:hwm=3
    {"status":"OK","last_offset":9,…}              a document
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.codec.json_guard import check_json, error_position
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus.batch import Batch, Spelling, read_batch, write_batch
from braidlog.wire.cursus.failures import Failure, decode_text, failure_line, parse_failure_line

FIELDS_MAX = 32
LIST_ITEMS_MAX = 200_000

_PLAIN = re.compile(r"[^\s,\[\]]*|\[[0-9A-Fa-f:.]+\]:\d+")
"""A name in a list; in brackets, the IPv6 address of a leader."""
_FIELD = re.compile(r"([^\s=]+)=(\[[^\]]*\]|\S*)")
_NUMBERS = re.compile(r"\[[0-9 ,]*\]")
_RANGE = re.compile(
    r"P(?P<partition>[0-9]{1,10}):earliest=(?P<earliest>[0-9]{1,19}):latest=(?P<latest>[0-9]{1,19})"
    r":leo=(?P<leo>[0-9]{1,19}):hwm=(?P<hwm>[0-9]{1,19})"
)
_CONTROL = b"STREAM_CONTROL"
_JSON_ANSWERS = (a.Ack, a.TopicDescription, a.GroupDescription)

_decoders = {kind: msgspec.json.Decoder(kind) for kind in _JSON_ANSWERS}
_NAMED = {
    kind: (f"OK {field.name}=".encode(), field.name, msgspec.json.Decoder(field.type))
    for kind in (a.SnapshotFound, a.BrokerList, a.ClusterReport)
    for field in msgspec.structs.fields(kind)
}
"""Answers with one field that is a JSON document: `OK snapshot={…}`."""


class _Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first frame of READ_STREAM's answer."""

    status: str
    topic: str = ""
    key: str = ""
    partition: int = -1
    count: int = -1
    snapshot: a.Snapshot | None = None
    error: str = ""


_envelope_decoder = msgspec.json.Decoder(_Envelope)


# --- values in a line


def _items(raw: str, separator: str | None) -> list[str]:
    if raw.count(separator or " ") > LIST_ITEMS_MAX:
        raise ProtocolError(f"a list of more than {LIST_ITEMS_MAX} items")
    return raw.split(separator) if raw else []


def _numbers(raw: str) -> list[str]:
    if _NUMBERS.fullmatch(raw) is None:
        raise ProtocolError("expected numbers in brackets")
    return _items(raw[1:-1].replace(",", " "), None)


def _ranges(raw: str) -> list[dict[str, str]]:
    found = [_RANGE.fullmatch(item) for item in _items(raw, ",")]
    if not all(found):
        raise ProtocolError("expected P<partition>:earliest=…:latest=…:leo=…:hwm=…")
    return [match.groupdict() for match in found if match]


def _write_names(names: tuple[str, ...]) -> str:
    if any(not name or _PLAIN.fullmatch(name) is None for name in names):
        raise ValueError(
            "a name in a list cannot be empty, and cannot contain a blank, a comma or (except in an address) a bracket"
        )
    return ",".join(names)


def _write_text(value: str) -> str:
    if _FIELD.fullmatch(f"x={value}") is None:
        raise ValueError(f"{value!r} contains a blank, and clients split at blanks")
    return value


def _write_range(entry: a.OffsetRange) -> str:
    return f"P{entry.partition}:earliest={entry.earliest}:latest={entry.latest}:leo={entry.leo}:hwm={entry.hwm}"


_SPLIT: dict[Any, Callable[[str], list[Any]]] = {
    tuple[int, ...]: _numbers,
    tuple[str, ...]: lambda raw: _items(raw, ","),
    tuple[a.OffsetRange, ...]: _ranges,
}
_WRITERS: dict[Any, Callable[[Any], str]] = {
    str: _write_text,
    int: str,
    int | None: str,
    bool: lambda value: "true" if value else "false",
    tuple[int, ...]: lambda numbers: f"[{' '.join(map(str, numbers))}]",
    tuple[str, ...]: _write_names,
    tuple[a.OffsetRange, ...]: lambda ranges: ",".join(map(_write_range, ranges)),
}


def _write_line(start: str, answer: Any) -> bytes:  # noqa: ANN401 - any answer that is a line
    parts = [start]
    for field in msgspec.structs.fields(answer):
        value = getattr(answer, field.name)
        if value is not None:
            parts.append(f"{field.encode_name}={_WRITERS[field.type](value)}")
    return " ".join(parts).encode()


def _read_line(start: str, kind: type, body: bytes) -> Any:  # noqa: ANN401 - any answer that is a line
    text = decode_text(body)
    if text != start and not text.startswith((start + " ", start + "\n")):
        raise ProtocolError(f"expected {start}")
    given: dict[str, Any] = {}
    for match in _FIELD.finditer(text, len(start)):
        if len(given) == FIELDS_MAX:
            raise ProtocolError(f"an answer with more than {FIELDS_MAX} fields")
        given[match[1]] = match[2]
    for field in msgspec.structs.fields(kind):
        if field.type in _SPLIT and field.encode_name in given:
            given[field.encode_name] = _SPLIT[field.type](given[field.encode_name])
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{kind.__name__}: {error}") from error


# --- documents


def _read_json(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:  # noqa: ANN401 - any document
    check_json(body)
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the answer is not the expected document: {error}").at(
            error_position(body, error)
        ) from error


# --- reading and writing answers


def write_answer(answer: Any, spelling: Spelling) -> list[bytes]:  # noqa: ANN401 - any answer of the table
    """Return the bodies of the frames of an answer: two for READ_STREAM, one for all others."""
    match answer:
        case Batch():
            return [write_batch(answer, spelling)]
        case a.KeepAlive():
            return [b""]
        case a.StreamControl():
            return [_write_line(_CONTROL.decode(), answer)]
        case a.SnapshotFound() | a.BrokerList() | a.ClusterReport():
            start, name, _ = _NAMED[type(answer)]
            return [start + msgspec.json.encode(getattr(answer, name))]
        case a.StreamContents():
            envelope = _Envelope(
                "OK", answer.topic, answer.key, answer.partition, len(answer.events.records), answer.snapshot
            )
            return [msgspec.json.encode(envelope), write_batch(answer.events, spelling)]
        case a.Ack() | a.TopicDescription() | a.GroupDescription():
            return [msgspec.json.encode(answer)]
        case _:
            return [_write_line("OK", answer)]


def write_stream_failure(failure: Failure) -> bytes:
    """Write a READ_STREAM error inside its envelope: clients parse the first frame as JSON."""
    return msgspec.json.encode(_Envelope("ERROR", error=failure_line(failure)))


def read_answer(kinds: tuple[type, ...], body: bytes) -> Any:  # noqa: ANN401 - any answer of the table
    """Read the answer in a body as one of `kinds`. READ_STREAM has two readers of its own."""
    if Batch in kinds and body.startswith(b"\xba\x7c"):
        return read_batch(body)[0]
    if a.KeepAlive in kinds and not body:
        return a.KeepAlive()
    if a.StreamControl in kinds and body.startswith(_CONTROL):
        return _read_line(_CONTROL.decode(), a.StreamControl, body)
    for kind in kinds:
        if kind in _NAMED and body.startswith(_NAMED[kind][0]):
            start, _, decoder = _NAMED[kind]
            return kind(_read_json(decoder, body[len(start) :]))
    documents = [kind for kind in kinds if kind in _decoders]
    if documents and body.lstrip().startswith(b"{"):
        return _read_json(_decoders[documents[0]], body)
    lines = [kind for kind in kinds if kind not in _NO_LINES]
    if not lines:
        raise ProtocolError("the answer does not match the request")
    return _read_line("OK", lines[0], body)


_NO_LINES = {Batch, a.KeepAlive, a.StreamControl, a.StreamContents, *_NAMED, *_JSON_ANSWERS}


def read_envelope(body: bytes) -> a.StreamContents | Failure:
    """Read the first frame of READ_STREAM's answer: contents without the events, or the failure."""
    envelope: _Envelope = _read_json(_envelope_decoder, body)
    if envelope.status == "ERROR":
        return parse_failure_line(envelope.error)
    if envelope.status != "OK":
        raise ProtocolError("the envelope's status must be OK or ERROR")
    nothing = Batch(envelope.topic, envelope.partition, ())
    return a.StreamContents(envelope.topic, envelope.key, envelope.partition, nothing, envelope.snapshot)


def read_events(contents: a.StreamContents, body: bytes) -> a.StreamContents:
    """Read the second frame: the events. An empty frame means none."""
    return msgspec.structs.replace(contents, events=read_batch(body)[0]) if body else contents
