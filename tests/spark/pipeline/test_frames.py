"""The layers as plain frames, in batch: what each makes of a handful of records, told by hand."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from braidlog import BrokerError
from braidlog.spark.pipeline.config import Dedup, Expectation, Silver, State, Windows
from braidlog.spark.pipeline.layers import gold, records, silver, transforms
from braidlog.spark.pipeline.layers.expectations import watched

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
SETTINGS = Silver(
    schema="user string, type string, amount double, at timestamp, nested struct<a:int,b:array<string>>",
    required=("user", "type"),
    event_time="at",
    dedup=Dedup(by=("header:producer", "header:sequence")),
)


def record(
    offset: int, value: object, *, key: str | None = None, headers: dict[str, str] | None = None
) -> tuple[object, ...]:
    raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    listed = (
        None
        if headers is None
        else [Row(key=name, value=text.encode(errors="surrogateescape")) for name, text in headers.items()]
    )
    return "t", 0, offset, START + timedelta(seconds=offset), key and key.encode(), raw, listed


def frame(spark: SparkSession, *rows: tuple[object, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), records.SCHEMA)


BAD = {
    10: (None, "the value is null"),
    11: (b"{", "the value is not a JSON object"),
    12: (b"[1]", "the value is not a JSON object"),
    13: (b'"text"', "the value is not a JSON object"),
    14: (b"\xff\xfe", "the value is not UTF-8"),
    15: (
        {"user": "ada", "type": "x", "amount": "much"},
        "the value does not fit the schema: amount is not of type double",
    ),
    16: (
        {"user": "ada", "type": "x", "amount": [], "at": "soon"},
        "the value does not fit the schema: amount is not of type double, at is not of type timestamp",
    ),
    17: ({"type": "x"}, "required and missing: user"),
    18: ({"user": None}, "required and missing: user, type"),
    # Two keys that Spark's parser would make the same, `a` and U+FFFD; a surrogate that it would make a question mark.
    19: (b'{"user": "a\xff", "type": "x"}', "the value is not UTF-8"),
    20: (b'{"user": "a\xfe", "type": "x"}', "the value is not UTF-8"),
    21: (b'{"user": "\\ud800", "type": "x"}', "the value is not a JSON object"),
}


def test_every_record_is_a_row_or_a_dead_letter(spark: SparkSession, tmp_path: Path) -> None:
    good = {
        0: {
            "user": "ada",
            "type": "x",
            "amount": 1.5,
            "at": "2026-01-02T03:04:05.678901Z",
            "nested": {"a": 1, "b": ["c"]},
        },
        1: {"user": "ada", "type": "x", "more": "than declared"},
        2: {"user": "", "type": "ü", "amount": None},
    }
    raw = frame(
        spark,
        *[record(offset, value, key="k") for offset, value in good.items()],
        *[record(offset, value, headers={"own": "1"}) for offset, (value, _) in BAD.items()],
    )
    rows = silver.rows(raw, SETTINGS, [])
    assert {row._offset for row in rows.collect()} == set(good)

    # What is written to the layer's topic reads back as the same row.
    again = silver.from_topic(silver.to_topic(rows), silver.schema_of(spark, SETTINGS, []))
    assert again.dtypes == rows.dtypes
    assert again.orderBy("_offset").collect() == rows.orderBy("_offset").collect()
    first, second, third = sorted(again.collect(), key=lambda row: row._offset)
    assert (first.user, first.amount, first.nested) == ("ada", 1.5, Row(a=1, b=["c"]))
    assert first.at == first._time
    assert first.at.astimezone(UTC) == datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)  # Spark gives local time
    assert second._time == second._timestamp
    assert (third.user, third.type, third.amount, third._id) == ("", "ü", None, "t/0/2")

    dead = silver.dead_letters(raw, SETTINGS, "clicks", 3).collect()
    told = {}
    for letter in dead:
        headers = {header.key: header.value.decode() for header in letter.headers}
        assert headers["own"] == "1"
        assert (headers["braid.pipeline"], headers["braid.generation"]) == ("clicks", "3")
        assert (headers["braid.topic"], headers["braid.partition"]) == ("t", "0")
        told[int(headers["braid.offset"])] = (letter.value, headers["braid.reason"])
    values = {offset: record(offset, value)[5] for offset, (value, _) in BAD.items()}
    assert told == {offset: (values[offset], reason) for offset, (_, reason) in BAD.items()}

    # A transform of one's own, in SQL and in Python; one that forgets where rows came from.
    (tmp_path / "more.sql").write_text("SELECT *, upper(type) AS loud FROM input WHERE user <> '';")
    (tmp_path / "less.py").write_text("def transform(frame):\n    return frame.drop('nested')\n")
    (tmp_path / "none.sql").write_text("SELECT user FROM input")
    load = [transforms.load(tmp_path, name) for name in ("more.sql", "less.py")]
    changed = silver.rows(raw, SETTINGS, load)
    assert "nested" not in changed.columns
    assert [row.loud for row in changed.orderBy("_offset").collect()] == ["X", "X"]
    with pytest.raises(BrokerError, match=r"none.sql drops _topic"):
        silver.rows(raw, SETTINGS, [transforms.load(tmp_path, "none.sql")])


def test_the_same_record_becomes_one_row(spark: SparkSession) -> None:
    value = {"user": "ada", "type": "x"}

    def sent(offset: int, producer: str, sequence: str) -> tuple[object, ...]:
        return record(offset, value, headers={"producer": producer, "sequence": sequence})

    raw = frame(
        spark,
        sent(0, "a", "bc"),
        sent(1, "ab", "c"),  # not the same, though the parts put together are
        sent(2, "a", "bc"),
        record(3, value, headers={"producer": "a"}),  # does not say all: its position is its name
        record(4, value),
        record(5, value, headers={"producer": "old", "sequence": "bc"}),
        sent(6, "\udcff", "1"),  # a byte that is no text
        sent(7, "\udcfe", "1"),
        sent(8, "\udcff", "1"),
    )
    rows = silver.once(silver.rows(raw, SETTINGS, []), SETTINGS)
    wanted = ["1:a/2:bc", "2:ab/1:c", "3:old/2:bc", "t/0/3", "t/0/4", "x:FE/1:1", "x:FF/1:1"]
    assert sorted(row._id for row in rows.collect()) == wanted
    again = silver.from_topic(silver.to_topic(rows), silver.schema_of(spark, SETTINGS, []))
    assert sorted(row._id for row in again.collect()) == wanted, "no two of them become one in the layer's topic"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"schema": "user strin"}, "schema is not a list of columns"),
        ({"schema": "_user string"}, "'_user': names with a leading _ are reserved for silver"),
        ({"event_time": "when"}, "the schema has no column 'when'; it has user"),
        ({"required": ("amount",)}, "required: the schema has no column 'amount'"),
        ({"dedup": Dedup(by=("header:a", "seq"))}, "dedup] by: the schema has no column 'seq'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_schema_that_cannot_be(spark: SparkSession, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(BrokerError) as caught:
        silver.declared(spark, Silver(**{"schema": "user string", **changes}))  # type: ignore[arg-type]
    assert sentence in str(caught.value)


def test_gold(spark: SparkSession) -> None:
    settings = Windows(size="10 seconds", by=("type",), latency="amount")
    values = [{"user": f"u{n % 3}", "type": "ab"[n % 2], "amount": n} for n in range(40)]
    rows = silver.rows(frame(spark, *[record(n, value) for n, value in enumerate(values)]), SETTINGS, [])
    summed = gold.windows(rows, settings)
    expected = set()
    for start in (0, 10, 20, 30):
        for kind in (0, 1):
            amounts = [float(n) for n in range(start, start + 10) if n % 2 == kind]
            begin = START + timedelta(seconds=start)
            expected.add((begin, begin + timedelta(seconds=10), "ab"[kind], 5, amounts[2], amounts[4]))
    found = {(row[0].astimezone(UTC), row[1].astimezone(UTC), *row[2:]) for row in summed.collect()}
    assert found == expected
    written = gold.windows_to_topic(summed, settings).collect()
    assert len({row.key for row in written}) == 8
    assert bytes(min(row.key for row in written)) == b"2026-03-01T12:00:00.000Z/a"
    assert json.loads(min(written, key=lambda row: row.key).value)["latency_p99"] == 8.0

    last = gold.last_of_each(rows, State(key="user"), "clicks").collect()
    assert {bytes(row.key): json.loads(row.value)["amount"] for row in last} == {
        b"clicks:u0": 39.0,
        b"clicks:u1": 37.0,
        b"clicks:u2": 38.0,
    }
    first = gold.last_of_each(rows, State(key="user", order="-amount", prefix="p/"), "clicks").collect()
    assert {bytes(row.key): json.loads(row.value)["amount"] for row in first}[b"p/u0"] == 0.0


def test_expectations_drop_and_fail(spark: SparkSession) -> None:
    numbers = spark.range(10)

    def check(what: str, then: str) -> Expectation:
        return Expectation(stage="silver", name="small", check=what, on_violation=then)  # type: ignore[arg-type]

    assert watched(numbers, [check("id < 4", "drop")]).count() == 4
    assert watched(numbers, [check("nullif(id, 3) < 4", "drop")]).count() == 3  # neither true nor false is broken
    assert watched(numbers, [check("id < 4", "keep")]).count() == 10
    assert watched(numbers, [check("id < 10", "fail")]).count() == 10
    with pytest.raises(PySparkException, match=r"expectation small of silver is broken by \{\"id\":9\}"):
        watched(numbers, [check("id <> 9", "fail")]).collect()
    with pytest.raises(BrokerError, match=r"small: 'ident < 4' cannot be evaluated on silver"):
        watched(numbers, [check("ident < 4", "drop")])
