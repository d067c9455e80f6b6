# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, var-annotated"
"""Records of the change feed: both twins, held to the batch that the record kernel makes of the same keys, values and headers."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.twins import load_plain, require_compiled

from braidlog.codec.batch.records import encode_batch
from braidlog.kv.engine.operations import Columns, Kind
from braidlog.kv.engine.store import Mutation
from braidlog.kv.engine.values import HashValue, ListValue, kind_of, write_value
from braidlog.kv.feed import feed_records, feed_rows
from braidlog.kv.feed.feed_records import FeedSection, MutationColumns
from braidlog.kv.wal.wal_entries import Op

PLAIN = load_plain("kv/feed/feed_rows")
TWINS = [pytest.param(feed_rows, id="built"), pytest.param(PLAIN, id="plain")]
NODE_ID = bytes(range(16))
NODE = NODE_ID.hex().encode()
NO_LIMIT = 1 << 40
keys = st.binary(min_size=1, max_size=70)
numbers = st.integers(-(2**63), 2**63 - 1)
held = st.one_of(
    st.none(),
    st.binary(max_size=70),
    numbers,
    st.builds(ListValue, st.lists(st.binary(max_size=5), min_size=1)),
    st.builds(HashValue, st.lists(st.tuples(keys, keys), min_size=1)),
)


@pytest.fixture(autouse=True, scope="module")
def _both_twins():
    require_compiled()
    assert feed_rows.COMPILED
    assert not PLAIN.COMPILED


def record(mutation, is_latest):
    """Key, value, time and headers as kv/feed/feed_records.py draws them."""
    value, wall_ms = mutation.value, mutation.wall_ms
    headers = [
        ("kv.seq", b"%d" % mutation.sequence),
        ("kv.hlc", b"%016x%08x%b" % (wall_ms, mutation.counter, NODE)),
        ("kv.op", Op(mutation.op).name.lower().encode()),
    ]
    if value is None:
        return mutation.key, None, wall_ms, tuple(headers)
    is_part = isinstance(value, ListValue | HashValue) and not is_latest
    headers.append(("kv.type", b"part" if is_part else kind_of(value).encode()))
    if mutation.deadline_ms:
        headers.append(("kv.expires", b"%d" % mutation.deadline_ms))
    return mutation.key, mutation.argument if is_part else write_value(value), wall_ms, tuple(headers)


@st.composite
def told(draw):
    """Mutations by themselves and in columns, as a store tells of them."""
    sequence = draw(st.sampled_from([1, 9, 99_999, 2**40]))
    wall_ms = draw(st.sampled_from([0, 1_700_000_000_000]))
    found = []
    for _ in range(draw(st.integers(1, 5))):
        wall_ms += draw(st.sampled_from([0, 1, 200, 2**35]))
        counter = draw(st.sampled_from([0, 15, 2**32 - 9]))
        if draw(st.booleans()):
            op, key, value = draw(st.sampled_from(Op)), draw(keys), draw(held)
            deadline_ms = draw(st.sampled_from([0, 0, 1_800_000_000_000]))
            found.append(Mutation(sequence, wall_ms, counter, op, key, b"argument", value, deadline_ms))
            sequence += 1
            continue
        rows = draw(st.lists(st.tuples(st.sampled_from(list(Kind)[1:]), keys, keys, numbers), min_size=1, max_size=6))
        columns = Columns(True, bytes(each[0] for each in rows), [each[1] for each in rows], [each[2] for each in rows])
        results = [
            True if each[0] == Kind.SET else draw(st.sampled_from([None, True])) if each[0] == Kind.DELETE else each[3]
            for each in rows
        ]
        first = draw(st.integers(0, len(rows) - 1))
        changed = sum(each is not None for each in results[first:])
        if changed:
            found.append(MutationColumns(sequence, wall_ms, counter, columns, results, first, len(rows), changed))
            sequence += changed
    return found


@pytest.mark.parametrize("twin", TWINS)
@given(told=told(), count_max=st.sampled_from([1, 3, NO_LIMIT]), bytes_max=st.sampled_from([1, 300, NO_LIMIT]))
def test_batches_are_those_of_the_record_kernel(twin, told, count_max, bytes_max):
    wanted = []
    for each in told:
        wanted += each.mutations() if isinstance(each, MutationColumns) else [each]
    pending, at = list(told), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed_records, "append_columns", twin.append_columns)
        patch.setattr(feed_records, "append_mutation", twin.append_mutation)
        patch.setattr(feed_records, "BATCH_RECORDS_MAX", count_max)
        patch.setattr(feed_records, "BATCH_BYTES", bytes_max)
        while pending:
            section = FeedSection(NODE_ID)
            while pending and section.count < count_max and len(section.data) < bytes_max:
                each = pending.pop(0)
                if isinstance(each, MutationColumns):
                    rest = section.append_columns(each)
                    pending[:0] = [] if rest is None else [rest]
                else:
                    section.append(each, is_latest=each.sequence % 2 == 0)
            these = wanted[at : at + section.count]
            at += section.count
            rows = [record(each, is_latest=each.sequence % 2 == 0) for each in these]
            key, value, times, headers = zip(*rows, strict=True)
            assert section.last == these[-1].sequence
            assert section.seal() == encode_batch(
                value, keys=key, timestamps=times, headers=headers, base_timestamp=times[0]
            )
    assert at == len(wanted)


def test_columns_tell_of_what_changed_and_in_its_order():
    columns = Columns(True, bytes((1, 2, 2, 3, 4)), [b"a", b"b", b"c", b"n", b"n"], [b"v", b"", b"", b"", b""])
    told = MutationColumns(7, 5, 0, columns, [True, None, True, 1, 0], 0, 5, 4)
    sequences, counters = count(7), count(0)
    assert list(told.mutations()) == [
        Mutation(next(sequences), 5, next(counters), op, key, argument, value, 0)
        for op, key, argument, value in (
            (Op.SET, b"a", b"v", b"v"),
            (Op.DEL, b"c", b"", None),
            (Op.INCRBY, b"n", b"", 1),
            (Op.INCRBY, b"n", b"", 0),
        )
    ]


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize(("kinds", "found", "row"), [(b"", [True], 0), (b"\1", [], 0), (b"\1", [True], -1)])
def test_rows_that_are_not_there_are_refused(twin, kinds, found, row):
    stamp, headers = (1, 1, 1, NODE), (b"",) * 5
    with pytest.raises(ValueError, match="rows"):
        twin.append_columns(bytearray(), 0, 9, 9, 0, stamp, headers, kinds, [b"k"], [b"v"], found, row, 1)


@pytest.mark.parametrize("twin", TWINS)
def test_headers_that_do_not_fit_are_refused(twin):
    for node, op in ((b"0" * 33, b""), (b"0" * 32, b"x" * 91)):
        with pytest.raises(ValueError, match="a node of"):
            twin.append_mutation(bytearray(), 0, 0, (1, 1, 1, node), op, b"", b"k", None, 0)
