"""Values with schemas as columns of a table: written by fastavro and by Google's library, read by pyiceberg and polars."""

import datetime as dt
import io
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import polars as pl
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as F
from tests.refusals import refused_with
from tests.tables.killed import turn_and_die
from tests.tables.test_kill import COMMITS, named, written
from tests.tables.turned import expected_of, plan_of, rows_of, table_of, turn

from braidlog.model.errors import Reason
from braidlog.model.settings import TableForm
from braidlog.registry.framing import head
from braidlog.registry.registry_state import State, Version, schema_entry
from braidlog.registry.schemas import PROTOBUF, Reference, Schema
from braidlog.storage.embedded_log import Log, Topic
from braidlog.tables import catalog
from braidlog.tables.plan import Plan

SUBJECT = "t-value"


def record(*fields: Any, name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each[0], "type": each[1]} for each in fields]}


def avro(schema: Any, number: int, value: Any) -> bytes:
    """As Confluent's serializer frames what fastavro writes."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return head(number) + out.getvalue()


class Runtime:
    """A topic, and the versions of its subject; ids are those of the versions."""

    def __init__(self, folder: Path, form: TableForm = TableForm.AVRO, partitions: int = 1) -> None:
        self.folder, self.form = folder, form
        self.topic: Topic = Log(str(folder / "data")).create_topic("t", partitions=partitions)
        self.state = State()

    def register(self, *schemas: Any, kind: str = "AVRO", deleted: bool = False) -> None:
        for each in schemas:
            number = len(self.state.versions(SUBJECT, deleted=True)) + 1
            text = each if isinstance(each, str) else json.dumps(each)
            self.state.apply([schema_entry(Version(SUBJECT, number, number, Schema(text, kind), deleted))])

    def plan(self) -> Plan:
        return plan_of(self.topic, self.folder / "w", form=self.form, schemas=self.state.subject_state(SUBJECT))

    def turn(self) -> Any:
        plan = self.plan()
        done = turn(plan)
        assert rows_of(table_of(plan)) == expected_of(self.topic), "every value is kept as it was"
        return done

    def columns(self) -> dict[str, list[Any]]:
        found = table_of(self.plan()).scan().to_arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
        return dict(found.drop(found.column_names[:7]).to_pydict())

    def files(self) -> dict[str, list[Any]]:
        """As the one file has them: pyiceberg 0.12 reads lists and maps of records that are null as empty ones."""
        (task,) = table_of(self.plan()).scan().plan_files()
        found = pq.read_table(task.file.file_path.removeprefix("file://"))
        return dict(found.drop(found.column_names[:7]).to_pydict())

    def types(self) -> dict[str, str]:
        fields = table_of(self.plan()).schema().fields[7:]
        return {each.name: re.sub(r"\d+: | optional", "", str(each.field_type)) for each in fields}


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path)


PART = record(("name", "string"), ("count", ["null", "int"]), name="Part")
EVERY = record(
    ("id", "long"),
    ("n", "int"),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("size", {"type": "enum", "name": "Size", "symbols": ["S", "L"]}),
    ("note", ["null", "string"]),
    ("part", PART),
    ("tags", {"type": "array", "items": "string"}),
    ("stock", {"type": "map", "values": "Part"}),
    ("either", ["string", "long"]),
    ("offset", "long"),
)
VALUE = {
    "id": 1,
    "n": 2,
    "price": Decimal("1.50"),
    "at": dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
    "day": dt.date(2024, 1, 2),
    "size": "L",
    "note": None,
    "part": {"name": "p", "count": 3},
    "tags": ["a", "b"],
    "stock": {"x": {"name": "y", "count": None}},
    "either": "text",
    "offset": 9,
}


def test_avro_of_every_type(runtime: Runtime) -> None:
    runtime.register(EVERY)
    runtime.topic.append(avro(EVERY, 1, VALUE))
    for odd in (b"none", head(7) + b"\2", None, avro(EVERY, 1, VALUE)[:-1], head(1)):
        runtime.topic.append(odd)
    done = runtime.turn()
    assert done.undecoded == 4
    assert catalog.undecoded_of(table_of(runtime.plan()).properties) == 4
    wanted = {**{name: its for name, its in VALUE.items() if name not in ("either", "offset")}, "_offset": 9}
    wanted["stock"] = [("x", {"name": "y", "count": None})]
    assert runtime.files() == {name: [its, *[None] * 5] for name, its in wanted.items()}, "a union of two is no column"
    assert runtime.columns()["part"] == runtime.files()["part"]
    assert runtime.types() == {
        "id": "long",
        "n": "int",
        "price": "decimal(9, 2)",
        "at": "timestamptz",
        "day": "date",
        "size": "string",
        "note": "string",
        "part": "struct<name: string, count: int>",
        "tags": "list<string>",
        "stock": "map<string, struct<name: string, count: int>>",
        "_offset": "long",
    }
    polars = pl.scan_iceberg(table_of(runtime.plan())).sort("offset").select("id", "tags", "part").head(1).collect()
    assert polars.rows() == [(1, ["a", "b"], {"name": "p", "count": 3})]
    assert runtime.turn().undecoded == 4, "what is counted is not counted again"


def test_columns_follow_the_newest_schema(runtime: Runtime) -> None:
    """Wider numbers, new fields, also inside; what Iceberg has no type for keeps its column, and is null."""
    inner = record(("a", "int"), name="In")
    old = record(("n", "int"), ("gone", "string"), ("same", "string"), ("odd", "int"), ("in", inner))
    wide = record(("a", "long"), ("b", "string"), name="In")
    new = record(("n", "long"), ("same", "string"), ("odd", "string"), ("in", wide), ("new", "double"))
    first = {"n": 1, "gone": "g", "same": "s", "odd": 5, "in": {"a": 1}}
    second = {"n": 2**40, "same": "t", "odd": "text", "in": {"a": 2**40, "b": "c"}, "new": 0.5}
    runtime.register(old)
    runtime.topic.append(avro(old, 1, first))
    runtime.turn()
    assert runtime.types()["n"] == "int"
    runtime.register(new)
    runtime.turn()
    assert "new" not in runtime.types(), "there was nothing to turn"
    for number, schema, value in ((2, new, second), (1, old, first)):
        runtime.topic.append(avro(schema, number, value))
    assert runtime.turn().undecoded == 0
    assert runtime.types()["n"] == "long"
    assert runtime.columns() == {
        "n": [1, 2**40, 1],
        "gone": ["g", None, "g"],
        "same": ["s", "t", "s"],
        "odd": [5, None, 5],
        "in": [{"a": 1, "b": None}, {"a": 2**40, "b": "c"}, {"a": 1, "b": None}],
        "new": [None, 0.5, None],
    }


def test_lists_and_maps_of_records_that_grow(runtime: Runtime) -> None:
    def nested(*fields: Any) -> dict[str, Any]:
        items = record(*fields, name="Item")
        return record(
            ("l", ["null", {"type": "array", "items": items}]),
            ("m", ["null", {"type": "map", "values": "Item"}]),
            ("day", {"type": "int", "logicalType": "date"}),
        )

    old, new = nested(("a", "int")), nested(("b", "string"), ("a", "long"))
    runtime.register(old, new)
    day = dt.date(2024, 1, 2)
    for of_list, of_map in [([{"a": 1}, {"a": 2}], {"k": {"a": 2}}), (None, None), ([], {})]:
        runtime.topic.append(avro(old, 1, {"l": of_list, "m": of_map, "day": day}))
    runtime.topic.append(avro(new, 2, {"l": [{"b": "x", "a": 3}], "m": {}, "day": day}))
    done = runtime.turn()
    assert done.undecoded == 0
    columns = runtime.files()
    assert columns["l"] == [[{"b": None, "a": 1}, {"b": None, "a": 2}], None, [], [{"b": "x", "a": 3}]]
    assert columns["m"] == [[("k", {"b": None, "a": 2})], None, [], []]


def test_a_subject_without_schemas_and_one_that_was_deleted(runtime: Runtime) -> None:
    schema = record(("n", "int"))
    runtime.topic.append(avro(schema, 1, {"n": 1}))
    assert runtime.turn().undecoded == 1, "nothing is known of it"
    runtime.register(schema)
    runtime.topic.append(avro(schema, 1, {"n": 2}))
    runtime.turn()
    runtime.state = State()
    runtime.register(schema, deleted=True)
    runtime.topic.append(avro(schema, 1, {"n": 3}))
    runtime.topic.append(b"odd")
    assert runtime.turn().undecoded == 2, "with what was counted before"
    assert runtime.columns() == {"n": [None, 2, 3, None]}


@pytest.mark.parametrize("schema", ['"string"', "{", json.dumps(record(("n", "null")))])
def test_a_newest_schema_that_is_no_record_adds_no_column(runtime: Runtime, schema: str) -> None:
    first = record(("n", "int"))
    runtime.register(first, schema)
    runtime.topic.append(avro(first, 1, {"n": 1}))
    assert runtime.turn().undecoded == 1
    assert runtime.columns() == {}


def test_schemas_that_refer_to_others(runtime: Runtime) -> None:
    part, order = PART, record(("id", "int"), ("part", "Part"))
    entries = [
        Version("parts", 3, 70, Schema(json.dumps(part))),
        Version(SUBJECT, 1, 71, Schema(json.dumps(order), "AVRO", (Reference("Part", "parts", 3),))),
        Version("somebody-else", 1, 72, Schema('"int"')),
    ]
    runtime.state.apply(map(schema_entry, entries))
    assert len(runtime.plan().schemas) == 2, "what is of others does not travel"
    data = avro(record(("id", "int"), ("part", part)), 71, {"id": 1, "part": {"name": "n", "count": 2}})
    runtime.topic.append(data)
    runtime.topic.append(head(72) + data[5:])
    assert runtime.turn().undecoded == 1
    assert runtime.columns()["part"] == [{"name": "n", "count": 2}, None]


PROTO = """syntax = "proto3"; package shop;
import "google/protobuf/duration.proto";
message Order {{ int32 id = 1; {more} google.protobuf.Duration took = 3; repeated string tags = 4; Empty none = 5; }}
message Empty {{}}
message Other {{ int32 id = 1; }}"""


def googles(*more: tuple[str, int, Any]) -> Any:
    """The class of `Order`, from a descriptor that is written by hand and not by our reader of .proto files."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(duration_pb2.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/duration.proto")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    for name, number, kind in more:
        order.field.add(name=name, number=number, type=kind, label=F.LABEL_OPTIONAL)
    order.field.add(
        name="took", number=3, type=F.TYPE_MESSAGE, type_name=".google.protobuf.Duration", label=F.LABEL_OPTIONAL
    )
    order.field.add(name="tags", number=4, type=F.TYPE_STRING, label=F.LABEL_REPEATED)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_protobuf(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path, TableForm.PROTOBUF)
    runtime.register(PROTO.format(more=""), kind=PROTOBUF)
    old, new = googles(), googles(("big", 2, F.TYPE_UINT64))
    took = dt.timedelta(seconds=2, microseconds=5)
    runtime.topic.append(head(1) + b"\0" + old(id=1, took=took, tags=["a"]).SerializeToString())
    runtime.turn()
    assert runtime.types() == {"id": "int", "took": "long", "tags": "list<string>"}, (
        "a message without fields is no column"
    )
    runtime.register(PROTO.format(more="uint64 big = 2;"), kind=PROTOBUF)
    runtime.topic.append(head(2) + b"\0" + new(id=2, big=2**64 - 1).SerializeToString())
    runtime.topic.append(head(1) + b"\0" + old(id=3).SerializeToString())
    runtime.topic.append(head(2) + b"\2\4" + b"\x08\x05")  # Other, at place 2
    runtime.topic.append(head(2) + b"\2\x12" + b"\x08\x05")  # place 9: there is none
    runtime.topic.append(head(2) + b"\0" + b"\x08")
    assert runtime.turn().undecoded == 3
    assert runtime.columns() == {
        "id": [1, 2, 3, None, None, None],
        "took": [2_000_005, None, None, None, None, None],
        "tags": [["a"], [], [], None, None, None],
        "big": [None, Decimal(2**64 - 1), None, None, None, None],
    }


