"""What a value with a schema costs on its way into columns: processor time a row, for Avro and Protobuf, and for decoding alone.

python -m benchmarks.schemas
"""

import io
import json
import time
from collections.abc import Callable
from typing import Any

import fastavro

from braidlog.registry.avro import columns
from braidlog.registry.avro import schema as avro
from braidlog.registry.protobuf.columns import MessageColumns
from braidlog.registry.schemas import ProtobufSchema

ROWS = 50_000
TRIES = 5
FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "name", "type": "string"},
    {"name": "price", "type": "double"},
    {"name": "n", "type": ["null", "int"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
]
NEW = {"name": "new", "type": "string", "default": "x"}
PROTO = """syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1; string name = 2; double price = 3; optional int32 n = 4;
  google.protobuf.Timestamp at = 5; repeated string tags = 6;
}"""


def root(fields: list[dict[str, Any]]) -> avro.Type:
    return avro.parse(json.dumps({"type": "record", "name": "Order", "fields": fields})).root


def cost(what: str, work: Callable[[], object]) -> None:
    took = []
    for _ in range(TRIES):
        begun = time.process_time()
        work()
        took.append(time.process_time() - begun)
    print(f"{what:<44} {min(took) / ROWS * 1e6:6.2f} µs/row")


def avro_values() -> None:
    schema = fastavro.parse_schema({"type": "record", "name": "Order", "fields": FIELDS})
    values: list[bytes | None] = []
    for at in range(ROWS):
        out = io.BytesIO()
        row = {"id": at, "name": f"name {at}", "price": at / 2, "n": None if at % 3 else at, "at": 10**12 + at}
        fastavro.schemaless_writer(out, schema, {**row, "tags": ["a", "b"]})
        values.append(out.getvalue())
    ours, evolved = root(FIELDS), root([*FIELDS, NEW])
    same = columns.decoder(ours, ours, columns.column_type(ours))
    other = columns.decoder(evolved, ours, columns.column_type(evolved))
    cost("avro, columns", lambda: same(values))
    cost("avro, columns of a schema that evolved", lambda: other(values))
    bare = [each for each in values if each is not None]
    cost("avro, fastavro alone", lambda: [fastavro.schemaless_reader(io.BytesIO(each), schema, None) for each in bare])


def protobuf_values() -> None:
    kind = MessageColumns(ProtobufSchema(PROTO, {}), {})
    values: list[bytes | None] = []
    for at in range(ROWS):
        made = kind.make(id=at, name=f"name {at}", price=at / 2, tags=["a", "b"])
        made.at.seconds = 10**9 + at
        if at % 3 == 0:
            made.n = at
        values.append(made.SerializeToString())
    decode = kind.decoder(kind.column_type())
    cost("protobuf, columns", lambda: decode(values))
    bare = [each for each in values if each is not None]
    cost("protobuf, parsing alone", lambda: [kind.make.FromString(each) for each in bare])


if __name__ == "__main__":
    avro_values()
    protobuf_values()
