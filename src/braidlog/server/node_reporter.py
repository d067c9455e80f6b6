"""Reports the node's counters and states to its console and to other nodes.

Invariants: a snapshot reads no disk. It is taken at most once per `SNAPSHOT_SECONDS`, in slices that yield to the event
loop. Every list is bounded (`model/reporting/node_report.py`).
"""

import asyncio
import contextlib
import os
import platform
import resource
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from itertools import islice
from typing import Final

import msgspec

from braidlog.broker.cluster_report import cluster_report, events
from braidlog.broker.forwarding import Call
from braidlog.broker.partition_reports import lag_reports, partition_report
from braidlog.broker.services import Services
from braidlog.codec import is_compiled
from braidlog.coordinator.shards import SHARDS
from braidlog.coordinator.state_limits import NODE, StateKind
from braidlog.kv.engine.values import kind_of
from braidlog.model.clock import Clock, DurationHistogram, added
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.reporting import node_report as r
from braidlog.model.reporting.health_checks import check_room, health_checks
from braidlog.model.runtime.cooperative import YieldCounter, in_slices
from braidlog.partition.maintenance.scrubber import Scrubber
from braidlog.security.authorization import roles_of
from braidlog.server.config import LoadedConfig
from braidlog.server.net.connection_limits import ConnectionLimits
from braidlog.server.net.listener import Listener
from braidlog.server.net.memory_budget import Budget
from braidlog.server.net.session import Session
from braidlog.server.net.session_owner import SAMPLED
from braidlog.server.process.process_memory import resident_bytes
from braidlog.server.process.worker_process import WorkerProcess

SNAPSHOT_SECONDS: Final = 1.0
CALL: Final = "report"
_FILES: Final = "/proc/self/fd"
_encode = msgspec.json.Encoder().encode
_questions = msgspec.json.Decoder(r.Question)


