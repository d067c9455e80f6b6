"""Columns to batches, without Spark: where rows go, in what order, in batches of what size."""

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from braidlog.client.drivers.kafka.staging import Section
from braidlog.codec.batch.kernel import decode_records
from braidlog.codec.murmur import partition_for_key
from braidlog.spark.sink.filling import Filling, RowError

NOW_MS = 1_700_000_000_000
US = pa.timestamp("us", tz="Etc/UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Topic:
    """What was emitted, partition by partition."""

    def __init__(self, partitions: int = 4, batch_bytes: int = 1 << 20, first: int = 0) -> None:
        self.sections: list[tuple[int, Section]] = []
        self.told: list[list[int]] = []
        self.filling = Filling("t", partitions, batch_bytes, first=first, emit=self._emit, announce=self._announce)

    def _emit(self, number: int, section: Section) -> None:
        assert any(number in told for told in self.told), "partitions are announced before they are written to"
        self.sections.append((number, section))

    def _announce(self, numbers: Sequence[int]) -> None:
        self.told.append(list(numbers))

    def append(self, **columns: Any) -> "Topic":
        self.filling.append(pa.RecordBatch.from_pydict(columns), NOW_MS)
        return self

    def rows(self) -> dict[int, list[tuple[Any, ...]]]:
        """Partition → (time, key, value, headers) of every record, once the rest is emitted."""
        self.filling.finish()
        found: dict[int, list[tuple[Any, ...]]] = {}
        for number, section in self.sections:
            rows = decode_records(section.data, section.records, 0, section.records - 1, section.base_time)
            assert section.latest_time == max(row[1] for row in rows)
            found.setdefault(number, []).extend(row[1:] for row in rows)
        return found


def strings(*values: str | bytes | None, kind: Any = None) -> pa.Array:
    return pa.array(values, kind or pa.string())


def test_keys_go_where_kafkas_partitioner_sends_them_in_order() -> None:
    keys = [f"key {number % 13}" for number in range(500)]
    topic = Topic(partitions=5)
    for at in (0, 100, 350):
        until = {0: 100, 100: 350, 350: 500}[at]
        topic.append(value=strings(*(str(number) for number in range(at, until))), key=strings(*keys[at:until]))
    wanted: dict[int, list[bytes]] = {}
    for number, key in enumerate(keys):
        wanted.setdefault(partition_for_key(key.encode(), 5), []).append(b"%d" % number)
    assert {number: [row[2] for row in rows] for number, rows in topic.rows().items()} == wanted
    assert len(topic.told) == 1, "told in one go"


def test_rows_without_keys_fill_batch_after_batch_of_all_partitions() -> None:
    topic = Topic(partitions=3, batch_bytes=1024, first=7)
    values = [b"%05d" % number * 20 for number in range(300)]
    topic.append(value=strings(*values, kind=pa.binary()))
    found = topic.rows()
    assert [number for number, _ in topic.sections[:4]] == [1, 2, 0, 1]
    assert set(found) == {0, 1, 2}
    assert sorted(row[2] for rows in found.values() for row in rows) == values
    assert all(len(section.data) <= 1024 for _, section in topic.sections)
    assert topic.told == [[1], [0, 2]]


def test_few_rows_without_keys_stay_in_one_partition() -> None:
    topic = Topic(first=2)
    for number in range(5):
        topic.append(value=strings(str(number)))
    assert {number: len(rows) for number, rows in topic.rows().items()} == {2: 5}
    assert (len(topic.sections), topic.told) == (1, [[2]])


def test_a_chosen_partition_beats_the_key_and_null_falls_back_to_it() -> None:
    topic = Topic(partitions=4, first=3).append(
        value=strings("a", "b", "c", "d"),
        key=strings("k", "k", None, None),
        partition=pa.array([2, None, 1, None], pa.int32()),
    )
    found = {number: [row[2] for row in rows] for number, rows in topic.rows().items()}
    wanted: dict[int, list[bytes]] = {}
    for number, value in ((2, b"a"), (partition_for_key(b"k", 4), b"b"), (1, b"c"), (3, b"d")):
        wanted.setdefault(number, []).append(value)
    assert found == wanted
    with pytest.raises(RowError, match="4 partitions: partition 4"):
        Topic(partitions=4).append(value=strings("a"), partition=pa.array([4], pa.int32()))
    with pytest.raises(RowError, match="partition -1"):
        Topic(partitions=4).append(value=strings("a"), partition=pa.array([-1], pa.int32()))


def test_times_are_the_rows_own_and_else_now() -> None:
    micros = [1_600_000_000_123_999, None, 1_500_000_000_000_000]
    topic = Topic(1).append(value=strings("a", "b", "c"), timestamp=pa.array(micros, US))
    assert [row[0] for row in topic.rows()[0]] == [1_600_000_000_123, NOW_MS, 1_500_000_000_000]
    assert [row[0] for row in Topic(1).append(value=strings("a")).rows()[0]] == [NOW_MS]
    with pytest.raises(RowError, match="1970"):
        Topic(1).append(value=strings("a"), timestamp=pa.array([-5000], US))


def test_null_values_empty_values_and_large_types() -> None:
    topic = Topic(1).append(value=strings(None, "", "é"), key=strings("", None, "k"))
    topic.append(value=strings(b"x" * 10, kind=pa.large_binary()), key=strings("l", kind=pa.large_string()))
    wanted = [(b"", None), (b"k", "é".encode()), (None, b""), (b"l", b"x" * 10)]
    assert [row[1:3] for row in topic.rows()[0]] == wanted, "who has no key comes behind who has one"


def test_headers() -> None:
    pairs = [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None, []]
    topic = Topic(1).append(value=strings("x", "y", "z"), headers=pa.array(pairs, HEADERS))
    topic.append(value=strings("w"), headers=pa.array([[{"key": "c", "value": b""}]], HEADERS))
    rows = topic.rows()[0]
    assert [row[2] for row in rows] == [b"x", b"y", b"z", b"w"]
    assert [row[3] for row in rows] == [(("a", b"1"), ("b", None)), (), (), (("c", b""),)]
    nameless = pa.array([[{"key": None, "value": b"1"}]], HEADERS)
    with pytest.raises(RowError, match="without one"):
        Topic(1).append(value=strings("x"), headers=nameless)


def test_headers_are_cut_into_batches_too() -> None:
    topic = Topic(2, batch_bytes=2000)
    pairs = [[{"key": "n", "value": b"%d" % number}] for number in range(100)]
    keys = strings(*(f"k{number}" for number in range(100)))
    topic.append(value=strings(*("v" * 90 for _ in range(100))), key=keys, headers=pa.array(pairs, HEADERS))
    assert sum(len(rows) for rows in topic.rows().values()) == 100
    assert all(len(section.data) <= 2000 for _, section in topic.sections)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_comes_is_there_once(seed: int) -> None:
    """Slices of larger arrays, as Arrow hands them over; any mixture of columns."""
    rng = random.Random(seed)
    topic = Topic(partitions=rng.randrange(1, 6), batch_bytes=rng.choice([1024, 5000, 1 << 20]), first=rng.randrange(9))
    wanted = []
    for _ in range(5):
        count = rng.randrange(0, 300)
        values = [rng.randbytes(rng.randrange(0, 60)) for _ in range(count)]
        keys = [rng.choice([None, rng.randbytes(3)]) for _ in range(count)]
        columns = {"value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.binary())}
        if rng.random() < 0.5:
            columns["partition"] = pa.array([rng.choice([None, 0]) for _ in range(count)], pa.int32())
        cut = rng.randrange(0, count + 1)
        batch = pa.RecordBatch.from_pydict(columns).slice(cut)
        if batch.num_rows:
            topic.filling.append(batch, NOW_MS)
        wanted += list(zip(keys[cut:], values[cut:], strict=True))
    found = [row[1:3] for rows in topic.rows().values() for row in rows]
    assert sorted(found, key=repr) == sorted(wanted, key=repr), f"seed {seed}"
