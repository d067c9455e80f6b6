"""Decode the messages of one connection live.

Secrets are hidden first (`tools/wire/capture/observed_message.py`). Lost bytes are reported, and nothing after them is decoded.
"""

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from braidlog.console.node_client import Node
from braidlog.model.reporting.node_report import WatchedPiece
from braidlog.tools.wire.capture.message_format import hex_rows, sentence, stamp
from braidlog.tools.wire.capture.observed_connection import Watcher
from braidlog.tools.wire.capture.observed_message import Seen
from braidlog.wire.observer import Side

KEEP_BYTES_MAX: Final = 1024 * 1024
HEX_ROWS_MAX: Final = 64
FIELDS_BYTES_MAX: Final = 8 * 1024


async def wire_messages(node: Node, number: int, dialect: str) -> AsyncIterator[dict[str, Any]]:
    """Yield decoded messages of a connection as they pass."""
    watcher = Watcher(dialect, KEEP_BYTES_MAX)
    async for piece in node.watch(number):
        if piece.is_closed:
            yield {"kind": "closed", "time": stamp(piece.time_ns), "text": "connection closed"}
            return
        if piece.lost:
            text = f"{piece.lost} bytes were lost; decoding stopped. Reopen this page to resume."
            yield {"kind": "gap", "time": stamp(piece.time_ns), "text": text}
            return
        for message in _messages(watcher, piece):
            yield message


def _messages(watcher: Watcher, piece: WatchedPiece) -> list[dict[str, Any]]:
    return [_shown(seen, piece.time_ns) for seen in watcher.feed(Side(piece.side), piece.data)]


def _shown(seen: Seen, time_ns: int) -> dict[str, Any]:
    rows = [row for row, _ in zip(hex_rows(seen), range(HEX_ROWS_MAX), strict=False)]
    fields = msgspec.json.encode({**seen.head, **seen.fields})
    if len(fields) > FIELDS_BYTES_MAX:
        fields = msgspec.json.encode({**seen.head, "…": f"{len(fields)} bytes of fields"})
    return {
        "kind": "message",
        "time": stamp(time_ns),
        "side": seen.side.value,
        "name": seen.name,
        "size": seen.size,
        "text": sentence(seen),
        "fields": msgspec.json.format(fields.decode(), indent=2),
        "hex": "\n".join(rows),
        "fault": "" if seen.fault is None else seen.fault.message,
    }