class Reporter:
    """Collects a node's reports."""

    def __init__(  # noqa: PLR0913 - all that a node counts
        self,
        loaded: LoadedConfig,
        services: Services,
        listeners: Mapping[str, Listener],
        connection_limits: ConnectionLimits,
        budget: Budget,
        clock: Clock,
        *,
        worker: WorkerProcess,
        upkeep: WorkerProcess,
        tables: Sequence[WorkerProcess],
        scrubber: Scrubber,
        syncs: Callable[[], list[DurationHistogram]],
        warnings: Callable[[], dict[str, str]],
        etcd: Callable[[], r.EtcdReport],
    ) -> None:
        self._loaded = loaded
        self._services = services
        self._listeners = listeners
        self._connection_limits = connection_limits
        self._budget = budget
        self._clock = clock
        self._worker = worker
        self._upkeep = upkeep
        self._tables = tables
        self._scrubber = scrubber
        self._syncs = syncs
        self._warnings = warnings
        self._etcd = etcd
        services.forwarding.names.add(CALL)
        self._began = clock.monotonic()
        self._taken: r.Snapshot | None = None
        self._taken_at = 0.0
        self.loop_lag_seconds = 0.0

    async def measure_loop(self) -> None:
        """Measure the event loop's delay, which every request waits."""
        loop = asyncio.get_running_loop()
        due = loop.time() + SNAPSHOT_SECONDS
        await asyncio.sleep(SNAPSHOT_SECONDS)
        self.loop_lag_seconds = max(loop.time() - due, 0.0)

    # -- the snapshot ----------------------------------------------------------------------------------------

    async def snapshot(self) -> r.Snapshot:
        now = self._clock.monotonic()
        if self._taken is None or now - self._taken_at >= SNAPSHOT_SECONDS:
            self._taken, self._taken_at = await self._take(now), now
        return self._taken

    async def _take(self, now: float) -> r.Snapshot:
        services = self._services
        groups, lags = await self._groups()
        partitions = [make() async for make in in_slices(islice(self._partitions(), r.PARTITIONS_MAX))]
        partitions_there = sum(services.hosting.partition_count(name) for name in services.hosting.names())
        is_open = Counter(hosted.is_open for hosted in services.hosting.opened())
        syncs = added(self._syncs())
        quarantined = services.hosting.quarantined
        return r.Snapshot(
            taken_ms=self._clock.now_ms(),
            uptime_seconds=now - self._began,
            listeners=[self._listener(dialect, each) for dialect, each in sorted(self._listeners.items())],
            connections=len(self._connection_limits),
            connections_max=self._connection_limits.connections_max,
            budget_bytes=self._budget.bytes_held + services.holdings.bytes_held,
            budget_bytes_max=self._budget.bytes_max,
            let_go=self._budget.let_go,
            records_appended=services.append.records_written,
            bytes_appended=services.append.bytes_written,
            batches_appended=services.append.batches_written,
            records_fetched=services.fetch.records_read,
            bytes_fetched=services.fetch.bytes_read,
            sync_seconds=syncs.counts,
            sync_seconds_total=syncs.total,
            topics=len(services.hosting.names()),
            partitions=partitions,
            partitions_left_out=max(partitions_there - r.PARTITIONS_MAX, 0),
            partitions_open=is_open[True],
            partitions_closed=is_open[False],
            groups=groups,
            shards=self._shards(),
            lags=lags[: r.LAGS_MAX],
            lags_left_out=max(len(lags) - r.LAGS_MAX, 0),
            keyvalue=self._keyvalue(),
            process=self._process(),
            worker=self._worker.report(),
            upkeep=self._upkeep.report(),
            table_workers=[each.report() for each in self._tables],
            tables=list(islice(services.hosting.tables.values(), r.PARTITIONS_MAX)),
            scrub=self._scrub(),
            state=self._state(partitions_there),
            state_bytes=services.holdings.bytes_held,
            cluster=await cluster_report(
                services.metadata, services.routing, services.hosting, services.forwarding, self._etcd()
            ),
            warnings=self._warnings() | _warn_of(quarantined) | _warn_of_keys(self._services.keyvalue.doubt),
            quarantined=quarantined,
            state_bytes_max=services.holdings.bytes_max,
        )

    def _scrub(self) -> r.ScrubReport:
        each = self._scrubber
        return r.ScrubReport(each.read_bytes, each.damages, each.rounds, each.partitions_left)

    def _state(self, partitions: int) -> list[r.StateReport]:
        """Return the client state's counts and limits."""
        holdings = self._services.holdings
        return [
            r.StateReport("partitions", partitions, holdings.limits.partitions_max),
            *(r.StateReport(kind.value, holdings.used(kind), holdings.limits.limit_of(kind)) for kind in StateKind),
            r.StateReport("producers", self._services.append.producers.count(), holdings.limits.producers_max),
            r.StateReport("streams", self._services.streams.count, holdings.limits.streams_max),
        ]

    def _listener(self, dialect: str, listener: Listener) -> r.ListenerReport:
        counters, sessions = listener.counters, listener.sessions
        return r.ListenerReport(
            dialect=dialect,
            host=listener.host,
            port=listener.port,
            is_tls=listener.tls is not None,
            is_serving=listener.is_serving,
            connections=len(sessions),
            accepted=listener.accepted,
            cut_off=listener.cut_off,
            bytes_in=counters.bytes_in + sum(session.bytes_in for session in sessions),
            bytes_out=counters.bytes_out + sum(session.outbox.bytes_out for session in sessions),
            requests=counters.requests,
            throttled=counters.throttles,
            throttled_seconds=counters.throttled_seconds,
            turned_away=listener.turned_away,
            seconds={name: took.counts for name, took in counters.seconds.items()},
            seconds_total={name: took.total for name, took in counters.seconds.items()},
            sampled=SAMPLED,
        )

    def _partitions(self) -> Iterator[Callable[[], r.PartitionReport]]:
        """Yield a function per partition that reports it: the caller runs them in slices."""
        hosting = self._services.hosting
        for (name, number), fault in hosting.offline.items():
            yield partial(r.PartitionReport, name, number, fault=str(fault), is_offline=True)
        for name, why in hosting.broken.items():
            yield partial(r.PartitionReport, name, 0, fault=why, is_offline=True)
        for name in hosting.names():
            for hosted in hosting.opened(name):
                yield partial(partition_report, hosted)

    async def _groups(self) -> tuple[list[r.GroupReport], list[r.LagReport]]:
        """Return all groups, and at most one lag more than are shown. A group may be deleted between two slices."""
        groups: list[r.GroupReport] = []
        lags: list[r.LagReport] = []
        pace = YieldCounter()
        for name, service in list(self._services.coordinators.groups().items())[: r.LAGS_MAX]:
            before = len(lags)
            with contextlib.suppress(BrokerError):
                view = service.describe(name)
                groups.append(
                    r.GroupReport(
                        name, str(view.state), view.generation, view.protocol, len(view.members), str(view.kind)
                    )
                )
                lags += (await lag_reports(service, name))[: max(r.LAGS_MAX + 1 - before, 0)]
            await pace.step(1 + len(lags) - before)
        return groups, lags

    def _shards(self) -> tuple[int, int]:
        coordinators = self._services.coordinators
        return len(coordinators.local_coordinators()), SHARDS if coordinators.has_shards else 0

    def _keyvalue(self) -> r.KeyValueReport:
        keyvalue = self._services.keyvalue
        try:
            counts, memory = keyvalue.stats(), keyvalue.memory()
        except (StorageFault, BrokerError) as error:
            return r.KeyValueReport(fault=str(error))
        fault = "" if keyvalue.fault is None else str(keyvalue.fault)
        slots = keyvalue.slots
        return r.KeyValueReport(
            fault,
            msgspec.to_builtins(counts),
            memory.used_bytes,
            memory.limit_bytes,
            led_slots=0 if slots is None else slots.led_slots,
            differences=0 if slots is None else slots.differed,
        )

    def _process(self) -> r.ProcessReport:
        try:
            open_files = len(os.listdir(_FILES))
        except OSError:
            open_files = 0
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return r.ProcessReport(
            os.getpid(), time.process_time(), resident_bytes(), open_files, files_max, self.loop_lag_seconds
        )

    # -- between nodes ---------------------------------------------------------------------------------------

    async def ask_node(self, question: r.Question) -> msgspec.Raw:
        """Forward a request to the node that it names; return the answer as JSON."""
        call = Call(CALL, NODE, _encode(question), changes=False)
        return msgspec.Raw(await self._services.forwarding.ask(question.node, call))

    async def answer_node(self, body: bytes) -> bytes:
        """Answer a request of another node's console."""
        try:
            question = _questions.decode(body)
        except msgspec.DecodeError as error:
            raise BrokerError(Reason.UNAVAILABLE, f"this node does not know the question: {error}") from None
        if question.ask == "snapshot":
            return _encode(await self.snapshot())
        if question.ask == "keys":
            return _encode(self.keys(question.prefix, question.position))
        raise BrokerError(Reason.UNAVAILABLE, f"this node does not answer {question.ask!r} to other nodes")

    # -- the rest --------------------------------------------------------------------------------------------

    def settings(self) -> list[r.SettingReport]:
        origins = self._loaded.origins
        return [
            r.SettingReport(name, value, origins.get(name, "default")) for name, value in self._loaded.flat().items()
        ]

    async def describe(self, in_full: bool) -> r.NodeDescription:  # noqa: FBT001 - a port's signature
        """Return the node's description for its operator."""
        config, snapshot = self._loaded.config, await self.snapshot()
        try:
            room = await self._services.runtime.blocking(partial(os.statvfs, config.data_dir))
            size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
            disk = check_room(free, config.admin.disk_free_bytes_min)
        except OSError as error:
            size, free = -1, -1
            disk = r.Check("disk", ok=False, reason=f"{config.data_dir}: {error.strerror or error}")
        return r.NodeDescription(
            node=config.node,
            version=metadata.version("braidlog"),
            kernel="compiled" if is_compiled() else "pure Python",
            python=platform.python_version(),
            data_dir=config.data_dir,
            disk_bytes=size,
            disk_free_bytes=free,
            checks=[*health_checks(snapshot), disk],
            snapshot=snapshot,
            settings=self.settings() if in_full else [],
            stacks=stacks() if in_full else {},
        )

    def roles(self, principal: str) -> r.Roles:
        """Return a principal's roles; none for a signed-in user that was deleted."""
        if not (self._services.authorize.has_token(principal) or self._services.users.credentials(principal)):
            return r.Roles()
        return roles_of(self._services.authorize, self._services.rules.all(), principal)

    def events(self, topic: str, partition: int) -> list[r.EventReport]:
        return events(self._services.metadata.history, topic, partition)

    def connections(self, watched: Collection[Session]) -> r.Connections:
        now = asyncio.get_running_loop().time()
        sessions = [session for listener in self._listeners.values() for session in listener.sessions]
        sessions.sort(key=lambda session: session.number)
        shown = sessions[: r.CONNECTIONS_MAX]
        rows = [_connection(session, now, is_watched=session in watched) for session in shown]
        return r.Connections(rows, len(sessions) - len(shown))

    def find(self, number: int) -> Session | None:
        """Return the session of a connection, or None."""
        every = (session for listener in self._listeners.values() for session in listener.sessions)
        return next((session for session in every if session.number == number), None)

    def keys(self, prefix: bytes, position: int) -> r.Keys:
        """Return keys from a position in insertion order; a call inspects as many as take a few milliseconds."""
        keyspaces, now_ms = self._services.keyvalue.keyspaces(), self._services.keyvalue.now_ms()
        rows: list[r.KeyReport] = []
        at, count = position, sum(map(len, keyspaces))
        keys = ((keyspace, key) for keyspace in keyspaces for key in keyspace.data)
        looked_at = islice(keys, position, position + r.KEYS_LOOKED_AT_MAX)
        for at, (keyspace, key) in enumerate(looked_at, position + 1):  # noqa: B007 - the position after the loop
            if not key.startswith(prefix):
                continue
            value = keyspace.find(key, now_ms)
            if value is not None:
                deadline = keyspace.deadlines.get(key)
                left = None if deadline is None else (deadline - now_ms) / 1000
                rows.append(r.KeyReport(key, kind_of(value), left))
            if len(rows) == r.KEYS_MAX:
                break
        return r.Keys(rows, at if at < count else None, count)


