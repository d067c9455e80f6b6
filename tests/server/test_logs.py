"""Lines about clients are few; everything else is always said."""

import logging

from braidlog.server import logs
from braidlog.server.logs import Sparing


def line(name: str = "braidlog.session", level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord(name, level, "", 0, "%s is cut off", ("10.0.0.1:7",), None)


def test_a_flood_of_lines_is_cut_and_told() -> None:
    now = 0.0
    sparing = Sparing(10, now=lambda: now)
    assert sum(sparing.filter(line()) for _ in range(5000)) == logs.BURST_LINES
    now = 1.0
    next_one = line()
    assert sparing.filter(next_one)
    assert next_one.getMessage() == "10.0.0.1:7 is cut off (before this, 4000 lines about clients were left out)"
    assert sum(sparing.filter(line()) for _ in range(100)) == 9
    again = line()
    now = 2.0
    assert sparing.filter(again)
    assert "91 lines" in again.getMessage()


def test_what_always_passes() -> None:
    sparing = Sparing(0.0, now=lambda: 0.0)
    for _ in range(5000):
        sparing.filter(line())
    assert not sparing.filter(line(level=logging.WARNING))
    assert sparing.filter(line(level=logging.ERROR))
    assert sparing.filter(line("braidlog.server"))
