"""Spark's interface: the readers that Spark creates, pickles and calls.

A reader is small and holds no connection until the driver calls it: Spark pickles it to every task. There is no
`pushFilters`: Spark 4.3 keeps one plan for each `load()`, and a pushed filter would stay in it for the next action.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from braidlog.spark.short_errors import short_errors, short_errors_of_rows
from braidlog.spark.source.chunks import read_chunks
from braidlog.spark.source.columns import bareness, check_schema, record_batches
from braidlog.spark.source.logs import Log, open_log
from braidlog.spark.source.losses import Losses, plan, plan_batch
from braidlog.spark.source.options import Query
from braidlog.spark.source.planning import Cuts, Range, split
from braidlog.spark.source.positions import Offsets, Place, from_json, identities_of, same_topics, to_json
from braidlog.spark.source.progress import Group
from braidlog.spark.source.schemas import find_reading
from braidlog.spark.source.triggers import Triggers
from braidlog.spark.worker_memory import freeze_imports, keep_memory

BARE_TASK_TIMES = 4
"""A task without values does less work per byte of the log, and has the same start-up cost."""
ONE_WAVE_TIMES = 4
"""A further factor if it is known that no more tasks could run concurrently."""


class TopicRows:
    """What batches and streams do on executors: a task is an input partition whose value is its `Range`."""

    def __init__(self, query: Query, schema: StructType) -> None:
        reading = find_reading(query)
        check_schema(query, schema, reading)
        self._query = query
        self._schema = schema
        self._reading = reading
        self._bare = bareness(query, schema)
        self.cuts = query.cuts
        if self._bare and "targetPartitionBytes" not in query.chosen.given:
            target = query.cuts.target_bytes * BARE_TASK_TIMES
            self.cuts = replace(
                query.cuts, target_bytes=target, at_a_time=query.parallel_tasks, bytes_max=target * ONE_WAVE_TIMES
            )

    @short_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        keep_memory()
        if partition.value is not None:  # a batch without partitions has one empty task
            yield from self.rows(partition.value)
        freeze_imports()

    def rows(self, span: Range) -> Iterator[pa.RecordBatch]:
        chunks = read_chunks(self._query, span, self._bare)
        return record_batches(self._query, self._schema, span, chunks, self._reading)


class TopicReader(TopicRows, DataSourceReader):
    """A batch. Its offsets are fixed when it is planned, once for each `load()`."""

    @short_errors
    def partitions(self) -> Sequence[InputPartition]:
        log = open_log(self._query.servers, self._query.path, committed_only=self._query.committed_only)
        try:
            ranges, lost = plan_batch(log, self._query)
            Losses(self._query).handle(lost)
            return _tasks(ranges, self.cuts, log.bytes_each)
        finally:
            log.close()
            freeze_imports()


class TopicStreamReader(TopicRows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. On the driver it lives as long as the query; Spark never calls `stop`, so nothing depends on it."""

    def __init__(self, query: Query, schema: StructType) -> None:
        super().__init__(query, schema)
        self._state: tuple[Log, Triggers, Losses] | None = None
        self._group: Group | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state": None, "_group": None}

    def _driver(self) -> tuple[Log, Triggers, Losses]:
        if self._state is None:
            log = open_log(self._query.servers, self._query.path, committed_only=self._query.committed_only)
            losses = Losses(self._query)
            self._state = log, Triggers(log, self._query, losses), losses
        return self._state

    @short_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        log, triggers, _ = self._driver()
        return to_json(triggers.initial(), log.identities)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit that only signals that there are limits, because Spark supports one: `latestOffset` applies
        all of them."""
        if self._query.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._query.max_offsets_per_trigger)
        if self._query.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._query.max_bytes_per_trigger)
        if self._query.min_offsets_per_trigger is not None:
            return ReadMinRows(self._query.min_offsets_per_trigger)
        return ReadAllAvailable()

    @short_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        begin = from_json(start)
        self._commit(begin)  # everything before it is processed and logged, even if Spark never calls `commit`
        log, triggers, _ = self._driver()
        known = identities_of(start)
        ends = triggers.latest(begin, unlimited=isinstance(limit, ReadAllAvailable), identities=known)
        return to_json(ends, known | log.identities)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        log, triggers, _ = self._driver()
        return None if triggers.seen is None else to_json(triggers.seen, log.identities)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._driver()[1].freeze()

    @short_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        log, triggers, losses = self._driver()
        identities = identities_of(end)
        begin = same_topics(from_json(start), identities_of(start), identities)
        ranges, lost = plan(log, begin, from_json(end), identities)
        losses.handle(lost)
        return _tasks(ranges, self.cuts, triggers.bytes_each)

    def commit(self, end: dict[str, Any]) -> None:
        self._commit(from_json(end))

    def _commit(self, done: Offsets) -> None:
        if self._query.group_id is not None:
            self._group = self._group or Group(self._driver()[0], self._query.group_id)
            self._group.commit(done)

    def stop(self) -> None:
        if self._state is not None:
            self._state[0].close()
            self._state = None


def _tasks(ranges: Sequence[Range], cuts: Cuts, bytes_each: Callable[[Place, int, int], float]) -> list[InputPartition]:
    sized = [replace(each, bytes_each=bytes_each(each.place, each.start, each.end)) for each in ranges]
    return [InputPartition(each) for each in split(sized, cuts)]
