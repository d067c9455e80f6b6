"""The fold over the batches, and its image at any offset."""

import msgspec
import pytest
from tests.storage.building import batch, marker, sent

from braidlog.codec.batch import BatchHeader, read_header
from braidlog.codec.records import EndMarker
from braidlog.model.errors import StorageFault
from braidlog.storage.state import PartitionState, StateImage, decode_image, encode_image


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
