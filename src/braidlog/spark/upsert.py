"""Upserts: functions for `writeStream.foreachBatch` that write the last row of each key, each batch once.

    counts.writeStream.outputMode("update").foreachBatch(upsert.delta(path, key="user")).option("checkpointLocation", …).start()

A repeated batch changes nothing. Topics and tables recognize it by (sink, batch), where the sink is the query's id,
which is stored in its checkpoint. For keys, setting the same value again has no effect. Does not handle: how a sink
writes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from braidlog.spark.options import OptionError
from braidlog.wire.kafka import DIALECT as KAFKA
from braidlog.wire.mayfly import DIALECT as MAYFLY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from braidlog.spark.lake.contract import Table

Write = Callable[["DataFrame", int], None]
"""The function for `foreachBatch`: takes the rows of a batch and its number."""
Key = str | Sequence[str]

_QUERY_ID = "sql.streaming.queryId"
_BETWEEN = "/"
"""Separates the parts of a key of several columns."""


def topic(
    name: str,
    *,
    key: Key,
    order: str | None = None,
    servers: str = f"127.0.0.1:{KAFKA.port}",
    sink: str | None = None,
    **options: str,
) -> Write:
    """Write records of a topic: the key as text, the other columns as a JSON object. A compacted topic is then a
    table.

    `order`: write only the row of each key with the greatest value in a batch; without it, write all. `options`: of
    the format `braidlog`, such as `createTopic="3"`.
    """

    def write(batch: "DataFrame", number: int) -> None:
        from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

        rows = last_rows(batch, key, order)
        values = [column for column in rows.columns if column not in _names(key)]
        records = rows.select(_text(key).alias("key"), f.to_json(f.struct(*values)).alias("value"))
        given = {"servers": servers, "topic": name, "sinkId": _sink(batch, sink), "batchId": str(number), **options}
        records.write.format("braidlog").options(**given).mode("append").save()

    return write


def kv(
    *, key: Key, prefix: str = "", order: str | None = None, servers: str = MAYFLY.local_url, **options: str
) -> Write:
    """Write keys of the store: `prefix` and the key as text, the other columns as a JSON object. Setting a key is
    idempotent, so that repeated batches need not be recognized."""

    def write(batch: "DataFrame", number: int) -> None:  # noqa: ARG001 - as Spark calls it
        from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

        rows = last_rows(batch, key, order)
        values = [column for column in rows.columns if column not in _names(key)]
        keys = f.concat(f.lit(prefix), _text(key)).alias("key")
        pairs = rows.select(keys, f.to_json(f.struct(*values)).alias("value")).repartition("key")
        pairs.write.format("braidlog-kv").options(servers=servers, **options).mode("append").save()

    return write


def delta(
    path: str,
    *,
    key: Key,
    order: str | None = None,
    sink: str | None = None,
    store: dict[str, str] | None = None,
    add_columns: bool = False,
) -> Write:
    """Write rows of a Delta table: replace rows with existing keys, add the others, in one commit."""
    from braidlog.spark.lake.tables import open_table  # noqa: PLC0415 - the tables' libraries are an extra

    return into(lambda: open_table("delta", path, store=store), key, order, sink, add_columns=add_columns)


def iceberg(
    path: str | None = None,
    *,
    key: Key,
    order: str | None = None,
    sink: str | None = None,
    name: str | None = None,
    catalog: dict[str, str] | None = None,
    add_columns: bool = False,
) -> Write:
    """Write rows of an Iceberg table: by name in a catalog, or by path."""
    from braidlog.spark.lake.tables import open_table  # noqa: PLC0415 - the tables' libraries are an extra

    opened = partial(open_table, "iceberg", path, name=name, catalog=catalog)
    return into(opened, key, order, sink, add_columns=add_columns)


def into(
    opened: "Callable[[], Table]", key: Key, order: str | None, sink: str | None = None, *, add_columns: bool
) -> Write:
    """Write rows of the table that `opened` returns."""
    opened()  # raises now if the location is wrong, not in the first batch

    def write(batch: "DataFrame", number: int) -> None:
        from braidlog.spark.lake.upserting import upsert_rows  # noqa: PLC0415 - as above

        # On the driver, in one commit: the source's limit bounds the size of a micro-batch.
        rows = last_rows(batch, key, order).toArrow()
        upsert_rows(opened(), rows, _names(key), _sink(batch, sink), number, merge_schema=add_columns)

    return write


def _names(key: Key) -> list[str]:
    return [key] if isinstance(key, str) else list(key)


def _text(key: Key) -> "Column":
    """Return the key as text. Values of several columns are escaped and joined with `/`: ("a/b", "c") differs from
    ("a", "b/c")."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    parts = [f.col(name).cast("string") for name in _names(key)]
    if len(parts) > 1:
        for escaped in ("%", _BETWEEN):
            parts = [f.replace(part, f.lit(escaped), f.lit(f"%{ord(escaped):02X}")) for part in parts]
    # Null if one of them is null.
    text = f.concat(*[piece for part in parts for piece in (f.lit(_BETWEEN), part)][1:])
    return f.coalesce(
        text, f.raise_error(f.lit(f"key {', '.join(_names(key))} is null in a row: filter out such rows"))
    )


def last_rows(batch: "DataFrame", key: Key, order: str | None) -> "DataFrame":
    """Return the row of each key with the greatest `order`."""
    names = _names(key)
    if missing := [name for name in [*names, *([order] if order else [])] if name not in batch.columns]:
        raise OptionError("key", missing[0], f"unknown column; the batch has {', '.join(batch.columns)}")
    if order is None:
        return batch
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    row = f.max_by(f.struct(*batch.columns), f.col(order)).alias("row")
    return batch.groupBy(*names).agg(row).select("row.*")


def _sink(batch: "DataFrame", named: str | None) -> str:
    """Return the given name, else the query's id: it is the checkpoint's, and a new checkpoint is a new sink."""
    if named is not None:
        return named
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    try:
        query_id = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    except PySparkException:  # not available behind Spark Connect
        query_id = None
    if not query_id:
        raise OptionError(
            "sink", None, "Spark does not provide the query's id here: set a name, and a new one for each checkpoint"
        )
    return str(query_id)
