"""Backfill of a declarative pipeline: a range of the log is put into the tables of its flows, in batch, beside their checkpoints.

Knows: flows as functions of batches, and the columns by which rows are known again. Refuses to know: Spark's graph, which has no
flow with an end; topics: whoever reads one is not told old news.
Invariants: a row whose key a table has is not added again, and each table changes in one commit, so that whoever is killed begins
again; what a flow has not read yet is left to it; a row that sums up several records is made of all that the log has of them, is
added only if the flow will not write it any more, and stays as it is where it is there.
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
"""The columns by which a row tells which record it comes from."""
_SUMMED: Final = re.compile(r"(?:Aggregate \[|FlatMapGroups|FlatMapCoGroups|TransformWithState)")
"""Nodes of Spark's analysed plan that make a row of several; that of `dropDuplicates` is none of them."""
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
        # Of all flows, before the first is written: what one does not say is refused before anything has changed.
        self.keys = {flow.name: _key(flow, *self._declared.known_rows(flow.name, empty)) for flow in self.flows}

    def _filled(self) -> list[Flow]:
        found = self._declared.flows.values()
        flows = [flow for flow in found if isinstance(flow.writes, ToTable) and flow.backfill]
        for flow in flows:
            if self._position(flow).batch < 0:
                raise refusal(f"{flow.name}: {NOT_RUN}")
        return flows

    def lacking(self, flow: Flow, raw: DataFrame, log: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Rows of the range that the flow's table lacks; and all of the range, those among them that it has."""
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
        # The stream's name in the table is not the backfill's: it has no batches to count.
        own = {name: value for name, value in flow.options.items() if name.lower() != "sinkid"}
        tables.append(rows, self._project, flow.name, own)

    def _rows(self, flow: Flow, raw: DataFrame) -> DataFrame:
        """What a flow makes of the records that it has behind it."""
        read = raw.where(was_read(self._project, flow.name, self._generation))
        return self._declared.rows(flow.name, records.as_it_came(read))

    def _position(self, flow: Flow) -> Position:
        return position(self._project.checkpoint(flow.name, self._generation.of(flow.name)))


def backfill(
    spark: SparkSession, project: Project, generation: Generation, start: str, end: str, ends: Offsets, *, dry_run: bool
) -> Filled:
    """Put the records of [start, end) into the tables of all flows, as far as they are not there."""
    found = Backfill(spark, project, generation)
    raw = read_range(spark, project, start, end, ends).cache()
    log = read_range(spark, project, "earliest", "latest", ends)
    try:
        done = Filled(raw.count(), {}, {})
        for flow in found.flows:
            lacking, rows = found.lacking(flow, raw, log)
            count = lacking.cache().count()
            done.added[flow.name] = count
            if flow.until:
                done.kept[flow.name] = rows.count() - count
            if count and not dry_run:
                found.add(flow, lacking)
        return done
    finally:
        spark.catalog.clearCache()


def _key(flow: Flow, rows: DataFrame, told_apart: tuple[str, ...]) -> tuple[str, ...]:
    """By what rows are known again; refused where they would come twice, or in parts."""
    places = [place for place in _PLACES if set(place) <= set(rows.columns)]
    key = flow.key or told_apart or (places[0] if places else ())
    without = "backfill=False leaves the table out, and `braid pipeline replay --from TIME` makes it anew"
    if not flow.until and _sums_up(rows):
        raise refusal(
            f"backfill: a row of {flow.name} sums up several records: declare "
            f'@layer.table("{flow.name}", key=[…], until="…"), by what it is grouped and from when on it does not change; '
            f"{without}"
        )
    if not key:
        raise refusal(
            f"backfill: rows of {flow.name} tell neither their record ({', '.join(records.PLACE)}, with or without _ before "
            f'each) nor what makes one the same as another: declare @layer.table("{flow.name}", key=[…]); {without}'
        )
    if lacking := [name for name in key if name not in rows.columns]:
        raise refusal(
            f"backfill: rows of {flow.name} are told apart by {', '.join(key)}, and have no column {lacking[0]}: keep it, or "
            f'declare @layer.table("{flow.name}", key=[…]) with columns that they have'
        )
    return key


def _sums_up(rows: DataFrame) -> bool:
    with redirect_stdout(io.StringIO()) as said:  # what all of Spark's clients tell
        rows.explain(extended=True)
    analysed = _ANALYSED.search(said.getvalue())
    assert analysed is not None
    return _SUMMED.search(analysed[1]) is not None


def _joined(rows: DataFrame, others: DataFrame, key: tuple[str, ...], how: str) -> DataFrame:
    """By null-safe equality: null is a value of a group, and of a key that is known again."""
    renamed = others.select(*[f.col(name).alias(f"_other_{name}") for name in key])
    same = [f.col(name).eqNullSafe(f.col(f"_other_{name}")) for name in key]
    return rows.join(renamed, reduce(and_, same), how)
