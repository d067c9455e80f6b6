"""What clients make a node say, within bounds: a thousand strangers a second must not fill the disk with lines about them.

Knows: how many lines were let through lately. Refuses to know: what they say, where they go.
Invariant: errors and what the node says about itself always pass, but of one fault of the disk, which every request meets anew,
one line a minute; of lines about clients at most `lines_per_second` do, after a burst, and the next one that passes tells how
many did not.
"""

import logging
import time
from collections.abc import Callable

from braidlog.model.errors import StorageFault

ABOUT_CLIENTS = ("braidlog.session", "braidlog.listener", "braidlog.budget")
LINES_PER_SECOND = 50.0
BURST_LINES = 1000.0
FAULT_SECONDS = 60.0
FAULTS_MAX = 1000
"""Faults that are told apart; one more, and all of them are said anew."""


class RateLimitedLog(logging.Filter):
    """A filter for a handler."""

    def __init__(self, lines_per_second: float = LINES_PER_SECOND, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._rate = lines_per_second
        self._now = now
        self._at = now()
        self._lines = BURST_LINES
        self._left_out = 0
        self._faults: dict[str, tuple[float, int]] = {}
        """What was said of a fault → when, and how often it came since."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and any(isinstance(each, StorageFault) for each in record.args):
            return self._is_news(record)
        if record.levelno >= logging.ERROR or record.name not in ABOUT_CLIENTS:
            return True
        now = self._now()
        self._lines = min(self._lines + (now - self._at) * self._rate, BURST_LINES)
        self._at = now
        if self._lines < 1:
            self._left_out += 1
            return False
        self._lines -= 1
        if self._left_out:
            record.msg = f"{record.getMessage()} (before this, {self._left_out} lines about clients were left out)"
            record.args = ()
            self._left_out = 0
        return True

    def _is_news(self, record: logging.LogRecord) -> bool:
        said, now = record.getMessage(), self._now()
        at, repeated = self._faults.get(said, (now - FAULT_SECONDS, 0))
        if now - at < FAULT_SECONDS:
            self._faults[said] = at, repeated + 1
            return False
        if len(self._faults) >= FAULTS_MAX:
            self._faults.clear()
        self._faults[said] = now, 0
        if repeated:
            record.msg, record.args = f"{said} (and {repeated} times more since it was said last)", ()
        return True
