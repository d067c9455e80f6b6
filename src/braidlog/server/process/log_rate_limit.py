"""Limits the rate of log lines about clients: a thousand failing clients per second must not fill the disk with lines.

Invariants: errors and the node's own lines always pass, except repeats of a disk fault: one line per minute. Lines
about clients pass at `lines_per_second`, after a burst; the next line that passes reports how many were dropped.
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
"""Maximum distinct faults remembered; one more clears the memory, and all are logged again."""


class RateLimitedLog(logging.Filter):
    """A filter for a log handler."""

    def __init__(self, lines_per_second: float = LINES_PER_SECOND, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._rate = lines_per_second
        self._now = now
        self._at = now()
        self._lines = BURST_LINES
        self._left_out = 0
        self._faults: dict[str, tuple[float, int]] = {}
        """Text of a fault → when it was logged, and how often it was repeated since."""

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
