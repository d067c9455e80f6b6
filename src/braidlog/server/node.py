"""Composes a node from its parts, and starts and stops them in order.

Start: folder and lock, ports, services (recovery), listeners. Stop: refuse new connections, drain requests, sync
everything, record the clean shutdown, release the folder.
"""

import asyncio
import logging
import secrets
import socket
from functools import partial
from importlib import metadata
from typing import Final

from braidlog.adapters.contract import Adapter
from braidlog.broker.cluster_report import no_description
from braidlog.broker.services import Services, lone_node, open_services
from braidlog.coordinator.state_limits import StateUsage
from braidlog.model.clock import SystemClock
from braidlog.model.errors import StorageFault
from braidlog.model.reporting.node_report import EtcdReport, NodeDescription
from braidlog.partition.closing import close_partitions
from braidlog.partition.maintenance.scrubber import Scrubber
from braidlog.partition.opening import retry
from braidlog.partition.partition import Partition
from braidlog.security.authorization import Authorize
from braidlog.security.resource_owners import AllOwners
from braidlog.server.adapters import ConsoleListeners, console_calls, gatekeeper, make_adapters, of_consoles
from braidlog.server.certificates import reload_certificate, tls_context
from braidlog.server.cluster_node import ClusterNode
from braidlog.server.cluster_parts import ClusterParts, NodeContext, open_cluster_parts
from braidlog.server.config import ListenerConfig, LoadedConfig, ServerConfig, check_exposure
from braidlog.server.event_loop_runtime import EventLoopRuntime
from braidlog.server.maintenance import IdlePartitions, maintain_partitions, offline_by_fault
from braidlog.server.net.connection_limits import ConnectionLimits
from braidlog.server.net.listener import SWEEP_SECONDS, Listener
from braidlog.server.net.memory_budget import Budget
from braidlog.server.net.ports import advertised_addresses, close_all, listen
from braidlog.server.net.scheduler import FairScheduler
from braidlog.server.net.unauthenticated_limits import AccessGate
from braidlog.server.net.wire_log import open_wire_log, session_of
from braidlog.server.node_reporter import Reporter
from braidlog.server.process.compaction_worker import WorkerRewriting
from braidlog.server.process.console_process import ConsoleProcess, bind, bind_registry, welcome_of
from braidlog.server.process.disk_reserve import LOOK_SECONDS, DiskReserve, free_bytes
from braidlog.server.process.file_descriptors import Complaints, connections_that_fit, files_that_fit, raise_limit
from braidlog.server.process.process_memory import resident_bytes
from braidlog.server.process.worker_process import WorkerProcess
from braidlog.server.schema_requests import SchemaQuestions
from braidlog.server.table_export import PRIORITIES, Tables
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.group_commit import Flusher
from braidlog.tasks import Tasks
from braidlog.tools.wire.capture.recorder import Recorder
from braidlog.wire.dialect import dialects
from braidlog.wire.kafka.consumer import ConsumerMetadata
from braidlog.worker.jobs import LOW

log = logging.getLogger("braidlog.server")

VERSION: Final = metadata.version("braidlog")

EXPIRE_SECONDS = 1.0
TELL_SECONDS = 10.0
RETAIN_SECONDS = 30.0
TABLE_WORKERS: Final = 2
RETRY_SECONDS = 5.0
"""Between two attempts to open partitions that could not be opened."""
SCRUB_AFTER_SECONDS = 60.0
"""Delay of the first verification: a node that has just started is busy with recovery."""
REPLICA_LAG_MS_MAX = 30_000
STATE_SHARE: Final = 2
"""Client state may use at most 1/2 of `limits.memory_bytes_max`; the rest is for connections."""


