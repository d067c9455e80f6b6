"""Exports topics as tables: sends closed segments of led partitions to worker processes, which write rows.

Invariants: the exported offsets are stored in the table only. A table that cannot be written blocks the retention of
its topic's records, reports its error, and delays no other table: there are two processes, at most one of them works on
a topic that timed out before, and when both are late, one is interrupted. Topics with many segments alternate with
others. Does not handle: Parquet and Iceberg (`tables/`), the choice of segments
(`partition/maintenance/table_export.py`).
"""

import logging
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from braidlog.broker.schemas.schema_log import Entry, SchemaReader
from braidlog.broker.schemas.schema_view import SchemaView
from braidlog.cluster.metadata.topic_state import Topic
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.reporting.node_report import TableState
from braidlog.model.runtime.cooperative import YieldCounter
from braidlog.model.runtime.runtime import Runtime
from braidlog.model.settings import TableForm
from braidlog.partition.hosted_log import Role
from braidlog.partition.maintenance.table_export import may_export, plan_part
from braidlog.partition.partition import Partition
from braidlog.partition.partition_registry import PartitionRegistry, is_hidden
from braidlog.registry.framing import subject_of
from braidlog.registry.registry_state import State
from braidlog.server.process.worker_process import WorkerProcess
from braidlog.tables.plan import Part, Plan, TablePlace, Turned
from braidlog.worker.jobs import IDLE, LOW, TurnSegments, Worker

log = logging.getLogger("braidlog.tables")

NAMESPACE: Final = "topics"
TURN_BYTES_MAX: Final = 256 * 1024 * 1024
"""Maximum bytes of segments in one commit, unless a single segment is larger."""
TYPED_BYTES_MAX: Final = TURN_BYTES_MAX // 4
"""The same where each value is decoded by its schema: a commit has a time limit."""
_WITH_SCHEMAS: Final = (TableForm.AVRO, TableForm.PROTOBUF)
REFRESH_MS: Final = 60_000
"""Interval of a table's refresh without new segments: other nodes may have exported, rows may have expired."""
AGAIN_MS: Final = 10_000
"""Minimum delay after a failure; after a longer failure, as long as that took."""
LATE_MS: Final = 5_000
"""After this time with one topic, the second process serves other topics, and the topic itself waits for its next turn.
"""
PRIORITIES: Final = {"low": LOW, "idle": IDLE}
_decode = msgspec.msgpack.Decoder(Turned).decode


class TablesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Export of topics as Iceberg tables: where the tables are, and how long a commit may take."""

    warehouse: str = ""
    """Folder or URI (file:///srv/tables) of the tables; empty: `tables` in the data folder. All nodes of a cluster need
    the same one."""
    catalog: dict[str, str] = {}
    """Properties of an Iceberg catalog, as in pyiceberg (type, uri); empty: catalog.db in the warehouse."""
    namespace: str = NAMESPACE
    """Iceberg namespace of the tables."""
    check_seconds: float = 5.0
    """Interval of the search for closed segments to export."""
    job_seconds_max: float = 600.0
    """Maximum time of a commit; a longer one, whose catalog or object store does not answer, fails and is retried."""
    yield_seconds: float = 60.0
    """Time after which a commit may be interrupted and retried, if all processes are as late and other topics wait."""

    priority: Literal["low", "idle"] = "low"
    """CPU priority of the export processes: low, below the node; idle, only on an idle CPU: a busy machine lags."""

    def __post_init__(self) -> None:
        if not 1 <= self.yield_seconds <= 86400:
            raise ValueError(f"yield_seconds must be 1 to 86400, not {self.yield_seconds}")
        if not 1 <= self.job_seconds_max <= 86400:
            raise ValueError(f"job_seconds_max must be 1 to 86400, not {self.job_seconds_max}")
        if not 0.01 <= self.check_seconds <= 3600:
            raise ValueError(f"check_seconds must be 0.01 to 3600, not {self.check_seconds}")

    def place(self, data_dir: str, *, is_alone: bool) -> TablePlace | None:
        """Return the place of the tables; None for a cluster without `warehouse`."""
        if not self.warehouse and not is_alone:
            return None
        return TablePlace(self.warehouse or f"{data_dir}/tables", self.catalog, self.namespace)


class _UnderWay(NamedTuple):
    """The topic that a worker exports, and since when."""

    topic_id: str
    since_ms: int


class Tables:
    """Exports the node's tables: call `step` in a task per worker, and `watch` regularly."""

    def __init__(
        self,
        hosting: PartitionRegistry,
        runtime: Runtime,
        workers: Sequence[WorkerProcess],
        place: TablePlace | None,
        schemas: SchemaReader,
        settings: TablesSettings,
    ) -> None:
        self._hosting = hosting
        self._runtime = runtime
        self._workers = workers
        self._place = place
        self._schemas = SchemaView(schemas, runtime, State)
        self._due_ms: dict[str, int] = {}
        """Time of the next refresh, or of the next attempt after a failure, by topic id."""
        self._yield_ms = int(settings.yield_seconds * 1000)
        self._under_way: dict[int, _UnderWay] = {}
        """By worker."""
        self._hung: set[str] = set()
        """Topics whose last commit took too long."""

    async def step(self, number: int) -> None:
        """Export all topics with one worker until none has more. Workers after the first run only if earlier ones are
        late."""
        has_more = True
        while has_more:
            has_more = await self._round(number)

    async def _round(self, number: int) -> bool:
        """Export every topic once; return whether one has more segments."""
        pace, has_more = YieldCounter(), False
        for topic in list(self._hosting.topics.values()):
            await pace.step()
            if topic.settings.table is TableForm.OFF or is_hidden(topic.name):
                continue
            if not self._is_needed(number):
                return False
            if self._may_begin(topic.topic_id):
                self._under_way[number] = _UnderWay(topic.topic_id, self._runtime.now_ms())
                try:
                    has_more |= await self._keep(topic, self._workers[number])
                finally:
                    del self._under_way[number]
        self._forget_others()
        return has_more

    async def watch(self) -> None:
        """Interrupt the longest running worker if all workers are late and another topic waits."""
        before_ms = self._runtime.now_ms() - self._yield_ms
        late = {number: each for number, each in self._under_way.items() if each.since_ms <= before_ms}
        self._hung |= {each.topic_id for each in late.values()}
        if len(late) < len(self._workers):
            return
        under_way = {each.topic_id for each in late.values()}
        if any(
            topic.settings.table is not TableForm.OFF
            and not is_hidden(topic.name)
            and topic.topic_id not in under_way | self._hung
            for topic in self._hosting.topics.values()
        ):
            number = min(late, key=lambda each: late[each].since_ms)
            why = f"not done within {self._yield_ms / 1000:g} s, and others wait (tables.yield_seconds)"
            self._workers[number].interrupt(why)

    def _forget_others(self) -> None:
        there = {each.topic_id for each in self._hosting.topics.values() if each.settings.table is not TableForm.OFF}
        for gone in self._hosting.tables.keys() - there:
            del self._hosting.tables[gone]
            self._due_ms.pop(gone, None)
            self._hung.discard(gone)

    def _is_needed(self, number: int) -> bool:
        before_ms = self._runtime.now_ms() - LATE_MS
        busy = [self._under_way.get(each) for each in range(number)]
        return all(each is not None and each.since_ms < before_ms for each in busy)

    def _may_begin(self, topic_id: str) -> bool:
        under_way = {each.topic_id for each in self._under_way.values()}
        if topic_id in under_way:
            return False
        return topic_id not in self._hung or not self._hung & under_way

    async def _keep(self, topic: Topic, worker: Worker) -> bool:
        """Export a topic's segments commit by commit for at most `LATE_MS`; return whether there are more."""
        state = self._hosting.tables.get(topic.topic_id) or TableState(topic.name, topic.settings.table)
        if state.error and self._runtime.now_ms() < self._due_ms.get(topic.topic_id, 0):
            return False
        self._hosting.tables[topic.topic_id] = state
        has_more, until_ms = True, self._runtime.now_ms() + LATE_MS
        while has_more and self._hosting.find(topic.name) is topic:
            if self._runtime.now_ms() > until_ms:
                return True
            began_ms = self._runtime.now_ms()
            try:
                state, has_more = await self._turn(topic, state, worker)
                self._hung.discard(topic.topic_id)
            except (BrokerError, StorageFault, ValueError) as error:
                if str(error) != state.error:
                    log.warning("topic %r: %s", topic.name, error)
                if isinstance(error, BrokerError) and error.reason is Reason.TIMED_OUT:
                    self._hung.add(topic.topic_id)
                state, has_more = msgspec.structs.replace(state, error=str(error)), False
                now_ms = self._runtime.now_ms()
                self._due_ms[topic.topic_id] = now_ms + max(AGAIN_MS, now_ms - began_ms)
            lag, lag_bytes = self._lag(topic, state)
            self._hosting.tables[topic.topic_id] = msgspec.structs.replace(state, lag=lag, lag_bytes=lag_bytes)
        return False

    async def _turn(self, topic: Topic, state: TableState, worker: Worker) -> tuple[TableState, bool]:
        if self._place is None:
            raise BrokerError(
                Reason.INVALID_SETTING,
                "where tables of a cluster are is not said: set tables.warehouse and tables.catalog, the same on all nodes",
            )
        now_ms = self._runtime.now_ms()
        is_known = bool(state.metadata)
        parts, has_more = await self._parts(topic, state) if is_known else ([], True)
        if not parts and is_known and now_ms < self._due_ms.get(topic.topic_id, 0):
            return state, False
        plan = Plan(
            self._place,
            topic.name,
            topic.topic_id,
            topic.settings.table,
            parts,
            now_ms,
            topic.settings.table_retention_ms,
            # Read after the parts: schemas are registered before values use them, so none is missed.
            await self._schemas_of(topic) if parts else [],
        )
        with await worker.do(TurnSegments(), msgspec.msgpack.encode(plan)) as answer:
            turned = _decode(answer.payload)
        self._due_ms[topic.topic_id] = self._runtime.now_ms() + REFRESH_MS
        for hosted in self._hosting.opened(topic.name):
            if (opened := hosted.open_log) is not None:
                opened.turned_offset = turned.offsets.get(hosted.number, 0)
        unread = ", ".join(f"{topic.name}/{number}" for number in turned.unread)
        error = f"{unread} cannot be read as it was written; see `braid log verify`" if unread else ""
        found = TableState(
            topic.name,
            topic.settings.table,
            turned.offsets,
            turned.rows,
            turned.bytes,
            turned.files,
            turned.metadata,
            turned.committed_ms,
            undecoded=turned.undecoded,
            error=error,
        )
        return found, has_more and not turned.missed and not turned.unread

    async def _schemas_of(self, topic: Topic) -> list[Entry]:
        if topic.settings.table not in _WITH_SCHEMAS:
            return []
        return (await self._schemas.learn()).subject_state(subject_of(topic.name))

    async def _parts(self, topic: Topic, state: TableState) -> tuple[list[Part], bool]:
        """Return the segments of led partitions for one commit, and whether there are more."""
        found: list[Part] = []
        size, has_more = 0, False
        most = TYPED_BYTES_MAX if topic.settings.table in _WITH_SCHEMAS else TURN_BYTES_MAX
        for hosted in self._led(topic):
            turned, now_ms = state.offsets.get(hosted.number, 0), self._runtime.now_ms()
            if (opened := hosted.open_log) is not None:
                opened.turned_offset = turned  # a log opened since does not have it
            if not may_export(hosted, topic.settings, turned, now_ms):
                continue
            if size >= most:
                return found, True
            room = most - size

            def plan(
                hosted: Partition = hosted, turned: int = turned, room: int = room, now_ms: int = now_ms
            ) -> tuple[Part, bool]:
                return plan_part(hosted, turned, room, now_ms)

            part, more = await self._runtime.blocking(plan)
            has_more = has_more or more
            if part.sources:
                found.append(part)
                size += sum(source.size_bytes for source in part.sources)
        return found, has_more

    def _led(self, topic: Topic) -> list[Partition]:
        return [each for each in self._hosting.opened(topic.name) if each.role is Role.LEADER and not each.is_gone]

    def _lag(self, topic: Topic, state: TableState) -> tuple[int, int]:
        """Return the records not exported yet, and their bytes, estimated by the partition's mean record size."""
        lag, lag_bytes = 0, 0.0
        for each in self._led(topic):
            behind = max(each.high_watermark - max(state.offsets.get(each.number, 0), each.start_offset), 0)
            lag += behind
            lag_bytes += behind * each.size_bytes / max(each.end_offset - each.start_offset, 1)
        return lag, int(lag_bytes)
