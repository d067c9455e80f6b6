"""The columns of the source: which there are, which a query wants, and how they are made of chunks.

Knows: Spark's types and Arrow's. Refuses to know: where chunks come from, what values mean (`values.py`).
Invariant: a batch that is given has exactly the schema that the query was planned with, in its order: Spark checks the first one
only, and takes the bytes of the others on trust.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from braidlog.client.drivers.kafka.bulk import Bare
from braidlog.codec.columns.arrow import PieceBuilder, PieceLimits
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.registry.errors import ColumnTypeError
from braidlog.spark.columns import ColumnError, check_columns, simple
from braidlog.spark.source.chunks import Chunk
from braidlog.spark.source.options import Query
from braidlog.spark.source.planning import Range
from braidlog.spark.source.schemas import Reading, ddl, find_reading, reader
from braidlog.spark.source.values import ERROR, decoder_of

ROWS_MAX = 64 * 1024
BYTES_MAX = 8 * 1024 * 1024

_VALUE_TYPES = {"binary": "BINARY", "string": "STRING"}
_COLUMNS = {
    "key": "BINARY",
    "value": None,
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    ERROR: "STRING",
}
_OF_THE_LOG = ("key", "value", "offset", "timestamp", "headers")


def default_schema(query: Query) -> str:
    """All columns of a query, as DDL: Spark's own parser reads the value's schema in it."""
    named = column_types(query)
    if not query.include_headers:
        del named["headers"]
    return ", ".join(f"`{name}` {kind}" for name, kind in named.items())


def column_types(query: Query) -> dict[str, str]:
    """Every column that a query may ask for, and its type."""
    named = {name: kind or _value_type(query) for name, kind in _COLUMNS.items()}
    if not has_errors(query):
        del named[ERROR]
    return named


def _value_type(query: Query) -> str:
    if query.value_schema is not None:
        return f"STRUCT<{query.value_schema}>"
    reading = find_reading(query)
    return _VALUE_TYPES[query.value_format] if reading is None else ddl(value_column(reading))


def value_column(reading: Reading, wanted: pa.DataType | None = None) -> pa.DataType:
    """The column that values are, or the part of it that is wanted."""
    try:
        return reader(reading).column_type(wanted)
    except ColumnTypeError as error:
        raise ColumnError(f"{reading.name}: {error}; .schema('value STRUCT<…>') takes some of the fields") from None


def has_errors(query: Query) -> bool:
    return query.value_format != "binary" and query.bad_records != "fail"


def check_schema(query: Query, schema: StructType, reading: Reading | None = None) -> None:
    """A query may ask for some of the columns, in any order: those it leaves out are not made."""
    if ERROR in schema.names and not has_errors(query):
        raise ColumnError(f"column {ERROR} is there with a valueFormat other than binary unless badRecords = fail")
    known: dict[str, tuple[str, ...]] = {name: (simple(kind),) if kind else () for name, kind in _COLUMNS.items()}
    if query.value_format in _VALUE_TYPES:
        known["value"] = (simple(_VALUE_TYPES[query.value_format]),)
    if reading is not None:
        value_column(reading, _wanted_value(to_arrow_schema(schema, timezone="UTC")))
    elif known["value"] == () and "value" in schema.names and not isinstance(schema["value"].dataType, StructType):
        raise ColumnError("column `value` is the struct of valueSchema")
    check_columns(schema, known, "column {name} is not there; braidlog has {known}")


def _wanted_value(target: pa.Schema) -> pa.DataType | None:
    return target.field("value").type if "value" in target.names else None


def bareness(query: Query, schema: StructType) -> Bare:
    """What no column of a query is made of."""
    asked = set(schema.names)
    if query.value_format != "binary" or asked & {"value", "headers"}:
        return Bare.NOTHING
    return Bare.VALUES if "key" in asked else Bare.KEYS_AND_VALUES


def record_batches(
    query: Query, schema: StructType, wanted: Range, chunks: Iterable[Chunk], reading: Reading | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, as Spark was promised them."""
    target = to_arrow_schema(schema, timezone="UTC")
    decode = decoder_of(query, _wanted_value(target), reading)
    asked = set(target.names)
    inner = [name for name in _OF_THE_LOG if name in asked]
    if decode is not None:
        inner += [name for name in ("value", "offset") if name not in inner]  # errors say which record it was
    inner = inner or ["offset"]  # somebody has to count the rows
    pieces = PieceBuilder(
        inner, PieceLimits(ROWS_MAX, BYTES_MAX), end_offset=wanted.end, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX
    )
    for piece, append_time in _pieces(pieces, chunks):
        found = {name: piece.column(at) for at, name in enumerate(inner)}
        if decode is not None:
            found |= decode(found["value"], found["offset"], wanted)
        whole = pa.RecordBatch.from_arrays(
            [_column(name, found, wanted, piece.num_rows, append_time=append_time) for name in target.names],
            schema=target,
        )
        yield from _sliced(whole)


def _pieces(pieces: PieceBuilder, chunks: Iterable[Chunk]) -> Iterator[tuple[pa.RecordBatch, bool]]:
    for chunk in chunks:
        yield from pieces.add(chunk.data, chunk.start, chunk.aborted)
    yield from pieces.flush()


def _sliced(whole: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """One batch of the log may hold a million records: a slice costs nothing. A remainder is not worth a batch of its own."""
    if whole.num_rows < 2 * ROWS_MAX:
        yield whole
        return
    for at in range(0, whole.num_rows, ROWS_MAX):
        yield whole.slice(at, ROWS_MAX)


def _column(name: str, found: dict[str, pa.Array], wanted: Range, rows: int, *, append_time: bool) -> pa.Array:
    if name in found:
        return found[name]
    constants = {
        "topic": pa.scalar(wanted.topic),
        "partition": pa.scalar(wanted.partition, pa.int32()),
        "timestampType": pa.scalar(int(append_time), pa.int32()),
    }
    return pa.repeat(constants[name], rows)
