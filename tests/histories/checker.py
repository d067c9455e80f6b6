"""Whether a history is one that a log, or keys, may have: pure, and silent about how it came to be.

What is held against it: nothing acknowledged is lost or moved; no offset is given twice; nothing is there that nobody sent, that
was refused, or that is sent only later; nothing is there twice but from clients that send twice; order, of idempotent producers
by number and of all by time; what was read stays; nothing is read at or above the watermark, which never goes back for one
reader; transactions are whole or not there, and never seen before their commit; commits of groups are a register; increments
are counted exactly; a key with a time to live does not go early; calls of a key have an order that explains all answers.

The time it takes grows as the history does (3 µs a record, each read twice), but for calls of keys (`linearizability.py`) and for
commits of groups.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tests.histories.history import (
    Append,
    Call,
    History,
    Increment,
    Lease,
    Looked,
    Operation,
    Outcome,
    Read,
    Resends,
    Seen,
    Transaction,
    Written,
)
from tests.histories.linearizability import check_calls

SHOWN_MAX = 20
"""Findings of one kind; the rest is counted."""


def check(history: History) -> list[str]:
    """What is wrong with it; empty if nothing is."""
    transactions = {each.name: each for each in _of(Transaction, history)}
    found: list[str] = []
    appends, reads = _grouped(_of(Append, history)), _grouped(_of(Read, history))
    for name in appends | reads:
        found += _shown(Topic(name, appends[name], reads[name]).check(history.resends, transactions))
    seen, written = _grouped(_of(Seen, history)), _grouped(_of(Written, history))
    for name in written:
        found += _shown(check_register(name, written[name], seen[name]))
    for name, increments in _grouped(_of(Increment, history)).items():
        found += _shown(check_counter(name, increments, seen[name]))
    leases, looked = _grouped(_of(Lease, history)), _grouped(_of(Looked, history))
    for name in leases:
        found += _shown(check_lease(name, leases[name], looked[name]))
    for name, calls in _grouped(_of(Call, history)).items():
        found += _shown(check_calls(name, calls))
    return found


Kind = TypeVar("Kind", bound=Operation)


def _of(kind: type[Kind], history: History) -> list[Kind]:
    return [each for each in history.operations if isinstance(each, kind)]


def _grouped(operations: list[Kind]) -> defaultdict[str, list[Kind]]:
    """By the topic, group or key that they are about."""
    found: defaultdict[str, list[Kind]] = defaultdict(list)
    for each in operations:
        found[_subject(each)].append(each)
    return found


def _grouped_by_key(appends: list[Append]) -> dict[str, list[Append]]:
    found: defaultdict[str, list[Append]] = defaultdict(list)
    for each in appends:
        if each.key is not None:
            found[each.key].append(each)
    return dict(found)


def _subject(operation: Operation) -> str:
    if isinstance(operation, Append | Read):
        return operation.topic
    return operation.key if isinstance(operation, Call) else operation.name


def _shown(findings: Iterator[str]) -> list[str]:
    every = list(findings)
    more = [f"and {len(every) - SHOWN_MAX} more"] if len(every) > SHOWN_MAX else []
    return every[:SHOWN_MAX] + more


class Topic:
    """One topic of one partition: its appends, and everything that was ever read of it."""

    def __init__(self, name: str, appends: list[Append], reads: list[Read]) -> None:
        self.name = name
        self.appends = appends
        self.reads = reads
        self._by_key = _grouped_by_key(appends)
        self._read_at: dict[str, int] = {}

    def check(self, resends: dict[str, Resends], transactions: dict[str, Transaction]) -> Iterator[str]:
        """Offset → value, first by acknowledgements and then by all reads: it is one function, for ever."""
        sent = {each.value: each for each in self.appends}
        self._read_at = {value: offset for page in self.reads for offset, value in page.records.items()}
        there: dict[int, str] = {}
        for append in self.appends:
            if append.outcome is Outcome.ACKNOWLEDGED and append.offset >= 0:
                before = there.setdefault(append.offset, append.value)
                if before != append.value:
                    yield f"{self.name}: offset {append.offset} was given to {before} and to {append.value}"
        placed = dict(there)
        read: dict[int, str] = {}
        for page in self.reads:
            yield from self._check_gaps(page, placed, sent)
            yield from self._check_page(page, there, read, sent)
            if page.committed:
                yield from self._check_isolation(page, sent, transactions)
        yield from self._check_watermark()
        yield from self._check_once(read, sent, resends)
        yield from self._check_order(read, sent, resends)
        for page in self.reads:
            if page.last:
                yield from self._check_last(page, sent, transactions)

    def _check_gaps(self, page: Read, placed: dict[int, str], sent: dict[str, Append]) -> Iterator[str]:
        """A reader is not led past what was acknowledged."""
        for offset in range(page.first_offset, page.next_offset):
            value = placed.get(offset)
            if value is None or offset in page.records or (page.committed and sent[value].transaction):
                continue
            if not self._may_be_deleted(sent[value], offset):
                yield f"{self.name} at {offset}: {page.client} was led past {value}, which was acknowledged"

    def _may_be_deleted(self, append: Append, offset: int) -> bool:
        """Compaction takes what a later record of its key stands for: what was acknowledged or read there, or a tombstone."""
        return append.key is not None and any(
            self._offset_of(each) > offset or (each.removes and self._offset_of(each) in (-1, offset))
            for each in self._by_key[append.key]
        )

    def _offset_of(self, append: Append) -> int:
        return append.offset if append.offset >= 0 else self._read_at.get(append.value, -1)

    def _check_page(
        self, page: Read, there: dict[int, str], read: dict[int, str], sent: dict[str, Append]
    ) -> Iterator[str]:
        for offset, value in page.records.items():
            if there.setdefault(offset, value) != value:
                yield f"{self.name} at {offset}: {there[offset]} was there, {page.client} reads {value}"
            if read.setdefault(offset, value) == value:
                append = sent.get(value)
                if append is None:
                    yield f"{self.name} at {offset}: {page.client} reads {value!r}, which nobody sent"
                elif append.outcome is Outcome.REFUSED:
                    yield f"{self.name} at {offset}: {value} was refused, and {page.client} reads it"
                elif append.start > page.end:
                    yield f"{self.name} at {offset}: {page.client} reads {value} before it was sent"

    def _check_isolation(
        self, page: Read, sent: dict[str, Append], transactions: dict[str, Transaction]
    ) -> Iterator[str]:
        for offset, value in page.records.items():
            append = sent.get(value)
            transaction = transactions.get(append.transaction or "") if append is not None else None
            if transaction is None:
                continue
            if not transaction.commit:
                yield f"{self.name} at {offset}: {page.client} reads {value} of {transaction.name}, which was aborted"
            elif transaction.start > page.end:
                yield f"{self.name} at {offset}: {page.client} reads {value} before {transaction.name} was committed"

    def _check_watermark(self) -> Iterator[str]:
        """By the answers of one reader after the other; two that were under way at once may come in any order."""
        told: defaultdict[str, list[tuple[float, float, int]]] = defaultdict(list)
        for page in self.reads:
            if page.watermark is not None:
                told[page.client].append((page.start, page.end, page.watermark))
                above = [offset for offset in page.records if offset >= page.watermark]
                if above:
                    yield f"{self.name} at {above[0]}: {page.client} reads at or above the watermark, {page.watermark}"
        for client, watermarks in told.items():
            ended = sorted(watermarks, key=lambda each: each[1])
            highest, at = -1, 0
            for start, _, watermark in sorted(watermarks):
                while ended[at][1] < start:
                    highest, at = max(highest, ended[at][2]), at + 1
                if watermark < highest:
                    yield f"{self.name}: the watermark was {highest}, and {client} is told {watermark} at {start:g}"

    def _check_once(self, read: dict[int, str], sent: dict[str, Append], resends: dict[str, Resends]) -> Iterator[str]:
        places: dict[str, int] = {}
        for offset, value in read.items():
            may_be_twice = value not in sent or resends.get(sent[value].client) is Resends.AT_LEAST_ONCE
            if places.setdefault(value, offset) != offset and not may_be_twice:
                yield f"{self.name}: {value} is there twice, at {places[value]} and {offset}"

    def _check_order(self, read: dict[int, str], sent: dict[str, Append], resends: dict[str, Resends]) -> Iterator[str]:
        """By number where a producer is idempotent; and who began after another was acknowledged stands behind it."""
        placed = {
            each.offset: each for each in self.appends if each.outcome is Outcome.ACKNOWLEDGED and each.offset >= 0
        }
        for offset, value in read.items():
            if value in sent and resends.get(sent[value].client) is not Resends.AT_LEAST_ONCE:
                placed.setdefault(offset, sent[value])
        earliest_end = math.inf
        next_number: dict[str, int] = {}
        for offset in sorted(placed, reverse=True):
            each = placed[offset]
            if earliest_end < each.start:
                yield f"{self.name}: {each.value} at {offset} began after a record behind it was acknowledged"
            earliest_end = min(earliest_end, each.end)
            if resends.get(each.client) is Resends.ONCE:
                if next_number.get(each.client, each.number + 1) <= each.number:
                    yield f"{self.name}: {each.value} at {offset} stands before {each.client}.{next_number[each.client]}"
                next_number[each.client] = each.number

    def _check_last(self, page: Read, sent: dict[str, Append], transactions: dict[str, Transaction]) -> Iterator[str]:
        values = set(page.records.values())
        of_transactions: dict[str, list[Append]] = defaultdict(list)
        for append in self.appends:
            if append.transaction is not None:
                of_transactions[append.transaction].append(append)
        yield from self._check_acknowledged(page, values)
        if not page.committed:
            yield from self._check_read_before(page, sent)
        dense = range(page.first_offset, page.first_offset + len(page.records))
        if not of_transactions and not self._by_key and list(page.records) != list(dense):
            yield f"{self.name}: {page.client} finds holes among {len(page.records)} records"
        if page.committed:
            for name, appends in of_transactions.items():
                yield from self._check_whole(page, transactions[name], appends, values)

    def _check_acknowledged(self, page: Read, values: set[str]) -> Iterator[str]:
        for append in self.appends:
            if append.end >= page.start or append.outcome is not Outcome.ACKNOWLEDGED or append.value in values:
                continue
            is_deleted = 0 <= append.offset < page.first_offset
            is_decided_elsewhere = page.committed and append.transaction is not None
            if not is_deleted and not is_decided_elsewhere and not self._may_be_deleted(append, append.offset):
                yield f"{self.name}: {append.value} was acknowledged at {append.offset}, {page.client} does not find it"

    def _check_read_before(self, page: Read, sent: dict[str, Append]) -> Iterator[str]:
        before = {
            offset: value for each in self.reads if each.end < page.start for offset, value in each.records.items()
        }
        for offset, value in before.items():
            if offset in page.records or offset < page.first_offset:
                continue
            if value not in sent or not self._may_be_deleted(sent[value], offset):
                yield f"{self.name}: {value} was read at {offset}, {page.client} does not find it"

    def _check_whole(
        self, page: Read, transaction: Transaction, appends: list[Append], values: set[str]
    ) -> Iterator[str]:
        missing = [each.value for each in appends if each.value not in values]
        if not transaction.commit or not missing:
            return
        if transaction.outcome is Outcome.ACKNOWLEDGED and transaction.end < page.start:
            yield f"{self.name}: {transaction.name} was committed, {page.client} does not find {missing[:3]}"
        elif len(missing) < len(appends):
            yield f"{self.name}: {page.client} finds a part of {transaction.name}, and not {missing[:3]}"


def check_register(name: str, written: list[Written], seen: list[Seen]) -> Iterator[str]:
    """What is seen was written, and nobody is known to have written over it before."""
    done = sorted((each for each in written if each.outcome is Outcome.ACKNOWLEDGED), key=lambda each: each.start)
    for look in seen:
        over = max((each.start for each in done if each.end < look.start), default=-math.inf)
        sources = [
            each
            for each in written
            if each.value == look.value and each.outcome is not Outcome.REFUSED and each.start < look.end
        ]
        is_initial = look.value == 0 and over == -math.inf
        if not is_initial and not any(each.end >= over for each in sources):
            newest = max((each.value for each in done if each.end < look.start), default=0)
            yield f"{name}: {newest} was committed, and {look.value} is seen"


def check_counter(name: str, increments: list[Increment], seen: Iterable[Seen]) -> Iterator[str]:
    done = [each for each in increments if each.outcome is Outcome.ACKNOWLEDGED]
    unknown = [each for each in increments if each.outcome is Outcome.UNKNOWN]
    answers: dict[int, Increment] = {}
    for each in done:
        if each.value in answers:
            yield f"{name}: two increments were answered {each.value}"
        answers[each.value] = each
    ends, starts = sorted(each.end for each in done), sorted(each.start for each in (*done, *unknown))
    for look in [*seen, *(Seen(name, each.value, each.start, each.end) for each in done)]:
        least, most = bisect_right(ends, look.start), bisect_left(starts, look.end)
        if not least <= look.value <= most:
            yield f"{name}: {look.value} was counted, of at least {least} and at most {most} increments"


def check_lease(name: str, leases: list[Lease], looked: list[Looked]) -> Iterator[str]:
    """Each name is set once."""
    for lease in leases:
        for look in looked:
            is_set = lease.outcome is Outcome.ACKNOWLEDGED and lease.end < look.start
            if is_set and not look.found and look.end < lease.start + lease.seconds:
                yield f"{name}: {lease.seconds} s to live, gone after {look.end - lease.start:.1f} s"


def check_damaged(history: History, page: Read | None, copied: float, *, reported: bool) -> list[str]:
    """What a node over a damaged copy showed a reader: nothing wrong; and less than there was only with a word about it."""
    if page is None:
        return []
    appends = [each for each in _of(Append, history) if each.topic == page.topic]
    sent = {each.value for each in appends}
    placed = {each.offset: each.value for each in appends if each.outcome is Outcome.ACKNOWLEDGED and each.offset >= 0}
    found = [
        f"damaged: {value!r} is read at {offset}, where {placed.get(offset)} was"
        for offset, value in page.records.items()
        if value not in sent or placed.get(offset, value) != value
    ]
    missing = [
        each.value for each in appends if each.end < copied and each.offset >= 0 and each.offset not in page.records
    ]
    if missing and not reported:
        found.append(f"damaged: {missing[:3]} cannot be read, and nothing was said")
    return found
