"""Where a consumer begins to read: the ends of a log, an offset, a time.

Knows: what each means in offsets. Refuses to know: groups, what was committed.
"""

from datetime import UTC, datetime, timedelta
from typing import Literal

from braidlog.client.drivers.contract import Driver
from braidlog.client.engine.retry import Policy, retry

Place = tuple[str, int]
Start = Literal["earliest", "latest"] | int | datetime
"""An end of the log, an offset, or a time where the dialect can find one."""

_WORDS = ("earliest", "latest")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def check_start(driver: Driver, start: Start) -> None:
    """`ValueError` for what is no start, `UnsupportedError` for a time where the dialect finds none."""
    if isinstance(start, datetime):
        driver.require("finds_times")
        if start.tzinfo is None:
            raise ValueError("a time to start at has a zone: datetime.now(UTC), datetime(..., tzinfo=UTC)")
    if isinstance(start, str) and start not in _WORDS:
        raise ValueError(f"start is {' or '.join(_WORDS)}, an offset or a datetime, not {start!r}")
    if isinstance(start, int) and start < 0:
        raise ValueError(f"an offset is not negative: {start}")


async def offset_of(driver: Driver, policy: Policy, place: Place, start: Start) -> int:
    """The first record at or after a time; the end where all are older."""
    if isinstance(start, int):
        return start
    if isinstance(start, datetime):
        timestamp_ms = -((_EPOCH - start) // _MILLISECOND)  # rounded up: never a record that is older
        found = await retry(policy, lambda: driver.offset_at(*place, timestamp_ms))
        if found is not None:
            return found
    span = await retry(policy, lambda: driver.span(*place))
    return span.earliest if start == "earliest" else span.latest
