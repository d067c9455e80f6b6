# mypy: disable-error-code="no-untyped-def, no-untyped-call, union-attr"
"""Requests in columns and their answers: both twins, held to the declared reading and writing of each frame."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.twins import load_plain, require_compiled
from tests.wire.mayfly import strategies

from braidlog.wire.mayfly import bursts as built
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import Burst, Request, ServerConnection, write_frame, write_request

PLAIN = load_plain("wire/mayfly/bursts")
TWINS = [pytest.param(built, id="built"), pytest.param(PLAIN, id="plain")]
PLAIN_KINDS = (m.Get, m.Set, m.Del, m.Incr, m.Decr)
NO_LIMIT = 1 << 20


@pytest.fixture(autouse=True, scope="module")
def _both_twins():
    require_compiled()
    assert built.COMPILED
    assert not PLAIN.COMPILED


@st.composite
def streams(draw):
    """Frames of all sorts, some of them damaged, the last one cut off anywhere."""
    kinds = draw(st.lists(st.sampled_from([*PLAIN_KINDS, m.Get, m.Set, m.Exists]), max_size=10))
    frames = [
        write_request(
            Request(draw(st.integers(1, 2**32 - 1)), draw(strategies.message(kind))),
            draw(st.sampled_from([1, 1, 1, 2])),
        )
        for kind in kinds
    ]
    data = bytearray(b"".join(frames))
    for at in draw(st.lists(st.integers(0, max(len(data) - 1, 0)), max_size=2)) if data and draw(st.booleans()) else ():
        data[at] = draw(st.integers(0, 255))
    return bytes(data[: len(data) - draw(st.integers(0, 20))])


@pytest.mark.parametrize("twin", TWINS)
@given(data=streams(), before=st.binary(max_size=3), most=st.integers(0, 6), limit=st.sampled_from([4, 20, NO_LIMIT]))
def test_rows_are_the_requests_read_one_by_one(twin, data, before, most, limit):
    at, *columns = twin.read_burst(before + data, len(before), most, limit)
    burst = Burst(*columns)
    count = len(burst)
    assert count <= most
    assert len(burst.kinds) == count
    assert len(burst.packed_ids) == 4 * count
    assert len(burst.values) == (count if burst.mutates else 0)
    assert burst.ttls is None or len(burst.ttls) == count
    connection = ServerConnection()
    connection.frame_bytes_max = limit
    connection.receive(data)
    one_by_one = [connection.next_event() for _ in range(count)]
    assert burst.requests == one_by_one
    assert connection.buffered_bytes == len(before + data) - at
    assert len({type(each.message) is m.Get for each in one_by_one}) <= 1
    if count < most:
        following = connection.next_event()
        is_plain = isinstance(following, Request) and following.version == 1 and type(following.message) in PLAIN_KINDS
        is_like = not count or (is_plain and (type(following.message) is m.Get) != burst.mutates)
        has_condition = (
            is_plain and type(following.message) is m.Set and following.message.condition is not m.Condition.ALWAYS
        )
        assert not (is_plain and is_like and not has_condition), "it ended before a plain one"


def test_twins_agree_on_everything_they_refuse():
    frame = write_request(Request(7, m.Set(b"key", b"value", 9)), 1)
    for at in range(len(frame)):
        for byte in range(256):
            data = frame[:at] + bytes((byte,)) + frame[at + 1 :]
            assert built.read_burst(data, 0, 5, NO_LIMIT) == PLAIN.read_burst(data, 0, 5, NO_LIMIT)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize(("key", "value"), [(0, 5), (257, 5), (5, 65_537)], ids=["no-key", "long-key", "large-value"])
def test_what_a_command_refuses_is_no_row(twin, key, value):
    payload = struct.pack(f">H{key}sI", key, b"k" * key, value) + bytes(value)
    data = b"\xca\xfe\x01\x01" + struct.pack(">II", 1, len(payload)) + payload
    assert twin.read_burst(data, 0, 5, NO_LIMIT) == (0, b"", b"", [], [], None)


results = st.one_of(
    st.just(True),
    st.none(),
    st.binary(max_size=30),
    st.integers(-(2**63), 2**63 - 1),
    strategies.failures,
)


def as_message(result):
    if result is True:
        return m.DONE
    if result is None:
        return m.MISSING
    return m.Value(result) if isinstance(result, bytes) else m.Number(result) if isinstance(result, int) else result


@pytest.mark.parametrize("twin", TWINS)
@given(rows=st.lists(st.tuples(st.integers(0, 2**32 - 1), results), max_size=12))
def test_answers_are_the_frames_written_one_by_one(twin, rows):
    ids = struct.pack(f">{len(rows)}I", *[row[0] for row in rows])
    wanted = b"".join(write_frame(number, as_message(result)) for number, result in rows)
    assert twin.write_burst(ids, [row[1] for row in rows], write_frame) == wanted


@pytest.mark.parametrize("twin", TWINS)
def test_as_many_answers_as_requests(twin):
    with pytest.raises(AssertionError, match="an answer for each"):
        twin.write_burst(bytes(8), [True], write_frame)
