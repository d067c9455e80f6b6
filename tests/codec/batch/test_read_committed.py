"""What a reader sees of a log with transactions."""

from braidlog.codec.batch.header import iter_batches
from braidlog.codec.batch.read_committed import AbortedRange, visible
from braidlog.codec.batch.records import control_batch, encode_batch


class Script:
    """A log written batch by batch, one record each."""

    def __init__(self) -> None:
        self.data = b""
        self.offset = 0

    def add(self, batch: bytes) -> int:
        self.data += batch
        self.offset += 1
        return self.offset - 1

    def send(self, producer_id: int, *, transactional: bool = True) -> int:
        sent = encode_batch(
            [b"v"],
            base_timestamp=0,
            base_offset=self.offset,
            producer_id=producer_id,
            producer_epoch=0,
            transactional=transactional,
        )
        return self.add(sent)

    def end(self, producer_id: int, *, commit: bool) -> int:
        marker = control_batch(
            base_offset=self.offset,
            leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=0,
            commit=commit,
            timestamp_ms=0,
        )
        return self.add(marker)

    def seen(self, *aborted: AbortedRange, start: int = 0) -> list[int]:
        batches = ((self.data, at, header) for at, header in iter_batches(self.data) if header.base_offset >= start)
        return [header.base_offset for _, _, header in visible(batches, aborted)]


def test_markers_are_never_seen() -> None:
    log = Script()
    first = log.send(1)
    log.end(1, commit=True)
    other = log.send(-1, transactional=False)
    assert log.seen() == [first, other]


def test_an_abort_hides_its_producer_up_to_the_marker_and_nobody_else() -> None:
    log = Script()
    before = log.send(1)
    log.end(1, commit=True)
    begun = log.send(1)
    other = log.send(2)
    log.send(1)
    plain = log.send(1, transactional=False)
    last = log.end(1, commit=False)
    after = log.send(1)
    expected = [before, other, plain, after]
    assert log.seen(AbortedRange(begun, 1)) == expected
    assert log.seen(AbortedRange(begun, 1, last)) == expected


def test_a_commit_marker_of_another_transaction_ends_nothing() -> None:
    log = Script()
    begun = log.send(1)
    log.end(2, commit=True)
    log.send(1)
    log.end(1, commit=False)
    assert log.seen(AbortedRange(begun, 1)) == []


def test_two_aborted_transactions_of_one_producer() -> None:
    log = Script()
    first = log.send(1)
    log.end(1, commit=False)
    kept = log.send(1)
    log.end(1, commit=True)
    second = log.send(1)
    log.end(1, commit=False)
    assert log.seen(AbortedRange(second, 1), AbortedRange(first, 1)) == [kept]


def test_a_known_end_holds_where_compaction_took_the_marker() -> None:
    log = Script()
    after = log.send(1)
    assert log.seen(AbortedRange(-5, 1, -1)) == [after]


def test_a_read_that_begins_within_a_transaction() -> None:
    log = Script()
    begun = log.send(1)
    within = log.send(1)
    log.end(1, commit=False)
    after = log.send(1)
    assert log.seen(AbortedRange(begun, 1), start=within) == [after]
