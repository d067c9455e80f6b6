"""Where a consumer starts to read: an end of the log, an offset, a time.

Does not handle: groups, committed offsets.
"""

from datetime import UTC, datetime, timedelta
from typing import Literal

from braidlog.client.drivers.contract import Driver
from braidlog.client.engine.retry import Policy, retry

Place = tuple[str, int]
Start = Literal["earliest", "latest"] | int | datetime
"""An end of the log, an offset, or a time if the dialect can find one."""

_WORDS = ("earliest", "latest")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def check_start(driver: Driver, start: Start) -> None:
    """Raise `ValueError` for an invalid start, `UnsupportedError` for a time if the dialect cannot find offsets by
    time."""
    if isinstance(start, datetime):
        driver.require("finds_times")
        if start.tzinfo is None:
            raise ValueError("a start time needs a time zone: datetime.now(UTC), datetime(..., tzinfo=UTC)")
    if isinstance(start, str) and start not in _WORDS:
        raise ValueError(f"start must be {' or '.join(_WORDS)}, an offset or a datetime, not {start!r}")
    if isinstance(start, int) and start < 0:
        raise ValueError(f"an offset must not be negative: {start}")


async def offset_of(driver: Driver, policy: Policy, place: Place, start: Start) -> int:
    """Return the offset of a start; for a time the first record at or after it, or the end if all are older."""
    if isinstance(start, int):
        return start
    if isinstance(start, datetime):
        timestamp_ms = -((_EPOCH - start) // _MILLISECOND)  # rounded up: never a record that is older
        offset = await retry(policy, lambda: driver.offset_at(*place, timestamp_ms))
        if offset is not None:
            return offset
    span = await retry(policy, lambda: driver.span(*place))
    return span.earliest if start == "earliest" else span.latest
