# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, misc, index, operator, var-annotated"
"""Columns to records: both twins, held to the record kernel and to Kafka's partitioner; nothing is read outside the buffers."""

from array import array
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec.twins import load_plain, outcome, require_compiled

from braidlog.codec.batch.kernel import encode_records
from braidlog.codec.columns import arrow_to_records as built
from braidlog.codec.murmur import partition_for_key

PLAIN = load_plain("codec/columns/arrow_to_records")
TWINS = [pytest.param(built, id="built"), pytest.param(PLAIN, id="plain")]
NO_LIMIT = 1 << 40
ITEMS = st.lists(st.one_of(st.none(), st.binary(max_size=12)), max_size=30)


@pytest.fixture(autouse=True, scope="module")
def _both_twins():
    require_compiled()
    assert built.COMPILED
    assert not PLAIN.COMPILED


def strings(items, cut=0, kind=None):
    """A column as Arrow has it, of all items but the first `cut`, which stay in the buffers."""
    column = pa.array(items, kind or pa.binary()).slice(cut)
    validity, ends, data = column.buffers()
    return built.Strings(len(column), column.offset, validity, ends or bytes(4), data or b"")


def packed(twin, values, keys=None, times=None, *, base=0, rows=None, limit=NO_LIMIT, cut=0):
    """All rows in as many sections as it takes: (section, records, latest time) each."""
    column = strings(values, cut)
    key_column = None if keys is None else strings(keys, cut)
    clock = None if times is None else array("q", times[cut:])
    chosen = None if rows is None else array("i", rows)
    at, until = 0, len(values) - cut if rows is None else len(rows)
    found = []
    while True:
        out = bytearray()
        stop, latest = twin.append_rows(out, 0, column, key_column, clock, base, chosen, at, until, limit)
        found.append((bytes(out), stop - at, latest))
        if stop == until:
            return found
        assert stop > at
        at = stop


@pytest.mark.parametrize("twin", TWINS)
@given(data=st.data())
@settings(max_examples=150)
def test_the_bytes_are_the_record_kernels(twin, data):
    values = data.draw(ITEMS)
    count = len(values)
    keys = data.draw(st.none() | st.lists(st.none() | st.binary(max_size=9), min_size=count, max_size=count))
    base = data.draw(st.sampled_from([0, 1_700_000_000_000, -5]))
    times = data.draw(st.none() | st.lists(st.integers(-(2**40), 2**41), min_size=count, max_size=count))
    cut = data.draw(st.integers(0, count))
    limit = data.draw(st.sampled_from([1, 20, 64, NO_LIMIT]))
    rows = data.draw(st.none() | st.lists(st.integers(0, max(count - cut - 1, 0)), max_size=40 if count > cut else 0))
    order = range(count - cut) if rows is None else rows
    at = 0
    for section, taken, latest in packed(twin, values, keys, times, base=base, rows=rows, limit=limit, cut=cut):
        chosen = [cut + row for row in order[at : at + taken]]
        assert section == encode_records(
            [values[row] for row in chosen],
            None if keys is None else [keys[row] for row in chosen],
            None if times is None else [times[row] for row in chosen],
            None,
            base,
        )
        assert len(section) <= limit or taken == 1
        assert latest == max([base, *([] if times is None else [times[row] for row in chosen])])
        at += taken
    assert at == len(order)


@pytest.mark.parametrize("twin", TWINS)
def test_a_section_is_filled_by_several_columns(twin):
    """Spark hands over batches of rows; a batch of the log is filled from as many as fit."""
    out = bytearray()
    for number, value in enumerate([b"a" * 300, None, b"c"]):
        stop, _ = twin.append_rows(out, number, strings([value]), None, None, 7, None, 0, 1, NO_LIMIT)
        assert stop == 1
    assert bytes(out) == encode_records([b"a" * 300, None, b"c"], None, None, None, 7)
    full = bytes(out)
    assert twin.append_rows(out, 3, strings([b"d"]), None, None, 7, None, 0, 1, len(full)) == (0, 7)
    assert bytes(out) == full, "what does not fit leaves no trace"


