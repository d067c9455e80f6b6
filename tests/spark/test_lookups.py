"""Look-ups without Spark: rows and their order, what is asked for, how long an answer counts."""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from braidlog.spark import lookups
from braidlog.spark.lookups import Cache, Lookup
from braidlog.testing.clock import ManualClock

FIELDS = StructType([StructField("y", StringType()), StructField("x", IntegerType())])


class Store:
    def __init__(self, **values: bytes) -> None:
        self.values = {name.encode(): value for name, value in values.items()}
        self.asked: list[list[bytes]] = []

    def ask(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.asked.append(list(keys))
        return [self.values.get(key) for key in keys]


def test_every_row_once_in_its_order_and_each_key_asked_for_once() -> None:
    store, cache = Store(pa=b'{"x": 1, "y": "one"}', pb=b'{"x": "odd", "y": "two"}', pc=b"broken"), Cache()
    look = Lookup("k", "p", "", 1.0, FIELDS.json())
    batch = pa.record_batch({"k": ["b", None, "a", "b", "c", "d"], "row": list(range(6))})
    found = look.joined(batch, lambda keys: cache.values(keys, 1.0, store.ask))
    assert found.schema.names == ["k", "row", "y", "x"]
    assert found.column("row").to_pylist() == list(range(6))
    assert found.column("y").to_pylist() == ["two", None, "one", "two", None, None]
    assert found.column("x").to_pylist() == [None, None, 1, None, None, None], "one bad field leaves the others"
    assert store.asked == [[b"pb", b"pa", b"pc", b"pd"]]
    assert look.joined(batch.slice(0, 0), lambda keys: cache.values(keys, 1.0, store.ask)).num_rows == 0


def test_an_answer_counts_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "CACHED_KEYS_MAX", 2)
    clock = ManualClock()
    store, cache = Store(a=b"1", b=b"1"), Cache(clock)
    assert cache.values([b"a", b"b"], 1.0, store.ask) == {b"a": b"1", b"b": b"1"}
    store.values[b"a"] = b"2"
    clock.advance(999)
    assert cache.values([b"a"], 1.0, store.ask) == {b"a": b"1"}
    clock.advance(1)
    assert cache.values([b"a"], 1.0, store.ask) == {b"a": b"2"}
    assert cache.values([b"a", b"b", b"c"], 1.0, store.ask) == {b"a": b"2", b"b": b"1", b"c": None}
    assert store.asked == [[b"a", b"b"], [b"a"], [b"b", b"c"]]
    assert len(cache._values) <= 2, "what is kept is bounded"
