"""Formats log lines as JSON.

Invariant: one event is one line, whatever it contains; times are UTC.

    {"time":"2026-11-15T09:47:50.123Z","level":"info","logger":"braidlog.server","message":"…","fields":{"topic":"orders"}}
"""

import logging
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_KNOWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonLines(logging.Formatter):
    """Formatter for a log handler. Values passed as `extra=` become `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, tz=UTC)
        line: dict[str, Any] = {
            "time": f"{moment:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = {name: _plain(value) for name, value in vars(record).items() if name not in _KNOWN}
        if fields:
            line["fields"] = fields
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def formatter(kind: str, text: str = TEXT) -> logging.Formatter:
    """Return the formatter of `json`, or of text in this format."""
    return JsonLines() if kind == "json" else logging.Formatter(text)


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)