@pytest.mark.parametrize("point", COMMITS)
def test_a_worker_that_is_killed_while_rows_are_added(runtime: Runtime, tmp_path: Path, point: str) -> None:
    """Each record is a row once, and what is no value of its schema is counted once."""
    schema = record(("n", "int"))
    runtime.register(schema)
    for n in range(50):
        runtime.topic.append(avro(schema, 1, {"n": n}) if n % 10 else b"odd")
    plan = runtime.plan()
    turn_and_die(plan, point)
    done = turn(plan)
    assert rows_of(table_of(plan)) == expected_of(runtime.topic)
    assert runtime.columns()["n"] == [n if n % 10 else None for n in range(50)]
    assert (done.undecoded, done.rows) == (5, 50)
    assert written(plan) == named(plan)


@pytest.mark.parametrize(
    ("theirs", "ours", "columns"),
    [
        ("long", "int", {"n": [1, 2]}),
        ("int", "long", {"n": [1, 2]}),
        ("string", "int", {"n": [None, "2"]}),
    ],
)
def test_two_who_know_different_schemas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: str, ours: str, columns: dict[str, list[Any]]
) -> None:
    """As two nodes do that lead partitions of one topic, of which one has read less of the log of schemas."""
    runtime = Runtime(tmp_path, partitions=2)
    own, other = record(("n", ours)), record(("n", theirs))
    runtime.topic.append(avro(own, 1, {"n": 1}), partition=0)
    runtime.topic.append(avro(other, 2, {"n": "2" if theirs == "string" else 2}), partition=1)
    runtime.register(own)
    plan = runtime.plan()
    first = msgspec.structs.replace(plan, parts=plan.parts[:1])
    runtime.register(other)
    second = msgspec.structs.replace(plan, parts=plan.parts[1:], schemas=runtime.plan().schemas)
    commit = catalog.commit

    def late(*given: Any) -> None:
        monkeypatch.setattr(catalog, "commit", commit)
        turn(second)
        commit(*given)

    monkeypatch.setattr(catalog, "commit", late)
    assert turn(first).files == 2
    assert rows_of(table_of(plan)) == expected_of(runtime.topic)
    assert runtime.columns() == columns


def test_what_is_not_installed_is_told(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime.register(record(("n", "int")))
    runtime.topic.append(b"x")
    for module in ("braidlog.registry.avro.columns", "braidlog.registry.avro.values"):
        monkeypatch.delattr(module, raising=False)
        monkeypatch.delitem(__import__("sys").modules, module, raising=False)
    monkeypatch.setitem(__import__("sys").modules, "fastavro", None)
    with refused_with(Reason.UNAVAILABLE, match=r"fastavro is not installed .* pip install 'braidlog\[schemas\]'"):
        turn(runtime.plan())


def test_json_that_is_none_is_counted(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path, TableForm.JSON)
    for value in (b'{"n": 1}', b"null", None, b"no", b'{"n": "x"}'):
        runtime.topic.append(value)
    assert runtime.turn().undecoded == 2, "a field that does not fit its column is no value that is none"
    for value in (b'{"n": 2}', b"null", None):
        runtime.topic.append(value)
    assert runtime.turn().undecoded == 3, "also where Arrow's own parser reads them all at once"
    assert runtime.columns()["n"] == [1, None, None, None, None, 2, None, None]