@pytest.mark.parametrize("twin", TWINS)
@given(data=st.data())
@settings(max_examples=150)
def test_rows_go_where_kafkas_partitioner_sends_their_keys(twin, data):
    keys = data.draw(ITEMS)
    count = len(keys)
    cut = data.draw(st.integers(0, count))
    partitions = data.draw(st.integers(1, 9))
    chosen = data.draw(
        st.none() | st.lists(st.none() | st.integers(0, partitions - 1), min_size=count - cut, max_size=count - cut)
    )
    told = None if chosen is None else pa.array(chosen, pa.int32())
    validity, numbers = (None, None) if told is None else told.buffers()
    column = data.draw(st.sampled_from([strings(keys, cut), None]))
    order, ends = twin.group_rows(count - cut, column, numbers, validity, partitions)
    wanted = [[] for _ in range(partitions + 1)]
    for row in range(count - cut):
        key = keys[cut + row] if column is not None else None
        if chosen is not None and chosen[row] is not None:
            wanted[chosen[row]].append(row)
        else:
            wanted[partitions if key is None else partition_for_key(key, partitions)].append(row)
    found = array("i", bytes(order)).tolist()
    assert [found[start:end] for start, end in zip([0, *ends], ends, strict=False)] == wanted


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("size", range(13))
def test_every_length_of_a_key(twin, size):
    rng = Random(size)
    keys = [rng.randbytes(size) for _ in range(50)]
    order, ends = twin.group_rows(50, strings(keys), None, None, 7)
    found = array("i", bytes(order)).tolist()
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        assert all(partition_for_key(keys[row], 7) == number for row in found[start:end])


BROKEN = {
    "an end behind the data": built.Strings(1, 0, None, array("i", [0, 9]), b"abc"),
    "ends that go back": built.Strings(2, 0, None, array("i", [0, 3, 1]), b"abc"),
    "an end below 0": built.Strings(1, 0, None, array("i", [-1, 1]), b"abc"),
    "ends too few": built.Strings(3, 0, None, array("i", [0, 1, 2]), b"abc"),
    "ends too few behind a start": built.Strings(2, 2, None, array("i", [0, 1, 2, 3]), b"abc"),
    "validity too short": built.Strings(9, 0, b"\xff", array("i", [0] * 10), b""),
    "a start below 0": built.Strings(1, -1, None, array("i", [0, 1]), b"abc"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_buffers_that_do_not_hold_what_they_say_are_refused(name):
    column = BROKEN[name]

    def append(twin):
        out = bytearray(b"kept")
        try:
            return twin.append_rows(out, 1, column, None, None, 0, None, 0, column.rows, NO_LIMIT)
        finally:
            assert out == b"kept"

    for ask in (append, lambda twin: twin.group_rows(column.rows, column, None, None, 3)):
        found = [outcome(lambda ask=ask, twin=twin: ask(twin)) for twin in (built, PLAIN)]
        assert found[0] == found[1]
        assert found[0][0] is ValueError


@pytest.mark.parametrize(
    "arguments",
    [
        (0, strings([b"a"]), strings([]), None, 0, None, 0, 1),
        (0, strings([b"a"]), None, bytes(7), 0, None, 0, 1),
        (0, strings([b"a"]), None, None, 0, array("i", [1]), 0, 1),
        (0, strings([b"a"]), None, None, 0, array("i", [-1]), 0, 1),
        (0, strings([b"a"]), None, None, 0, None, 0, 2),
        (0, strings([b"a"]), None, None, 0, None, 1, 0),
        (-1, strings([b"a"]), None, None, 0, None, 0, 1),
        (0, strings([b"a"]), None, array("q", [2**63 - 1]), -2, None, 0, 1),
        (0, strings([b"a"]), None, array("q", [-(2**63)]), 1, None, 0, 1),
    ],
)
def test_what_does_not_fit_together_is_refused_alike(arguments):
    found = [outcome(lambda twin=twin: twin.append_rows(bytearray(), *arguments, NO_LIMIT)) for twin in (built, PLAIN)]
    assert found[0] == found[1]
    assert found[0][0] is ValueError


@pytest.mark.parametrize(
    "arguments",
    [
        (1, None, None, None, 0),
        (2, strings([b"a"]), None, None, 3),
        (2, None, bytes(4), None, 3),
        (9, None, bytes(36), b"\xff", 3),
        (1, None, array("i", [3]), None, 3),
        (1, None, array("i", [-1]), None, 3),
    ],
)
def test_groups_that_cannot_be_are_refused_alike(arguments):
    found = [outcome(lambda twin=twin: twin.group_rows(*arguments)) for twin in (built, PLAIN)]
    assert found[0] == found[1]
    assert found[0][0] is ValueError
