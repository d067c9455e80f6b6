"""The fold over the batches, and its image at any offset; which leader wrote what: the answers a follower truncates by (KIP-101,
KIP-279).
"""

import msgspec
import pytest
from tests.storage.building import batch, marker, sent

from braidlog.codec.batch.header import BatchHeader, read_header
from braidlog.codec.batch.records import EndMarker
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.storage.state.partition_state import (
    NO_EPOCH,
    EpochHistory,
    PartitionState,
    StateImage,
    decode_image,
    encode_image,
)


def history() -> EpochHistory:
    return EpochHistory([(2, 0), (5, 10), (6, 20)])


@pytest.mark.parametrize(("offset", "epoch"), [(0, 2), (9, 2), (10, 5), (19, 5), (20, 6), (1000, 6)])
def test_each_offset_has_its_epoch(offset: int, epoch: int) -> None:
    assert history().at(offset) == epoch


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (6, (6, 33)),  # the latest one ends where the log ends
        (5, (5, 20)),
        (4, (2, 10)),  # KIP-279: the largest known below, so that the follower can ask again with one it has
        (3, (2, 10)),
        (2, (2, 10)),
        (1, (1, 0)),  # before all that is known: everything must go
        (7, (NO_EPOCH, -1)),  # the future
    ],
)
def test_where_an_epoch_ended(asked: int, answer: tuple[int, int]) -> None:
    assert history().end_offset_for(asked, 33) == answer


def test_an_empty_history_knows_nothing() -> None:
    empty = EpochHistory()
    assert empty.latest == NO_EPOCH
    assert empty.at(5) == NO_EPOCH
    assert empty.end_offset_for(0, 10) == (NO_EPOCH, -1)


def test_epochs_never_go_back() -> None:
    epochs = history()
    with pytest.raises(BrokerError, match="leader epoch 5 is over, the log is in 6") as caught:
        epochs.start_epoch(5, 40)
    assert caught.value.reason is Reason.STALE_LEADER_EPOCH
    epochs.start_epoch(6, 40)
    assert epochs.entries() == history().entries()


def test_an_epoch_that_wrote_nothing_leaves_no_trace() -> None:
    epochs = history()
    epochs.start_epoch(7, 30)
    epochs.start_epoch(9, 30)
    assert epochs.entries() == [(2, 0), (5, 10), (6, 20), (9, 30)]


def test_cutting_the_end_forgets_what_began_there() -> None:
    epochs = history()
    epochs.cut_end(20)
    assert epochs.entries() == [(2, 0), (5, 10)]
    epochs.cut_end(0)
    assert epochs.entries() == []


def test_a_lost_tail_draws_the_latest_epoch_back() -> None:
    epochs = history()
    epochs.move_latest_epoch(15)
    assert epochs.entries() == [(2, 0), (5, 10), (6, 15)]
    epochs.move_latest_epoch(100)
    assert epochs.entries() == [(2, 0), (5, 10), (6, 15)]


@pytest.mark.parametrize(
    ("start", "left"),
    [(0, [(2, 0), (5, 10), (6, 20)]), (5, [(2, 5), (5, 10), (6, 20)]), (10, [(5, 10), (6, 20)]), (99, [(6, 99)])],
)
def test_cutting_the_start_keeps_the_epoch_in_force(start: int, left: list[tuple[int, int]]) -> None:
    epochs = history()
    epochs.cut_start(start)
    assert epochs.entries() == left


def headers() -> list[tuple[BatchHeader, EndMarker | None]]:
    return [
        (sent(1, 0, 0, 3, offset=0), None),
        (sent(2, 0, 0, 2, offset=3, transactional=True), None),
        (read_header(batch(b"a", b"b", base_offset=5)), None),
        (sent(3, 1, 0, offset=7, transactional=True), None),
        (read_header(marker(2, commit=False, offset=8)), EndMarker(commit=False, coordinator_epoch=3, number=1)),
        (sent(1, 0, 3, offset=9), None),
        (read_header(marker(3, 1, commit=True, offset=10)), EndMarker(commit=True, coordinator_epoch=4, number=7)),
    ]


def test_an_image_and_what_follows_it_give_the_same_state() -> None:
    whole = PartitionState(StateImage(start_offset=0, end_offset=0))
    images = [decode_image(encode_image(whole.image()))]
    for header, end in headers():
        whole.apply(header, end=end)
        images.append(decode_image(encode_image(whole.image())))
    assert whole.end_offset == 11
    for number, image in enumerate(images):
        state = PartitionState(image)
        for header, end in headers()[number:]:
            state.apply(header, end=end)
        assert encode_image(state.image()) == encode_image(whole.image())


def test_a_new_start_takes_the_aborted_below_it_along() -> None:
    state = PartitionState(StateImage(start_offset=0, end_offset=0))
    for header, end in headers():
        state.apply(header, end=end)
    assert len(state.transactions.aborted_image()) == 1
    state.advance_start(9)
    image = state.image()
    assert (image.start_offset, image.cleaned_offset, image.aborted_transactions) == (9, 9, [])


def test_an_image_that_does_not_decode_is_refused() -> None:
    with pytest.raises(StorageFault, match="valid checksum does not decode"):
        decode_image(msgspec.msgpack.encode({"start_offset": "zero"}))
