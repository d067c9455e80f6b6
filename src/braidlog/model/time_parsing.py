"""Parses times as people type them: ISO 8601, `-10m`, `now`, milliseconds.

Invariant: a time without a zone is UTC, regardless of the machine's time zone.
"""

import re
from datetime import UTC, datetime, timedelta

FORMS = "2026-11-15T10:00:00Z, a date, now, -10m (also s, h, d), or milliseconds since 1970"
_AGO = re.compile(r"-(\d+)([smhd])")
_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def parse_time(text: str, now_ms: int) -> int:
    """Return milliseconds since 1970; raises ValueError."""
    if text == "now":
        return now_ms
    if text.isdecimal():
        return int(text)
    if (ago := _AGO.fullmatch(text)) is not None:
        return max(now_ms - int(ago[1]) * _UNITS[ago[2]], 0)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"unknown time {text!r}; use {FORMS}") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return (found - _EPOCH) // _MILLISECOND
