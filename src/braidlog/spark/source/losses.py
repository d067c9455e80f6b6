"""Records that were deleted before they were read: finds the ranges, and applies the policy.

`report` reports each offset of a partition once, even if a replanned trigger or a retried task finds it missing
again: ranges in the report topic are left out. Gaps inside the log are not losses: compaction and aborted
transactions leave them. Does not handle: why the log deleted records.

A report is a record of the topic `lossTopic`, its key `topic/partition`, its value JSON:

    {"reader": "group or null", "topic": "orders", "partition": 0, "from": 17, "to": 25, "why": "…", "at_ms": 1700000000000}

`to` is null if a topic was deleted, or recreated: its last offset is unknown.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from braidlog.client.blocking import Client, connect
from braidlog.model.clock import SystemClock
from braidlog.spark.options import OptionError
from braidlog.spark.source.bounds import ends, find_places, starts, within
from braidlog.spark.source.logs import Log
from braidlog.spark.source.options import Query
from braidlog.spark.source.planning import Range
from braidlog.spark.source.positions import EARLIEST, Identities, Offsets, Place, same_topics

_log = logging.getLogger("braidlog.spark")
_SHOWN_MAX = 20
_POLL_SECONDS = 1.0

DELETED = "the log starts later: retention or a deletion removed them before they were read"
GONE = "the topic or partition no longer exists"
ANEW = "the log ends before the offset that was reached: it was recreated or truncated"
OTHER = "the topic was deleted and created again: unread records of the old one are lost"


class Lost(msgspec.Struct, frozen=True):
    """Offsets [start, end) of a partition; `end` None: all from there."""

    topic: str
    partition: int
    start: int
    end: int | None
    why: str

    def __str__(self) -> str:
        upto = f"[{self.start}, {self.end})" if self.end is not None else f"from {self.start} on"
        return f"{self.topic}/{self.partition} {upto}: {self.why}"


class DataLossError(RuntimeError):
    """Records were deleted before they were read. `lost` names the ranges."""

    def __init__(self, lost: Sequence[Lost]) -> None:
        super().__init__(lost)
        self.lost = tuple(lost)

    def __str__(self) -> str:
        more = f"; and {len(self.lost) - _SHOWN_MAX} more" if len(self.lost) > _SHOWN_MAX else ""
        ranges = "; ".join(map(str, self.lost[:_SHOWN_MAX]))
        return (
            f"records were deleted before they were read: {ranges}{more}. Set onDataLoss = skip or report to continue"
        )


class Report(msgspec.Struct, frozen=True):
    """The value of a report."""

    reader: str | None
    topic: str
    partition: int
    start: int = msgspec.field(name="from")
    end: int | None = msgspec.field(name="to")
    why: str
    at_ms: int


# -- finding ---------------------------------------------------------------------------------------------------------


def plan(
    log: Log, start: Mapping[Place, int], end: Mapping[Place, int], identities: Identities | None = None
) -> tuple[list[Range], list[Lost]]:
    """Return the readable ranges of [start, end), and the lost ones. Places without a start begin with their first
    offset. `identities`: of the topics in `end`; a topic whose identity has changed is lost."""

    def there(counts: Mapping[str, int]) -> list[Place]:
        same = same_topics(dict(end), identities or {}, log.identities)
        return [(topic, number) for topic, number in same if number < counts.get(topic, 0)]

    earliest = log.look({topic for topic, _ in end}, there, EARLIEST)
    ranges: list[Range] = []
    lost: list[Lost] = []
    for place, upto in sorted(end.items()):
        first = earliest.get(place)
        begin = start.get(place, 0 if first is None else first)
        if first is None:
            lost += [Lost(*place, begin, upto, GONE)] if begin < upto else []
        elif begin > upto:
            lost.append(Lost(*place, begin, None, ANEW))
            ranges.append(Range(*place, min(first, upto), upto))
        else:
            lost += [Lost(*place, begin, min(first, upto), DELETED)] if begin < min(first, upto) else []
            ranges.append(Range(*place, min(max(begin, first), upto), upto))
    return [each for each in ranges if each.rows], lost


def gone(start: Offsets, places: Iterable[Place], why: str = GONE) -> list[Lost]:
    return [Lost(*place, start[place], None, why) for place in sorted(places)]


def plan_batch(log: Log, query: Query) -> tuple[list[Range], list[Lost]]:
    """Plan all that a batch query selects."""
    places = find_places(log, query.selection)
    begin = starts(log, query.start, places, query.starting_offsets_by_timestamp_strategy)
    return plan(log, *within(log, begin, ends(log, query.end, places), query))


# -- policies --------------------------------------------------------------------------------------------------------


class Losses:
    """The policy of one query."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._handled: set[tuple[str, int, int, int | None]] = set()
        """Ranges that this process has handled; a stream finds the same range missing at every trigger."""

    def handle(self, lost: Sequence[Lost]) -> None:
        new = [each for each in lost if (each.topic, each.partition, each.start, each.end) not in self._handled]
        if new:
            _POLICIES[self._query.on_loss](self._query, new)
            self._handled |= {(each.topic, each.partition, each.start, each.end) for each in new}


