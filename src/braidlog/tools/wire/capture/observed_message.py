"""A decoded message of one side, without secrets.

No secret leaves this module. A value that the dialect's table declares secret is replaced in the fields and in the
bytes; if it is not found in the bytes, the whole body is replaced.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from braidlog.tools.wire.annotated_hex import HIDDEN
from braidlog.wire.dialect import Secrets
from braidlog.wire.observer import Fault, Reading, Side, fields_of

Span = tuple[int, int]


class Seen(msgspec.Struct, frozen=True):
    """A message. `data` has `**` in place of secrets; `position` is its start in the bytes of its side."""

    side: Side
    name: str
    head: dict[str, Any]
    fields: dict[str, Any]
    data: bytes
    header_bytes: int
    position: int = 0
    hidden: tuple[Span, ...] = ()
    fault: Fault | None = None
    left_out: int = 0
    """Omitted bytes at the end of a large message."""

    @property
    def size(self) -> int:
        return len(self.data) + self.left_out


def see(side: Side, frame: bytes, reading: Reading, table: Secrets, position: int) -> Seen:
    """Return the decoded message without secrets."""
    secrets = list(reading.secrets)
    fields = reading.fields
    if fields is None:
        fields = {} if reading.message is None else fields_of(reading.message, table, secrets)
    data, hidden = conceal(frame, reading.header_bytes, secrets, everything=reading.is_secret)
    return Seen(side, reading.name, reading.head, fields, data, reading.header_bytes, position, hidden, reading.fault)


def conceal(
    frame: bytes, header_bytes: int, secrets: Iterable[bytes], *, everything: bool = False
) -> tuple[bytes, tuple[Span, ...]]:
    """Replace secrets in the bytes; return the bytes and the positions of secrets."""
    spans: list[Span] = []
    for secret in secrets:
        if not secret:
            continue
        at = frame.find(secret, header_bytes)
        if at < 0:
            everything = True
        while at >= 0:
            spans.append((at, at + len(secret)))
            at = frame.find(secret, at + len(secret))
    if everything:
        spans = [(header_bytes, len(frame))] if len(frame) > header_bytes else []
    if not spans:
        return frame, ()
    out = bytearray(frame)
    for start, end in spans:
        out[start:end] = bytes((HIDDEN,)) * (end - start)
    return bytes(out), tuple(sorted(spans))
