"""`topic(spark, "flights")`: selects a part of a topic by partition, offset and time before anything is read.

Every selection becomes an option of the format `braidlog`, so that it works in every session: local, on a cluster,
behind Spark Connect. Does not handle: servers. `where` limits what is fetched, and `columns` what is decoded. Spark
does not pass filters to a Python source, so that `frame().where(…)` reads everything first.
"""

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec

from braidlog.spark.cold import COLUMNS, Cold, cold_frame, cold_part
from braidlog.spark.options import OptionError
from braidlog.spark.source.logs import open_log
from braidlog.spark.source.losses import plan_batch
from braidlog.spark.source.options import Query
from braidlog.wire.kafka import DIALECT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "braidlog"
LOCAL = f"127.0.0.1:{DIALECT.port}"

Time = dt.datetime | int | str
"""A time: a `datetime` (UTC without a time zone), milliseconds since 1970, or ISO 8601 text."""
_OWN = "__"
"""The prefix of the node's internal topics."""
_WITH_TABLE = ("servers", "fromOffset", "toOffset", "includeHeaders", "onDataLoss", "failOnDataLoss")
"""Options with the same meaning for the log and for files of the table."""
_OFFSETS = ("fromOffset", "toOffset")
_FAR = 2**63 - 1
_NO_NAME = re.compile(r"[^A-Za-z0-9_]+")


