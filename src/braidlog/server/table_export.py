"""Topics that are tables: closed segments go to a worker process, which makes rows of them.

Knows: when it is looked, which partitions are this node's to turn, what to do when it fails. Refuses to know: Parquet, Iceberg
(`tables/`), which segments are ready (`partition/maintenance/table_export.py`).
Invariants: nothing here is kept: what is turned is what the table says. A table that cannot be written keeps its topic's records
from going by age, says why, and disturbs no other: there are two processes; of the topics that have used up their time before one
at most is in them, and when both have been with their topics for long, one gives way. A topic with much to turn takes turns with
the others. A node without such topics looks at their settings, and no more.
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
"""Of segments in one commit, unless one is larger."""
TYPED_BYTES_MAX: Final = TURN_BYTES_MAX // 4
"""The same where each value is decoded by its schema: a turn has a time limit."""
_WITH_SCHEMAS: Final = (TableForm.AVRO, TableForm.PROTOBUF)
REFRESH_MS: Final = 60_000
"""A table is looked at so often though there is nothing to turn: others may have turned, rows may be old."""
AGAIN_MS: Final = 10_000
"""After a failure; after one that took longer, so long as it took."""
LATE_MS: Final = 5_000
"""When the topic of the first process has taken so long, the second looks after others; and after so long a topic that has more
to turn waits until the others have had their turn."""
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
    """What a worker is at."""

    topic_id: str
    since_ms: int


class Tables:
    """One for a node: `step` in a task for each worker, `watch` beside them."""

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
        """By topic id: when the table is looked at though nothing is to be turned, or after a failure."""
        self._yield_ms = int(settings.yield_seconds * 1000)
        self._under_way: dict[int, _UnderWay] = {}
        """By worker."""
        self._hung: set[str] = set()
        """Topics whose last turn took too long."""

    async def step(self, number: int) -> None:
        """Look at every topic, with one of the workers, until none has more. All but the first only help when those before are
        late."""
        has_more = True
        while has_more:
            has_more = await self._round(number)

    async def _round(self, number: int) -> bool:
        """Look at every topic once; whether one has more to turn."""
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
        """If every worker has been with its topic for too long while another topic waits, the first of them gives way."""
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
        """Turn what is ready, a commit at a time, for a while; whether there is more."""
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
            # After the parts: what wrote their values was registered before it did, so that all of it is seen.
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
        """What can be turned of the partitions that this node leads, in one commit; whether there is more."""
        found: list[Part] = []
        size, has_more = 0, False
        most = TYPED_BYTES_MAX if topic.settings.table in _WITH_SCHEMAS else TURN_BYTES_MAX
        for hosted in self._led(topic):
            turned, now_ms = state.offsets.get(hosted.number, 0), self._runtime.now_ms()
            if (opened := hosted.open_log) is not None:
                opened.turned_offset = turned  # one that was opened since does not know
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
        """Records, and by the mean size of their partition's the bytes."""
        lag, lag_bytes = 0, 0.0
        for each in self._led(topic):
            behind = max(each.high_watermark - max(state.offsets.get(each.number, 0), each.start_offset), 0)
            lag += behind
            lag_bytes += behind * each.size_bytes / max(each.end_offset - each.start_offset, 1)
        return lag, int(lag_bytes)
