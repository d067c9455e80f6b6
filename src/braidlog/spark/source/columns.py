"""The columns of the source: converts chunks to the columns of a query.

Does not handle: reading chunks, decoding values (`values.py`). A returned batch has exactly the schema with which the
query was planned, in order: Spark checks only the first batch, and trusts the others.
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
    """Return all columns of a query, as DDL: Spark's parser reads the value's schema in it."""
    named = column_types(query)
    if not query.include_headers:
        del named["headers"]
    return ", ".join(f"`{name}` {kind}" for name, kind in named.items())


def column_types(query: Query) -> dict[str, str]:
    """Return all columns that a query may select, with their types."""
    named = {name: kind or _value_type(query) for name, kind in _COLUMNS.items()}
    if not has_errors(query):
        del named[ERROR]
    return named


def _value_type(query: Query) -> str:
    if query.value_schema is not None:
        return f"STRUCT<{query.value_schema}>"
    reading = find_reading(query)
    return _VALUE_TYPES[query.value_format] if reading is None else ddl(value_column(reading))


def value_column(reading: Reading, target: pa.DataType | None = None) -> pa.DataType:
    """Return the type of the column `value`, or of the selected part of it."""
    try:
        return reader(reading).column_type(target)
    except ColumnTypeError as error:
        raise ColumnError(f"{reading.name}: {error}; .schema('value STRUCT<…>') selects some of the fields") from None


def has_errors(query: Query) -> bool:
    return query.value_format != "binary" and query.bad_records != "fail"


def check_schema(query: Query, schema: StructType, reading: Reading | None = None) -> None:
    """Check a query's columns: any subset in any order; unselected columns are not computed."""
    if ERROR in schema.names and not has_errors(query):
        raise ColumnError(
            f"column {ERROR} exists only with a valueFormat other than binary, and without badRecords = fail"
        )
    known: dict[str, tuple[str, ...]] = {name: (simple(kind),) if kind else () for name, kind in _COLUMNS.items()}
    if query.value_format in _VALUE_TYPES:
        known["value"] = (simple(_VALUE_TYPES[query.value_format]),)
    if reading is not None:
        value_column(reading, _wanted_value(to_arrow_schema(schema, timezone="UTC")))
    elif known["value"] == () and "value" in schema.names and not isinstance(schema["value"].dataType, StructType):
        raise ColumnError("column `value` must be the struct of valueSchema")
    check_columns(schema, known, "unknown column {name}; braidlog has {known}")


def _wanted_value(target: pa.Schema) -> pa.DataType | None:
    return target.field("value").type if "value" in target.names else None


def bareness(query: Query, schema: StructType) -> Bare:
    """Return the record fields that no column of the query needs."""
    asked = set(schema.names)
    if query.value_format != "binary" or asked & {"value", "headers"}:
        return Bare.NOTHING
    return Bare.VALUES if "key" in asked else Bare.KEYS_AND_VALUES


def record_batches(
    query: Query, schema: StructType, span: Range, chunks: Iterable[Chunk], reading: Reading | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, in Spark's planned schema."""
    target = to_arrow_schema(schema, timezone="UTC")
    decode = decoder_of(query, _wanted_value(target), reading)
    asked = set(target.names)
    inner = [name for name in _OF_THE_LOG if name in asked]
    if decode is not None:
        inner += [name for name in ("value", "offset") if name not in inner]  # errors name the record
    inner = inner or ["offset"]  # for the row count
    pieces = PieceBuilder(
        inner, PieceLimits(ROWS_MAX, BYTES_MAX), end_offset=span.end, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX
    )
    for piece, append_time in _pieces(pieces, chunks):
        arrays = {name: piece.column(at) for at, name in enumerate(inner)}
        if decode is not None:
            arrays |= decode(arrays["value"], arrays["offset"], span)
        whole = pa.RecordBatch.from_arrays(
            [_column(name, arrays, span, piece.num_rows, append_time=append_time) for name in target.names],
            schema=target,
        )
        yield from _sliced(whole)


def _pieces(pieces: PieceBuilder, chunks: Iterable[Chunk]) -> Iterator[tuple[pa.RecordBatch, bool]]:
    for chunk in chunks:
        yield from pieces.add(chunk.data, chunk.start, chunk.aborted)
    yield from pieces.flush()


def _sliced(whole: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slice large batches without copying: one batch of the log may hold a million records. A small remainder is not
    split off."""
    if whole.num_rows < 2 * ROWS_MAX:
        yield whole
        return
    for at in range(0, whole.num_rows, ROWS_MAX):
        yield whole.slice(at, ROWS_MAX)


def _column(name: str, arrays: dict[str, pa.Array], span: Range, rows: int, *, append_time: bool) -> pa.Array:
    if name in arrays:
        return arrays[name]
    constants = {
        "topic": pa.scalar(span.topic),
        "partition": pa.scalar(span.partition, pa.int32()),
        "timestampType": pa.scalar(int(append_time), pa.int32()),
    }
    return pa.repeat(constants[name], rows)
