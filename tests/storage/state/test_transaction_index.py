"""Open and aborted transactions of one partition."""

from tests.storage.building import batch, marker, sent

from braidlog.codec.batch.header import read_header
from braidlog.storage.state.transaction_index import Aborted, TransactionIndex


def begin(index: TransactionIndex, producer: int, offset: int, count: int = 1) -> None:
    index.apply(sent(producer, 0, 0, count, offset=offset, transactional=True), commit=None)


def end(index: TransactionIndex, producer: int, offset: int, *, commit: bool) -> None:
    index.apply(read_header(marker(producer, commit=commit, offset=offset)), commit=commit)


def test_the_stable_offset_waits_for_the_oldest_open_transaction() -> None:
    index = TransactionIndex()
    assert index.last_stable_offset(10) == 10
    begin(index, 1, 10, 2)
    begin(index, 2, 12)
    begin(index, 1, 13)
    assert index.last_stable_offset(14) == 10
    assert list(index.open_producers()) == [1, 2]
    end(index, 1, 14, commit=True)
    assert index.last_stable_offset(15) == 12
    end(index, 2, 15, commit=False)
    assert index.last_stable_offset(16) == 16
    assert index.aborted_image() == [Aborted(2, 12, 15, 16)]


def test_an_end_that_is_not_committed_may_be_taken_back() -> None:
    index = TransactionIndex()
    begin(index, 1, 10)
    begin(index, 2, 11)
    end(index, 2, 12, commit=True)
    end(index, 1, 13, commit=False)
    assert [index.last_stable_offset(end) for end in (12, 13, 14)] == [10, 10, 14]
    index.settle(13)
    assert index.ended_image() == [(13, 10)]
    again = TransactionIndex(index.open_image(), index.aborted_image(), index.ended_image())
    assert [again.last_stable_offset(end) for end in (13, 14)] == [10, 14]
    again.settle(14)
    assert again.ended_image() == []


def test_plain_batches_and_stray_markers_change_nothing() -> None:
    index = TransactionIndex()
    index.apply(read_header(batch(b"v")), commit=None)
    end(index, 1, 5, commit=False)
    assert index.open_image() == []
    assert index.aborted_image() == []


def test_aborted_transactions_are_found_by_range() -> None:
    index = TransactionIndex()
    begin(index, 1, 0)
    begin(index, 2, 1)
    end(index, 2, 2, commit=False)
    begin(index, 3, 5)
    end(index, 1, 6, commit=False)
    end(index, 3, 7, commit=False)
    first, second, third = index.aborted_image()
    assert (first.producer_id, second.producer_id, third.producer_id) == (2, 1, 3)
    assert index.aborted_in(0, 1) == [second]
    assert index.aborted_in(0, 2) == [first, second]
    assert index.aborted_in(3, 5) == [second]
    assert index.aborted_in(6, 8) == [second, third]
    assert index.aborted_in(7, 8) == [third]
    assert index.aborted_in(8, 9) == []


def test_an_aborted_range_covers_its_own_producer_only() -> None:
    txn = Aborted(1, 10, 20, 21)
    assert txn.covers(sent(1, 0, 0, offset=10))
    assert txn.covers(sent(1, 0, 0, offset=19))
    assert not txn.covers(sent(1, 0, 0, offset=9))
    assert not txn.covers(sent(1, 0, 0, offset=21))
    assert not txn.covers(sent(2, 0, 0, offset=15))


def test_what_ended_below_the_start_is_forgotten() -> None:
    index = TransactionIndex([(9, 3)], [Aborted(1, 0, 4, 5), Aborted(2, 2, 8, 9)])
    index.cut_start(5)
    assert [txn.producer_id for txn in index.aborted_image()] == [2]
    assert index.open_image() == [(9, 3)]