def _warn_of(quarantined: dict[str, int]) -> dict[str, str]:
    """Return a warning about quarantined copies, by health check."""
    if not any(quarantined.values()):
        return {}
    counts = (
        f"{quarantined['damaged']} damaged copies and {quarantined['stray']} topics that the metadata does not know"
    )
    return {"set aside": f"{counts} are kept in the data folder; `braid doctor` names them: look, and delete them"}


def _warn_of_keys(doubt: str) -> dict[str, str]:
    return {"keys in doubt": doubt} if doubt else {}


def _connection(session: Session, now: float, *, is_watched: bool) -> r.ConnectionReport:
    return r.ConnectionReport(
        number=session.number,
        dialect=session.dialect,
        peer=session.peer,
        principal=session.principal,
        requests=session.requests,
        bytes_in=session.bytes_in,
        bytes_out=session.outbox.bytes_out,
        seconds=now - session.activity.opened_at,
        idle_seconds=now - session.activity.last_heard,
        held_bytes=session.held_bytes(),
        is_tls=session.is_tls,
        is_watched=is_watched,
    )


FRAMES_MAX: Final = 40
TASKS_MAX: Final = 200


def stacks() -> dict[str, str]:
    """Return the stacks of threads and tasks; of the tasks at most `TASKS_MAX`."""
    names = {each.ident: each.name for each in threading.enumerate()}
    found = {
        f"thread {names.get(number, number)}": "".join(traceback.format_stack(frame, FRAMES_MAX))
        for number, frame in sys._current_frames().items()  # noqa: SLF001 - documented, in spite of its name
    }
    tasks = sorted(asyncio.all_tasks(), key=lambda each: each.get_name())
    for task in tasks[:TASKS_MAX]:
        frames = task.get_stack(limit=FRAMES_MAX)
        text = "".join(line for frame in frames for line in traceback.format_stack(frame, 1))
        name = f"task {task.get_name()}"
        found[name] = found.get(name, "") + text
    if len(tasks) > TASKS_MAX:
        found["tasks left out"] = str(len(tasks) - TASKS_MAX)
    return found
