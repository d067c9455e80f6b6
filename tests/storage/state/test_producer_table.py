"""Idempotent producers: five batches, sequences that wrap, epochs that fence."""

import pytest
from tests.storage.building import NOW, batch, marker, sent

from braidlog.codec.batch.header import read_header
from braidlog.codec.batch.records import EndMarker
from braidlog.model.errors import BrokerError, Reason
from braidlog.storage.state import producer_table
from braidlog.storage.state.producer_table import ProducerTable


def table(*sequences: int, epoch: int = 0) -> ProducerTable:
    made = ProducerTable()
    for number, sequence in enumerate(sequences):
        made.apply(sent(7, epoch, sequence, offset=100 + number))
    return made


def refusal(made: ProducerTable, epoch: int, sequence: int, count: int = 1) -> Reason:
    with pytest.raises(BrokerError) as caught:
        made.check(sent(7, epoch, sequence, count))
    return caught.value.reason


def test_the_next_sequence_is_taken_and_a_gap_refused() -> None:
    assert table(0, 1).check(sent(7, 0, 2)) is None
    assert refusal(table(0, 1), 0, 3) is Reason.OUT_OF_ORDER_SEQUENCE


def test_each_of_the_last_five_batches_is_recognised_and_no_older_one() -> None:
    made = table(0, 1, 2, 3, 4, 5)
    for sequence in range(1, 6):
        repeated = made.check(sent(7, 0, sequence))
        assert repeated is not None
        assert repeated.base_offset == 100 + sequence
    assert refusal(made, 0, 0) is Reason.OUT_OF_ORDER_SEQUENCE


def test_same_start_but_another_count_is_no_repetition() -> None:
    assert refusal(table(0, 1), 0, 1, count=2) is Reason.OUT_OF_ORDER_SEQUENCE


def test_sequences_wrap_at_two_to_the_31() -> None:
    made = ProducerTable()
    made.apply(sent(7, 0, 2**31 - 2, 4, offset=50))  # 2^31-2, 2^31-1, 0, 1
    assert made.check(sent(7, 0, 2)) is None
    assert refusal(made, 0, 3) is Reason.OUT_OF_ORDER_SEQUENCE
    repeated = made.check(sent(7, 0, 2**31 - 2, 4))
    assert repeated is not None
    assert (repeated.base_offset, repeated.last_offset) == (50, 53)
    edge = ProducerTable()
    edge.apply(sent(7, 0, 2**31 - 1))
    assert edge.check(sent(7, 0, 0)) is None


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_at_zero() -> None:
    made = table(0, 1, epoch=3)
    assert refusal(made, 2, 2) is Reason.STALE_PRODUCER_EPOCH
    assert refusal(made, 4, 2) is Reason.OUT_OF_ORDER_SEQUENCE
    assert made.check(sent(7, 4, 0)) is None
    made.apply(sent(7, 4, 0, offset=200))
    assert refusal(made, 3, 2) is Reason.STALE_PRODUCER_EPOCH
    producer = made.find(7)
    assert producer is not None
    assert len(producer.batches) == 1


def test_an_unknown_producer_may_start_anywhere_and_no_producer_is_not_remembered() -> None:
    assert ProducerTable().check(sent(7, 0, 4711)) is None
    made = ProducerTable()
    plain = read_header(batch(b"v"))
    assert made.check(plain) is None
    made.apply(plain)
    assert len(made) == 0


def test_a_batch_without_sequence_is_neither_checked_nor_remembered() -> None:
    made = table(0, 1)
    header = read_header(batch(b"v", producer_id=7, producer_epoch=0))
    assert made.check(header) is None
    made.apply(header)
    assert made.check(sent(7, 0, 2)) is None


def test_a_marker_fences_and_keeps_the_sequence_of_its_own_epoch() -> None:
    made = table(0, 1)
    made.apply(read_header(marker(7, 0, commit=True)))
    assert made.check(sent(7, 0, 2)) is None
    made.apply(read_header(marker(7, 1, commit=False)))
    assert refusal(made, 0, 2) is Reason.STALE_PRODUCER_EPOCH
    assert made.check(sent(7, 1, 0)) is None


def test_idle_producers_expire_but_not_those_with_an_open_transaction() -> None:
    made = ProducerTable()
    for producer, at in ((1, NOW - 10), (2, NOW - 10), (3, NOW)):
        made.apply(sent(producer, 0, 0, at=at))
    made.expire(NOW - 5, [2])
    assert [p.producer_id for p in made.image()] == [2, 3]


def test_silence_is_counted_from_when_a_batch_came_and_not_from_what_it_says() -> None:
    made = ProducerTable()
    made.apply(sent(1, 0, 0, at=NOW - 1_000_000), NOW)  # records of last year
    made.apply(sent(2, 0, 0, at=NOW + 1_000_000), NOW - 10)  # and of next year
    made.apply(sent(3, 0, 0, at=NOW - 10))  # read from the log
    made.expire(NOW - 5, [])
    assert [p.producer_id for p in made.image()] == [1]
    made.expire(NOW + 1, [])
    assert made.image() == []


def test_the_table_is_bounded_and_lets_the_longest_silent_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_table, "PRODUCERS_PER_PARTITION_MAX", 3)
    made = ProducerTable()
    for producer in (1, 2, 3):
        made.apply(sent(producer, 0, 0))
    made.apply(sent(1, 0, 1))
    made.apply(sent(4, 0, 0))
    assert sorted(p.producer_id for p in made.image()) == [1, 3, 4]


def test_an_image_does_not_move_with_the_table() -> None:
    made = table(0, 1)
    image = made.image()
    made.apply(sent(7, 0, 2, offset=300))
    assert len(image[0].batches) == 2
    again = ProducerTable(image)
    again.apply(sent(7, 0, 2, offset=300))
    assert again.image() == made.image()


def test_the_last_batches_are_those_that_compaction_keeps() -> None:
    made = table(0, 1, 2)
    made.apply(read_header(marker(8, 0, commit=True)))
    assert made.last_batches() == {102}


def test_an_end_counts_once_and_only_for_the_transaction_that_it_names() -> None:
    made = table(0, 1)
    first, second = EndMarker(commit=True, coordinator_epoch=3, number=1), EndMarker(False, 3, 2)
    assert not made.has_ended(7, first)
    made.apply(read_header(marker(7, 0, commit=True)), end=first)
    assert made.has_ended(7, first)
    assert not made.has_ended(7, second)
    made.apply(sent(7, 1, 0))
    assert made.has_ended(7, first), "a new epoch of the producer forgets nothing"
    assert ProducerTable(made.image()).has_ended(7, first), "nor does a restart"
    assert not made.has_ended(7, EndMarker(commit=False)), "an administrator's names none"
    assert not made.has_ended(8, first)


def test_a_coordinator_that_has_a_successor_ends_nothing() -> None:
    made = table(0, 1)
    made.apply(read_header(marker(7, 0, commit=True)), end=EndMarker(commit=True, coordinator_epoch=3, number=1))
    with pytest.raises(BrokerError, match="coordinator epoch 2 of producer 7 is over") as caught:
        made.has_ended(7, EndMarker(commit=True, coordinator_epoch=2, number=2))
    assert caught.value.reason is Reason.NOT_COORDINATOR
    made.apply(read_header(marker(7, 0, commit=True)), end=EndMarker(commit=True))
    with pytest.raises(BrokerError):
        made.has_ended(7, EndMarker(commit=True, coordinator_epoch=2, number=2))
