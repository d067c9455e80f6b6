"""Spark's interface: the readers that it makes, pickles, calls.

Knows: which of Spark's calls means what (and which never come). Refuses to know: how anything is done.
Invariants: a reader is small and holds no connection until the driver asks it something: Spark pickles it to every task. No
`pushFilters`: Spark 4.3 keeps one plan for each `load()`, and a filter that was pushed stays in it for the next action.
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

from braidlog.client.errors import ClientError
from braidlog.spark.source.bounds import ends, find_places, starts
from braidlog.spark.source.chunks import read_chunks
from braidlog.spark.source.columns import check_schema, record_batches
from braidlog.spark.source.logs import Log, open_log
from braidlog.spark.source.losses import Losses, plan
from braidlog.spark.source.options import Query
from braidlog.spark.source.planning import Cuts, Range, split
from braidlog.spark.source.positions import Offsets, Place, from_json, to_json
from braidlog.spark.source.triggers import Triggers, warn_once


class TopicRows:
    """What batches and streams do alike on an executor: a task is a partition whose value is its `Range`."""

    def __init__(self, query: Query, schema: StructType) -> None:
        check_schema(query, schema)
        self._query = query
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is not None:  # a batch without a partition is given an empty one
            yield from self.rows(partition.value)

    def rows(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        return record_batches(self._query, self._schema, wanted, read_chunks(self._query, wanted))


class TopicReader(TopicRows, DataSourceReader):
    """A batch. Its offsets are fixed when it is planned, once for each `load()`."""

    def partitions(self) -> Sequence[InputPartition]:
        log = open_log(self._query.servers, self._query.path, committed_only=self._query.committed_only)
        try:
            places = find_places(log, self._query.selection)
            begin = starts(log, self._query.start, places, self._query.starting_offsets_by_timestamp_strategy)
            ranges, lost = plan(log, begin, ends(log, self._query.end, places))
            Losses(self._query).handle(lost)
            return _tasks(ranges, self._query.cuts, log.bytes_each)
        finally:
            log.close()


class TopicStreamReader(TopicRows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. On the driver it lives as long as the query; `stop` is never called, so that nothing waits for it."""

    def __init__(self, query: Query, schema: StructType) -> None:
        super().__init__(query, schema)
        self._state: tuple[Log, Triggers, Losses] | None = None
        self._committed: Offsets = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state": None}

    def _driver(self) -> tuple[Log, Triggers, Losses]:
        if self._state is None:
            log = open_log(self._query.servers, self._query.path, committed_only=self._query.committed_only)
            losses = Losses(self._query)
            self._state = log, Triggers(log, self._query, losses), losses
        return self._state

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return to_json(self._driver()[1].initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Spark knows no two limits at once: this says that there are some, and `latestOffset` keeps all of them."""
        if self._query.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._query.max_offsets_per_trigger)
        if self._query.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._query.max_bytes_per_trigger)
        if self._query.min_offsets_per_trigger is not None:
            return ReadMinRows(self._query.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        begin = from_json(start)
        self._commit(begin)  # everything before it is processed and logged, also when `commit` never comes
        found = self._driver()[1].latest(begin, unlimited=isinstance(limit, ReadAllAvailable))
        return to_json(found)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        seen = self._driver()[1].seen
        return None if seen is None else to_json(seen)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._driver()[1].freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        log, triggers, losses = self._driver()
        ranges, lost = plan(log, from_json(start), from_json(end))
        losses.handle(lost)
        return _tasks(ranges, self._query.cuts, triggers.bytes_each)

    def commit(self, end: dict[str, Any]) -> None:
        self._commit(from_json(end))

    def _commit(self, done: Offsets) -> None:
        """Progress for people to see: the checkpoint is what counts, and a group that cannot be reached stops no query."""
        group = self._query.group_id
        new = {place: at for place, at in done.items() if self._committed.get(place) != at}
        if group is None or not new:
            return
        try:
            self._driver()[0].commit(group, new)
        except ClientError as error:
            warn_once(f"progress cannot be committed to group {group}: {error}")
            return
        self._committed |= new

    def stop(self) -> None:
        if self._state is not None:
            self._state[0].close()
            self._state = None


def _tasks(ranges: Sequence[Range], cuts: Cuts, bytes_each: Callable[[Place, int, int], float]) -> list[InputPartition]:
    sized = [replace(each, bytes_each=bytes_each(each.place, each.start, each.end)) for each in ranges]
    return [InputPartition(each) for each in split(sized, cuts)]
