"""What the wire tools see of nodes: every vector by its name and fields, cut anywhere; what is wrong, where."""

import pytest
from tests.wire.peer.vectors import MESSAGES, REFUSED, Vector

from braidlog.codec.errors import ProtocolError
from braidlog.codec.receive_buffer import ReceiveBuffer
from braidlog.wire.observer import Side, observer_class
from braidlog.wire.peer.messages import BY_NUMBER

HEADER_LENGTH_AT = 20


def inbox_of(data: bytes) -> ReceiveBuffer:
    inbox = ReceiveBuffer()
    inbox.feed(data)
    return inbox


@pytest.mark.parametrize("vector", MESSAGES, ids=lambda each: each.name)
def test_a_message_is_seen_as_it_is(vector: Vector) -> None:
    observer = observer_class("peer")()
    sizes = {observer.measure(inbox_of(vector.data[:size]), Side.CLIENT) for size in range(24)}
    assert sizes == {None}
    assert observer.measure(inbox_of(vector.data + b"more"), Side.SERVER) == len(vector.data)
    reading = observer.read(Side.CLIENT, vector.data)
    assert (reading.message, reading.fault, reading.header_bytes) == (vector.message, None, 24)
    assert reading.head["Type"] == f"0x{vector.data[3]:02X}({BY_NUMBER[vector.data[3]].name})"
    assert reading.head["From"] == vector.data[4:20].hex()


@pytest.mark.parametrize("vector", REFUSED, ids=lambda each: each.name)
def test_what_is_wrong_is_shown_with_its_place(vector: Vector) -> None:
    observer = observer_class("peer")()
    assert vector.refused is not None
    if vector.refused <= HEADER_LENGTH_AT:
        with pytest.raises(ProtocolError) as caught:
            observer.measure(inbox_of(vector.data), Side.CLIENT)
        assert caught.value.position == vector.refused
        return
    assert observer.measure(inbox_of(vector.data), Side.CLIENT) == len(vector.data)
    fault = observer.read(Side.CLIENT, vector.data).fault
    assert fault is not None
    assert fault.position == vector.refused