class Topic(msgspec.Struct, frozen=True):
    """Part of a topic; every method returns another part, and nothing is read before `frame`, `stream` or `count`."""

    spark: Any
    name: str
    options: dict[str, str]
    partitions: frozenset[int] | None = None
    names: tuple[str, ...] = ()
    has_table: bool = False

    def where(
        self,
        *,
        partition: int | Iterable[int] | None = None,
        offset: int | tuple[int | None, int | None] | None = None,
        time: tuple[Time | None, Time | None] | None = None,
    ) -> "Topic":
        """Select partitions, offsets [a, b) of each, and times: from the first record at or after t1 up to the first
        at or after t2. None is no bound; earlier selections still apply."""
        chosen = self.partitions
        if partition is not None:
            chosen_partitions = frozenset([partition] if isinstance(partition, int) else partition)
            chosen = chosen_partitions if chosen is None else chosen & chosen_partitions
        options = dict(self.options)
        if offset is not None:
            first, end = (offset, offset + 1) if isinstance(offset, int) else offset
            _bound(options, "fromOffset", first, max)
            _bound(options, "toOffset", end, min)
        if time is not None:
            first, end = (None if each is None else _ms(each) for each in time)
            _bound(options, "startingTimestamp", first, max)
            _bound(options, "endingTimestamp", end, min)
            options["startingOffsetsByTimestampStrategy"] = "latest"
        return msgspec.structs.replace(self, options=options, partitions=chosen)

    def columns(self, *names: str) -> "Topic":
        """Select these columns, in this order."""
        return msgspec.structs.replace(self, names=names)

    def with_table(self) -> "Topic":
        """Read the rows of a topic with a table (`braidlog.table`) from the table's files by Spark's own Parquet
        scan, with column pruning and filters, and only newer records from the server. Includes records that the log
        has deleted. For frames only; the driver and all executors must reach the files, and the driver needs
        pyiceberg."""
        return msgspec.structs.replace(self, has_table=True)

    def frame(self) -> "DataFrame":
        """Return a frame of the topic's current records: it is planned once, and later records are in later frames."""
        return self._with_cold_part() if self.has_table else self._load(self.spark.read)

    def _with_cold_part(self) -> "DataFrame":
        """Return the table's rows, then the log's newer records, without duplicates."""
        if odd := [name for name in self.options if name not in _WITH_TABLE]:
            raise OptionError(
                odd[0], self.options[odd[0]], "it cannot be used with the topic's table: filter the frame's columns"
            )
        query = Query({**self.options, "subscribe": self.name}, streaming=None)
        assert query.servers is not None, "the options refuse a path here"
        if not query.committed_only:
            raise OptionError("isolation", "read_uncommitted", "a table has committed records only")
        names = self.names or tuple(name for name in COLUMNS if name != "headers" or query.include_headers)
        if strange := [name for name in names if name not in COLUMNS]:
            raise OptionError("columns", strange[0], f"the columns are {', '.join(COLUMNS)}")
        cold, starts, ends = self._seam(query.servers)
        said = {"startingOffsets": starts, "endingOffsets": ends}
        options = {name: value for name, value in self.options.items() if name not in _OFFSETS} | {
            name: msgspec.json.encode({self.name: at}).decode() for name, at in said.items()
        }
        tail = msgspec.structs.replace(self, options=options, names=names, has_table=False).frame()
        if not cold.files:
            return tail
        rows = cold_frame(self.spark, cold, self.name)
        if self.partitions is not None:
            rows = rows.where(rows["partition"].isin(sorted(self.partitions)))
        if "fromOffset" in self.options:
            rows = rows.where(rows["offset"] >= int(self.options["fromOffset"]))
        if "toOffset" in self.options:
            rows = rows.where(rows["offset"] < int(self.options["toOffset"]))
        return rows.select(*names).union(tail)

    def _seam(self, servers: str) -> tuple[Cold, dict[str, int], dict[str, int]]:
        """Return one state of the table, and the start and end of the log range to read after it.

        The order of requests makes it exact. The log's start is requested first: missing records below it are in the
        table, or were deleted before they could be exported. Then the table: records deleted after that are reported
        as lost by the reader, not skipped. The log's end is requested last, so that it is not before the table's end.
        """
        with closing(open_log(servers, None, committed_only=True)) as log:
            count = log.topics([self.name]).get(self.name, 0)
            places = [(self.name, n) for n in (range(count) if self.partitions is None else sorted(self.partitions))]
            first = log.earliest(places)
            cold = cold_part(servers, self.name)
            latest = log.latest(places)
            log.topics([self.name])
            is_same = cold.topic_id in (None, log.identities.get(self.name))
        begins = {place: max(cold.ends.get(place[1], 0), first[place]) for place in places}
        if not is_same or any(begins[place] > latest[place] for place in places):
            raise OptionError("table", self.name, "the topic was deleted or truncated during planning: try again")
        low, high = int(self.options.get("fromOffset", 0)), int(self.options.get("toOffset", _FAR))
        ends = {place: max(begin, min(latest[place], high)) for place, begin in begins.items()}
        starts = {place: min(max(begin, low), ends[place]) for place, begin in begins.items()}
        return cold, {str(n): at for (_, n), at in starts.items()}, {str(n): at for (_, n), at in ends.items()}

    def stream(self) -> "DataFrame":
        """Return a stream from the first record on, unless `startingOffsets` is set; bounds are for frames."""
        given = (
            {"startingOffsets": "earliest"} if not {"startingOffsets", "startingTimestamp"} & set(self.options) else {}
        )
        return self._load(self.spark.readStream, given)

    def count(self) -> int:
        """Return the number of records: from the log's metadata if possible, otherwise by reading. Behind Spark
        Connect records are always read, because an address may mean another server there."""
        by_headers = None if self.has_table or self._is_elsewhere else self._count_by_headers()
        return self.columns("offset").frame().count() if by_headers is None else by_headers

    @property
    def _is_elsewhere(self) -> bool:
        return type(self.spark).__module__.startswith("pyspark.sql.connect")

    def _count_by_headers(self) -> int | None:
        query = Query(self._chosen({}), streaming=False)
        with closing(open_log(query.servers, query.path, committed_only=query.committed_only)) as log:
            ranges, lost = plan_batch(log, query)
            return None if lost else log.count(ranges)

    def _chosen(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the options that select records."""
        options = {**self.options, **given}
        if self.partitions is None:
            options["subscribe"] = self.name
        elif self.partitions:
            options["assign"] = msgspec.json.encode({self.name: sorted(self.partitions)}).decode()
        else:
            raise OptionError("assign", None, "no partition is left: an earlier where(partition=…) selected others")
        return options

    def _load(self, reader: Any, given: Mapping[str, str] | None = None) -> "DataFrame":  # noqa: ANN401 - of a frame or a stream
        options = self._chosen(given or {})
        context = None if self._is_elsewhere else self.spark.sparkContext
        if context is not None and context.master.startswith("local"):  # on a cluster the number of executors changes
            options.setdefault("parallelTasks", str(context.defaultParallelism))
        if self.names:
            reader = reader.schema(_schema(options, self.names))
        frame: DataFrame = reader.format(FORMAT).options(**options).load()
        return frame


def topic(spark: "SparkSession", name: str, servers: str = LOCAL, **options: str) -> Topic:
    """Return a topic of a node. `options`: of the format `braidlog`, such as `valueFormat="string"`; `path` for a
    data folder."""
    where = {} if "path" in options else {"servers": servers}
    return Topic(spark, name, {**where, **options})


def tables(spark: "SparkSession", servers: str = LOCAL, pattern: str = ".*", **options: str) -> dict[str, str]:
    """Create a temporary view of each topic for SQL; return the views' names with their topics.

    In a view's name, characters other than letters, digits and underscores become underscores. A view shows the
    records that the topic held when the view was created.
    """
    where = {} if "path" in options else {"servers": servers}
    given = Query({**where, **options, "subscribePattern": pattern}, streaming=None)
    with closing(open_log(given.servers, given.path, committed_only=given.committed_only)) as log:
        topic_names = sorted(
            name for name in log.topics(None) if given.selection.has(name) and not name.startswith(_OWN)
        )
    views: dict[str, str] = {}
    for name in topic_names:
        view = _NO_NAME.sub("_", name)
        if view in views:
            raise OptionError("pattern", pattern, f"topics {views[view]!r} and {name!r} would both become view {view}")
        views[view] = name
    for view, name in views.items():
        topic(spark, name, servers, **options).frame().createOrReplaceTempView(view)
    return views


def _bound(options: dict[str, str], name: str, value: int | None, narrower: Any) -> None:  # noqa: ANN401 - min or max
    if value is not None:
        options[name] = str(narrower(value, int(options.get(name, value))))


def _ms(time: Time) -> int:
    if isinstance(time, int):
        return time
    moment = dt.datetime.fromisoformat(time) if isinstance(time, str) else time
    return int((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp() * 1000)


def _schema(options: Mapping[str, str], names: tuple[str, ...]) -> str:
    from braidlog.spark.source.columns import column_types  # noqa: PLC0415 - Arrow is needed only for reading

    known = column_types(Query(options, streaming=None))
    if strange := [name for name in names if name not in known]:
        raise OptionError("columns", strange[0], f"the columns are {', '.join(known)}")
    return ", ".join(f"`{name}` {known[name]}" for name in names)
