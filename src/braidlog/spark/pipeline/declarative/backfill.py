"""Backfill of a declarative pipeline: adds a range of the log to its tables in batch, beside the checkpoints.

Does not handle: Spark's graph, which has no bounded flows; topics: their readers do not get old records. A row whose
key a table has is not added again, and each table changes in one commit, so that an interrupted backfill can be
repeated. Records that a flow has not read are left to it. An aggregated row is computed from all its records in the
log. It is added only if the flow will not write it any more; an existing row does not change.
"""

import io
import re
from contextlib import redirect_stdout
from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from braidlog.spark.pipeline.checkpoints import Offsets, Position, position
from braidlog.spark.pipeline.config import refusal
from braidlog.spark.pipeline.declarative import engine
from braidlog.spark.pipeline.declarative.definitions import Flow
from braidlog.spark.pipeline.layers import records, tables
from braidlog.spark.pipeline.ledger import Generation
from braidlog.spark.pipeline.project import Project
from braidlog.spark.pipeline.replay.backfill import NOT_RUN, Filled, read_range, was_read
from braidlog.spark.pipeline.stages import ToTable

_PLACES: Final = (records.PLACE, tuple(f"_{name}" for name in records.PLACE))
"""The columns that identify a row's source record."""
_SUMMED: Final = re.compile(r"(?:Aggregate \[|FlatMapGroups|FlatMapCoGroups|TransformWithState)")
"""Nodes of Spark's analysed plan that aggregate rows; that of `dropDuplicates` is not among them."""
_ANALYSED: Final = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n== ", re.DOTALL)


class Backfill:
    """The flows of one project, and the range [start, end) of its records."""

    def __init__(self, spark: SparkSession, project: Project, generation: Generation) -> None:
        self._spark = spark
        self._project = project
        self._generation = generation
        self._declared = engine.for_batches(spark, project, generation)
        self.flows = self._filled()
        empty = spark.createDataFrame([], records.SCHEMA)
        # For all flows, before the first table is written: a missing declaration must be refused before anything has
        # changed.
        self.keys = {flow.name: _key(flow, *self._declared.known_rows(flow.name, empty)) for flow in self.flows}

    def _filled(self) -> list[Flow]:
        declared = self._declared.flows.values()
        flows = [flow for flow in declared if isinstance(flow.writes, ToTable) and flow.backfill]
        for flow in flows:
            if self._position(flow).batch < 0:
                raise refusal(f"{flow.name}: {NOT_RUN}")
        return flows

    def lacking(self, flow: Flow, raw: DataFrame, log: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Return the range's rows that the flow's table lacks; and all rows of the range."""
        key = self.keys[flow.name]
        rows = self._rows(flow, raw)
        if flow.until:
            touched = rows.select(*key).distinct()
            closed = f.unix_millis(f.expr(flow.until)) <= self._position(flow).watermark_ms
            rows = _joined(self._rows(flow, log), touched, key, "left_semi").where(closed)
        schema = StructType([rows.schema[name] for name in key])
        there = tables.read(self._spark, self._project, flow.name, schema).distinct()
        return _joined(rows, there, key, "left_anti"), rows

    def add(self, flow: Flow, rows: DataFrame) -> None:
        # Not under the stream's sink name: the backfill has no batch numbers.
        own = {name: value for name, value in flow.options.items() if name.lower() != "sinkid"}
        tables.append(rows, self._project, flow.name, own)

    def _rows(self, flow: Flow, raw: DataFrame) -> DataFrame:
        """Return a flow's rows of the records that it has read."""
        read = raw.where(was_read(self._project, flow.name, self._generation))
        return self._declared.rows(flow.name, records.as_it_came(read))

    def _position(self, flow: Flow) -> Position:
        return position(self._project.checkpoint(flow.name, self._generation.of(flow.name)))


def backfill(
    spark: SparkSession, project: Project, generation: Generation, start: str, end: str, ends: Offsets, *, dry_run: bool
) -> Filled:
    """Add the records of [start, end) to the tables of all flows, unless they exist there."""
    backfill_run = Backfill(spark, project, generation)
    raw = read_range(spark, project, start, end, ends).cache()
    log = read_range(spark, project, "earliest", "latest", ends)
    try:
        done = Filled(raw.count(), {}, {})
        for flow in backfill_run.flows:
            lacking, rows = backfill_run.lacking(flow, raw, log)
            count = lacking.cache().count()
            done.added[flow.name] = count
            if flow.until:
                done.kept[flow.name] = rows.count() - count
            if count and not dry_run:
                backfill_run.add(flow, lacking)
        return done
    finally:
        spark.catalog.clearCache()


def _key(flow: Flow, rows: DataFrame, told_apart: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns that identify rows; refuse a flow whose rows would be duplicated or partial."""
    places = [place for place in _PLACES if set(place) <= set(rows.columns)]
    key = flow.key or told_apart or (places[0] if places else ())
    without = "backfill=False excludes the table, and `braid pipeline replay --from TIME` rebuilds it"
    if not flow.until and _sums_up(rows):
        raise refusal(
            f"backfill: a row of {flow.name} aggregates several records: declare "
            f'@layer.table("{flow.name}", key=[…], until="…"), '
            f"its grouping columns and the time after which it no longer changes; "
            f"{without}"
        )
    if not key:
        raise refusal(
            f"backfill: rows of {flow.name} carry neither the position of their record ({', '.join(records.PLACE)}, "
            f'with or without _ in front) nor an identity: declare @layer.table("{flow.name}", key=[…]); {without}'
        )
    if lacking := [name for name in key if name not in rows.columns]:
        raise refusal(
            f"backfill: rows of {flow.name} are identified by {', '.join(key)}, but have no column {lacking[0]}: keep it, or "
            f'declare @layer.table("{flow.name}", key=[…]) with columns that they have'
        )
    return key


def _sums_up(rows: DataFrame) -> bool:
    with redirect_stdout(io.StringIO()) as said:  # every Spark client prints the plan
        rows.explain(extended=True)
    analysed = _ANALYSED.search(said.getvalue())
    assert analysed is not None
    return _SUMMED.search(analysed[1]) is not None


def _joined(rows: DataFrame, others: DataFrame, key: tuple[str, ...], how: str) -> DataFrame:
    """Join by null-safe equality: null is a valid value of a group or a key."""
    renamed = others.select(*[f.col(name).alias(f"_other_{name}") for name in key])
    same = [f.col(name).eqNullSafe(f.col(f"_other_{name}")) for name in key]
    return rows.join(renamed, reduce(and_, same), how)