def _fail(query: Query, lost: Sequence[Lost]) -> None:  # noqa: ARG001 - a policy's signature
    raise DataLossError(lost)


def _skip(query: Query, lost: Sequence[Lost]) -> None:  # noqa: ARG001 - a policy's signature
    for each in lost:
        _log.warning("records were deleted before they were read: %s", each)


def _report(query: Query, lost: Sequence[Lost]) -> None:
    _skip(query, lost)
    assert query.servers is not None
    assert query.loss_topic is not None
    with connect(query.servers) as client:
        client.admin.ensure_topic(query.loss_topic)
        known = [each for each in reports(client, query.loss_topic) if each.reader == query.group_id]
        now_ms = SystemClock().now_ms()
        new = [
            Report(query.group_id, each.topic, each.partition, start, end, each.why, now_ms)
            for each in lost
            for start, end in unreported_ranges(each, known)
        ]
        with client.producer(acks="all") as producer:
            for one in new:
                key = f"{one.topic}/{one.partition}".encode()
                producer.send_and_wait(query.loss_topic, msgspec.json.encode(one), key=key, partition=0)


def reports(client: Client, topic: str) -> list[Report]:
    """Return all reports in a topic."""
    end = client.admin.describe_topic(topic).partitions[0].latest
    all_reports: list[Report] = []
    with client.consumer() as consumer:
        consumer.assign(topic, [0], start="earliest")
        while consumer.position(topic, 0) < end:
            records = consumer.poll(10_000, _POLL_SECONDS)
            all_reports += [_read_report(topic, record.offset, record.value) for record in records]
    return all_reports


def _read_report(topic: str, offset: int, value: bytes | None) -> Report:
    try:
        return msgspec.json.decode(value or b"", type=Report)
    except msgspec.DecodeError as error:
        said = f"it must contain only reports, but offset {offset} holds something else: {error}"
        raise OptionError("lossTopic", topic, said) from error


def unreported_ranges(lost: Lost, reports: Iterable[Report]) -> list[tuple[int, int | None]]:
    """Return the parts of a lost range that are not reported yet."""
    mine = [report for report in reports if (report.topic, report.partition) == (lost.topic, lost.partition)]
    if lost.end is None:
        return [] if any(each.start == lost.start and each.end is None for each in mine) else [(lost.start, None)]
    at, parts = lost.start, []
    for each in sorted((each for each in mine if each.end is not None), key=lambda each: each.start):
        assert each.end is not None
        if each.end <= at or each.start >= lost.end:
            continue
        if each.start > at:
            parts.append((at, each.start))
        at = max(at, each.end)
    if at < lost.end:
        parts.append((at, lost.end))
    return list(parts)


_POLICIES: dict[str, Callable[[Query, Sequence[Lost]], None]] = {"fail": _fail, "skip": _skip, "report": _report}
