"""Lines about clients are few; everything else is always said."""

import logging

from braidlog.model.errors import StorageFault
from braidlog.server.process import log_rate_limit
from braidlog.server.process.log_rate_limit import RateLimitedLog


def line(name: str = "braidlog.session", level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord(name, level, "", 0, "%s is cut off", ("10.0.0.1:7",), None)


def test_a_flood_of_lines_is_cut_and_told() -> None:
    now = 0.0
    sparing = RateLimitedLog(10, now=lambda: now)
    assert sum(sparing.filter(line()) for _ in range(5000)) == log_rate_limit.BURST_LINES
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
    sparing = RateLimitedLog(0.0, now=lambda: 0.0)
    for _ in range(5000):
        sparing.filter(line())
    assert not sparing.filter(line(level=logging.WARNING))
    assert sparing.filter(line(level=logging.ERROR))
    assert sparing.filter(line("braidlog.server"))


def test_one_line_a_minute_of_a_fault_with_the_partitions_name() -> None:
    now = 0.0
    sparing = RateLimitedLog(10, now=lambda: now)
    fault = StorageFault("cannot write: Input/output error", "/data/topics/00000001/0")
    fault.place = "orders/0"

    def say(fault: StorageFault) -> str | None:
        line = logging.LogRecord("braidlog.session", logging.ERROR, "", 0, "%s: %s", (fault.place, fault), None)
        return line.getMessage() if sparing.filter(line) else None

    told = "orders/0: /data/topics/00000001/0: cannot write: Input/output error"
    assert [say(fault.again()) for _ in range(3)] == [told, None, None]
    assert say(StorageFault("cannot read")) == ": cannot read"  # another one is said
    now = 60.0
    assert say(fault) == f"{told} (and 2 times more since it was said last)"
    for number in range(2000):
        say(StorageFault(str(number)))
    assert say(fault) is not None  # no more is remembered than there is room for
