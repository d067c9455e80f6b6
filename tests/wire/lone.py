"""The short way for a read that is one whole request, held against the long one."""

from collections.abc import Callable
from typing import Any

from tests.wire.conversation import comparable

from braidlog.wire.contract import NEED_DATA


def check_lone(open_connection: Callable[[], Any], data: bytes) -> bool:
    """Whether `data` is read by the short way: then as by the long one. If not, nothing has changed."""
    lone, other = open_connection(), open_connection()
    found = lone.single_frame(data)
    if found is None:
        lone.receive(data)
    other.receive(data)
    expected = other.next_event()
    assert comparable([lone.next_event() if found is None else found]) == comparable([expected])
    assert lone.buffered_bytes == other.buffered_bytes
    if found is not None:
        assert other.next_event() is NEED_DATA
        assert not other.buffered_bytes
    # What comes next is read alike, also where it depends on what came before.
    lone.receive(data)
    other.receive(data)
    assert comparable([lone.next_event()]) == comparable([other.next_event()])
    return found is not None