class Server:
    """One node: `await start()`, then `await run()` until something calls `request_stop`, then `await stop()`."""

    def __init__(self, config: ServerConfig) -> None:
        check_exposure(config)
        self.config = config
        self.listeners: dict[str, Listener] = {}
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks = Tasks(self._task_failed)
        self._quotas = config.quotas.make(config.limits.connections_per_address_per_second)
        self._clock = SystemClock()
        self._budget = Budget(config.limits.memory_bytes_max, self._clock.monotonic)
        self._descriptors = raise_limit()
        connections_max = connections_that_fit(config.limits.connections_max, self._descriptors)
        self._connection_limits = ConnectionLimits(
            connections_max, config.limits.connections_per_address_max, self._quotas
        )
        self._bound: dict[str, list[socket.socket]] = {}
        self._fair_turns = FairScheduler()
        self._disk = OsDisk()
        self._folder: DataFolder | None = None
        self._parts: ClusterParts | None = None
        self._cluster: ClusterNode | None = None
        self._reporter: Reporter | None = None
        self._flusher: Flusher | None = None
        self._gatekeeper: AccessGate | None = None
        self._wire_log: Recorder | None = None
        self._runtime: EventLoopRuntime | None = None
        self._worker: WorkerProcess | None = None
        self._upkeep: WorkerProcess | None = None
        self._tables: list[WorkerProcess] = []
        self._scrubber: Scrubber | None = None
        self._told_damages: dict[str, int] = {}
        self._recovered = ""
        self._is_serving = False
        self._console: ConsoleProcess | None = None
        self.services: Services | None = None

    async def start(self) -> None:
        """Recover, then serve clients: no client is served before recovery has completed."""
        self._tasks.every(TELL_SECONDS, partial(self._log_start, self._clock.monotonic()), "start")
        try:
            await self._start()
        except BaseException:
            await self.stop()  # a port in use must not keep the folder locked
            raise

    async def _start(self) -> None:
        config = self.config
        began = self._clock.monotonic()
        asyncio.get_running_loop().set_exception_handler(Complaints())
        files_max = files_that_fit(self._connection_limits.connections_max, self._descriptors)
        # A separate process: no client waits behind a compaction.
        upkeep = self._upkeep = WorkerProcess(config.worker.for_upkeep(), self._budget, priority=LOW)
        rewriter = partial(WorkerRewriting, upkeep, asyncio.get_running_loop())
        self._folder = DataFolder(self._disk, config.data_dir, self._clock, open_files_max=files_max, rewriter=rewriter)
        self._take_ports()
        self._flusher = Flusher(self._clock)
        authorize = Authorize(config.auth.tokens, config.auth.rules, has_users=bool(config.auth.users))
        runtime = self._runtime = EventLoopRuntime(self._clock, self._flusher)
        self._worker = WorkerProcess(config.worker, self._budget)
        self._tasks.spawn(self._worker.run(), "worker")
        self._tasks.spawn(upkeep.run(), "upkeep worker")
        wire_log = self._wire_log = open_wire_log(config.wire_log, self._clock)
        context = NodeContext(
            self._folder, runtime, self._clock, self._tasks, self._budget, self._fair_turns, self._task_failed, wire_log
        )
        parts = self._parts = await open_cluster_parts(config.cluster, config.node, context)
        self.services = open_services(
            self._folder,
            runtime,
            lone_node(self._folder, runtime, config.node, self._tasks.spawn) if parts is None else parts.for_services,
            defaults=config.topics,
            authorize=authorize,
            users=config.auth.users,
            rebalance_delay_ms=config.groups.rebalance_delay_ms,
            consumer_groups=config.groups.consumer,
            kv=config.kv,
            resident=resident_bytes,
            member_metadata=ConsumerMetadata(),
            worker=self._worker,
            decompression=config.limits.decompression(),
            holdings=StateUsage(
                config.state, is_shared=config.knows_principals, bytes_max=config.limits.memory_bytes_max // STATE_SHARE
            ),
            quotas=self._quotas,
            describe=self._describe,
            stop_node=None if parts is None else self.request_stop,
        )
        if parts is not None:
            self._cluster = ClusterNode(parts, self.services)
            await self._cluster.run(is_guarded=config.is_guarded)
        if config.auth.owner_by_first_use:
            authorize.own_by_first_use(AllOwners(self.services.coordinators.owners_of))
        for note in self._folder.notes:
            log.warning("data folder: %s", note)
        # Before the node joins its cluster: importing modules blocks the loop, for seconds on a busy machine.
        adapters = make_adapters(self.services, config.listeners)
        await self._open_partitions()
        if self._cluster is None and config.auth.owner_by_first_use:
            await self.services.coordinators.ensure_shards()  # ownership must be known before requests
        await self.services.coordinators.wait_read()
        await self._open_store()
        self._gatekeeper = gatekeeper(
            config.auth, authorize, runtime, connections_max=self._connection_limits.connections_max
        )
        for name, adapter in adapters.items():
            await self._listen(name, adapter)
        self._tasks.every(SWEEP_SECONDS, self._sweep, "sweep")
        self._tasks.every(SWEEP_SECONDS, partial(runtime.blocking, self._folder.pool.make_room), "close-files")
        self._tasks.every(EXPIRE_SECONDS, self._expire, "expire")
        self._tasks.every(RETAIN_SECONDS, self._retain, "retain")
        self._tasks.every(RETRY_SECONDS, partial(retry, self.services.hosting, runtime), "retry")
        if config.idle_partition_seconds:
            idle = IdlePartitions(self.services, self._budget, config.idle_partition_seconds)
            self._tasks.every(idle.pause_seconds, idle.close, "close-idle")
        self._start_scrubbing(self._folder, self.services, upkeep)
        self._start_tables(self.services)
        reserve = DiskReserve(
            partial(free_bytes, config.data_dir),
            config.disk_reserve_bytes,
            runtime,
            [self.services.append, self.services.keyvalue],
        )
        await reserve.check()
        self._tasks.every(LOOK_SECONDS, reserve.check, "disk-reserve")
        log.info(
            "up to %d connections, %d files and sockets", self._connection_limits.connections_max, self._descriptors
        )
        ports = ", ".join(f"{name} on {self.listeners[name].host}:{port}" for name, port in self.ports.items())
        log.info("braidlog %s serves %s as node %s: %s", VERSION, config.data_dir, config.node, ports)
        log.info("recovered %s; ready after %.1f s", self._recovered, self._clock.monotonic() - began)
        self._is_serving = True

    def _start_scrubbing(self, folder: DataFolder, services: Services, upkeep: WorkerProcess) -> None:
        settings = self.config.scrub
        scrubber = self._scrubber = Scrubber(folder, services.hosting, services.runtime, upkeep, settings, log.error)
        self._tasks.every(settings.check_hours * 3600, scrubber.forget_checks, "forget-checks")
        if settings.bytes_per_second:
            self._tasks.spawn(self._scrub(scrubber), "scrub")

    def _start_tables(self, services: Services) -> None:
        """Start the table workers: separate processes, so no compaction waits for a catalog or an object store."""
        settings = self.config.tables
        limits = self.config.worker.for_upkeep(settings.job_seconds_max)
        priority = PRIORITIES[settings.priority]
        self._tables = [WorkerProcess(limits, self._budget, priority=priority) for _ in range(TABLE_WORKERS)]
        place = settings.place(self.config.data_dir, is_alone=self._cluster is None)
        turning = Tables(services.hosting, services.runtime, self._tables, place, services.schema_log.reader, settings)
        self._tasks.every(min(settings.check_seconds, 1.0), turning.watch, "tables watch")
        for number, worker in enumerate(self._tables):
            self._tasks.spawn(worker.run(), "tables worker")
            self._tasks.every(settings.check_seconds, partial(turning.step, number), "tables")

    async def _log_start(self, began: float) -> None:
        if not self._is_serving and not self._stopping.is_set():
            log.warning("not ready after %.0f s: waits for %s", self._clock.monotonic() - began, self._waits_for())

    def _waits_for(self) -> str:
        if self.services is None or not self._recovered:
            return "the metadata" if self.services is None else "its partitions, which are being opened"
        is_joining = self._cluster is not None and not self._cluster.has_joined
        return "its cluster, in which it registers" if is_joining else "the coordinators' shards, which are being read"

    def _take_ports(self) -> None:
        """Bind the listeners' ports before recovery: clients that connect early wait until the node is ready."""
        for name in dialects():
            settings: ListenerConfig = getattr(self.config.listeners, name)
            if settings.enabled:
                self._bound[name] = listen(settings.host, settings.port, f"listener {name}")

    async def _open_partitions(self) -> None:
        """Recover all partitions, then join the cluster. A partition that cannot be opened is offline and logged; the
        others are served."""
        assert self.services is not None
        began = self._clock.monotonic()
        opened = await self.services.reconciler.open_all()
        self._recovered = f"{opened} in {self._clock.monotonic() - began:.1f} s"
        for name, number, fault in opened.faults:
            log.error("%s/%d is offline: %s", name, number, fault)
        for hosted in opened.partitions:
            self._log_damage(hosted)
        if self._cluster is not None:
            await self._cluster.join(advertised_addresses(self.config, self._bound))

    def _log_damage(self, hosted: Partition) -> None:
        """Log each damage once."""
        told = self._told_damages.get(str(hosted), 0)
        for damage in hosted.damages[told:]:
            log.error("%s is damaged and takes no writes: %s", hosted, damage)
        if len(hosted.damages) != told:
            self._told_damages[str(hosted)] = len(hosted.damages)

    async def _open_store(self) -> None:
        """Recover the key-value store. If it cannot be opened, it is offline, and partitions are served."""
        assert self.services is not None
        keyvalue = self.services.keyvalue
        try:
            # On a thread: this node has joined its cluster, and must respond while a large store is read.
            await self.services.runtime.blocking(keyvalue.open)
        except StorageFault as fault:
            log.error("the key-value store is offline: %s", fault)  # noqa: TRY400 - the fault says where
            return
        for note in keyvalue.notes:
            log.warning("key-value store: %s", note)
        for damage in keyvalue.damages:
            log.error("key-value store is damaged: %s", damage)
        for name, work in keyvalue.background():
            self._tasks.spawn(offline_by_fault(work, name), name)
        self._tasks.every(EXPIRE_SECONDS, lambda: offline_by_fault(keyvalue.expire, "kv-expire"), "kv-expire")
        self._tasks.every(
            EXPIRE_SECONDS, lambda: offline_by_fault(keyvalue.maybe_snapshot, "kv-snapshot"), "kv-snapshot"
        )

    async def _listen(self, dialect: str, adapter: Adapter) -> None:
        settings: ListenerConfig = getattr(self.config.listeners, dialect)
        if self._cluster is not None:
            assert self.services is not None
            self._cluster.serve_calls(adapter, of_consoles(dialect, self.services))
        if not settings.enabled:
            return
        listener = Listener(
            adapter,
            session_limits=self.config.limits,
            connection_limits=self._connection_limits,
            budget=self._budget,
            advertised=(settings.advertised_host, settings.advertised_port),
            tls=tls_context(settings.tls) if settings.tls.cert else None,
            quotas=self._quotas,
            gatekeeper=self._gatekeeper,
            session=session_of(self._wire_log),
            fair_turns=self._fair_turns,
        )
        await listener.start(settings.host, settings.port, self._bound.pop(dialect))
        self.listeners[dialect] = listener

    # -- the console -----------------------------------------------------------------------------------------

    async def start_console(self, loaded: LoadedConfig) -> None:
        """Bind the admin port and start the console's process, if `admin.enabled`. Call it after `start`."""
        admin, registry = self.config.admin, self.config.registry
        reporter = self._begin_reports(loaded)
        if not admin.enabled:
            return
        assert self.services is not None
        assert self._gatekeeper is not None
        if admin.tls.cert:
            tls_context(admin.tls)  # fail here rather than in the console's process
        bound = await bind(admin.host, admin.port)
        also = bind_registry(registry.host, registry.port) if registry.enabled else None
        door_secret = secrets.token_hex(32)
        private = ConsoleListeners(
            self.services, self.config.auth, door_secret, self._tasks, budget=self._budget, fair_turns=self._fair_turns
        )
        urls = await private.open()
        told, now_ms = {name: each.url for name, each in self.listeners.items()}, self._clock.now_ms()
        welcome = welcome_of(self.config, VERSION, urls, door_secret, listeners=told, now_ms=now_ms)
        schemas = SchemaQuestions(self.services, self._gatekeeper, self._budget, needs_token=bool(admin.token))
        self._tasks.spawn(schemas.comparisons.run(), "schemas worker")
        now_ns = self._clock.now_ns
        self._console = ConsoleProcess(bound, reporter, schemas, welcome, now_ns, registry=also, doors=private.close)
        self._tasks.spawn(self._console.run(), "console")

    def _begin_reports(self, loaded: LoadedConfig) -> Reporter:
        """Create the reporter, which the console and other nodes query."""
        assert self.services is not None
        assert self._runtime is not None
        assert self._flusher is not None
        assert self._worker is not None
        assert self._upkeep is not None
        assert self._scrubber is not None
        measured = [self._runtime.seconds, self._flusher.seconds]
        reporter = self._reporter = Reporter(
            loaded,
            self.services,
            self.listeners,
            self._connection_limits,
            self._budget,
            self._clock,
            worker=self._worker,
            upkeep=self._upkeep,
            tables=self._tables,
            scrubber=self._scrubber,
            syncs=lambda: measured,
            warnings=lambda: {} if self._cluster is None else self._cluster.warnings(),
            etcd=EtcdReport if self._cluster is None else self._cluster.etcd_report,
        )
        self._tasks.every(0, reporter.measure_loop, "loop-lag")
        if self._cluster is not None:
            self._cluster.answer_consoles(console_calls(self.services), reporter.answer_node)
        return reporter

    async def _describe(self, in_full: bool) -> NodeDescription:  # noqa: FBT001 - a port's signature
        reporter = self._reporter
        return await (no_description(in_full) if reporter is None else reporter.describe(in_full))

    @property
    def admin_port(self) -> int | None:
        """Port of the console; None without one."""
        return None if self._console is None else self._console.port

    @property
    def registry_port(self) -> int | None:
        """Port of the schema registry; None without one."""
        return None if self._console is None else self._console.registry_port

    @property
    def ports(self) -> dict[str, int]:
        return {dialect: listener.port for dialect, listener in self.listeners.items()}

    def reload_certificates(self) -> None:
        """Reload certificates and keys for future connections. Invalid files are logged, and the old ones stay."""
        for dialect, listener in self.listeners.items():
            if listener.tls is not None:
                reload_certificate(dialect, listener.tls, getattr(self.config.listeners, dialect).tls)
        if self._cluster is not None:
            self._cluster.reload_certificates()

    async def run(self) -> None:
        """Serve until `request_stop`; raises the error of a failed background task."""
        await self._stopping.wait()
        if self._failure is not None:
            raise self._failure

    def request_stop(self) -> None:
        self._stopping.set()

    def _task_failed(self, error: BaseException) -> None:
        self._failure = error
        self._stopping.set()

    async def _sweep(self) -> None:
        for listener in self.listeners.values():
            await listener.sweep()
        self._budget.reserve(0 if self.services is None else self.services.holdings.bytes_held)

    async def _expire(self) -> None:
        assert self.services is not None
        for hosted, node in self.services.placement.expire_replicas(REPLICA_LAG_MS_MAX):
            log.warning("replica %s of %s has not fetched for a while and is in sync no more", node, hosted)

    async def _retain(self) -> None:
        """Delete old records and values on a thread, unless this node's clock differs from the cluster's."""
        if self._cluster is not None and (trouble := self._cluster.clock_trouble()):
            log.error("%s", trouble)
            return
        assert self.services is not None
        await self.services.runtime.blocking(self.services.hosting.count_set_aside)
        await maintain_partitions(self.services.hosting, self.services.runtime, self._log_damage)
        await self.services.append.producers.make_room()
        await self.services.coordinators.forget_unused(self.config.groups.offsets_retention_ms)

    async def _scrub(self, scrubber: Scrubber) -> None:
        pause = SCRUB_AFTER_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                pause = await scrubber.step()
            except StorageFault as fault:
                log.error("scrubbing: %s", fault)  # noqa: TRY400 - the fault says where
                pause = SCRUB_AFTER_SECONDS

    async def _close(self, services: Services) -> list[StorageFault]:
        """Close everything in the folder; return the faults of partitions that could not be closed."""
        services.keyvalue.close()
        faults = await close_partitions(services.hosting, services.runtime)
        services.hosting.close()
        services.metadata.close()
        if self._cluster is not None and not faults:
            await self._cluster.stopped_cleanly()
        return faults

    async def stop(self) -> None:
        """Drain requests, flush, sync, release the folder."""
        began, was_serving, self._is_serving = self._clock.monotonic(), self._is_serving, False
        if was_serving:
            log.info("shutting down: draining requests for up to %g s", self.config.drain_seconds)
            if self._cluster is not None:
                await self._cluster.leave()
        await self._stop()
        if was_serving:
            log.info("stopped in %.1f s", self._clock.monotonic() - began)

    async def _disconnect(self) -> None:
        """Close the connections of clients and nodes. Before tasks are stopped: requests would start new ones."""
        await asyncio.gather(*(listener.stop(self.config.drain_seconds) for listener in self.listeners.values()))
        self.listeners.clear()
        if self.services is not None:
            await offline_by_fault(self.services.keyvalue.drain, "kv-feed")
        if self._cluster is not None:
            await self._cluster.disconnect()

    async def _stop(self) -> None:
        """Stop every part; raises at the end if something could not be made durable."""
        close_all(self._bound)  # of a start that failed
        if self._console is not None:
            console, self._console = self._console, None
            await console.stop()
        await self._disconnect()
        await self._tasks.stop()
        if self._scrubber is not None and not self._scrubber.progress.is_done:
            await offline_by_fault(partial(asyncio.to_thread, self._scrubber.save), "scrub")
        if self._wire_log is not None:
            wire_log, self._wire_log = self._wire_log, None
            wire_log.close()
        if self._flusher is not None:
            self._flusher.stop()
        faults = [] if self.services is None else await self._close(self.services)
        parts, self._parts, self._cluster = self._parts, None, None
        if parts is not None:
            await parts.stop()
        if self._folder is not None:
            self._folder.release()
        if faults:
            raise faults[0]
