"""The metadata store of a node in a cluster: connects to etcd, checks and opens the metadata, and closes it at the
end.

Order of a start: etcd member, versions, the folder's cluster, node number, log.
Invariants: a folder that has followed a cluster follows no other, and never its own metadata again. A folder with its
own metadata is not moved. Every step can be repeated, so a start after a failed one succeeds.

A new folder joins the cluster that exists in etcd, or creates one.
"""

import asyncio
import contextlib
import logging
import ssl
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from braidlog.broker.services import Services
from braidlog.cluster.etcd import image_snapshots
from braidlog.cluster.etcd.entries import Keys
from braidlog.cluster.etcd.etcd_store import EtcdStore
from braidlog.cluster.etcd.leases import LeaseMessage, LeaseMonitor
from braidlog.cluster.etcd.migration import is_moving
from braidlog.cluster.etcd.port import Etcd, EtcdAwayError, EtcdError
from braidlog.cluster.etcd.position import Position, PositionFile
from braidlog.cluster.etcd.presence import Life, Presence
from braidlog.cluster.membership import Membership
from braidlog.cluster.metadata.events import Event
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Conflict
from braidlog.coordinator.transactions.producer_ids import ProducerIds
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.reporting.node_report import EtcdReport
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.reconciler import Reconciler
from braidlog.replication.control.controller import LeaseLost
from braidlog.server.etcd.cluster_config import ClusterConfig
from braidlog.server.etcd.etcd_process import Member, find_program
from braidlog.server.etcd.gateway import Gateway
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.tasks import Tasks

log = logging.getLogger("braidlog.metadata")
T = TypeVar("T")

START_SECONDS_MAX: Final = 60.0
"""How long members that start together with the node may take to elect a leader."""
AGAIN_SECONDS: Final = 0.2
SAY_SECONDS: Final = 10.0
JOIN_SECONDS_MAX: Final = 600.0
"""How long a node that creates no cluster waits for one."""
RESERVE_SECONDS: Final = 1.0
MEMBER_FOLDER: Final = "etcd"


class TaskedStore(EtcdStore):
    """Runs proposals in separate tasks: a handler has no task, and a disconnected client's wait may be cancelled."""

    def __init__(self, tasks: Tasks, etcd: Etcd, runtime: Runtime, **options: Any) -> None:  # noqa: ANN401 - the base's own
        super().__init__(etcd, runtime, **options)
        self._tasks = tasks

    async def propose(self, events: Sequence[Event], after: int) -> int | Conflict:
        return await in_task(self._tasks, super().propose(events, after))

    async def save(self, image: Image, seq: int) -> None:
        await in_task(self._tasks, super().save(image, seq))


async def in_task(tasks: Tasks, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, for a caller that may have no task and may end before it."""
    ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        try:
            result = await work
            if not ended.cancelled():  # otherwise the waiting caller was cancelled
                ended.set_result(result)
        except (BrokerError, StorageFault) as error:
            if not ended.cancelled():
                ended.set_exception(error)
        finally:
            ended.cancel()  # neither happened: the node stops

    tasks.spawn(run(), "metadata-change")
    return await ended


async def open_cluster(
    config: ClusterConfig, folder: DataFolder, runtime: Runtime, node: str, tasks: Tasks
) -> "ClusterStore | None":
    """Open the cluster's metadata; None for a node with its own metadata."""
    if not config.etcd:
        if folder.identity.cluster:
            raise BrokerError(
                Reason.INVALID_SETTING,
                f"{folder.path} belongs to cluster {folder.identity.cluster}, whose metadata is in etcd: set "
                "[cluster] etcd",
            )
        return None
    cluster = ClusterStore(config, folder, runtime, node, tasks)
    try:
        await cluster.open()
    except EtcdError as error:
        await cluster.stop()
        raise BrokerError(Reason.UNAVAILABLE, f"cannot reach the metadata: {error}") from error
    except BaseException:
        await cluster.stop()
        raise
    return cluster


class ClusterStore:
    """Call `open`, then `run`; call `stop` as the node's last step."""

    def __init__(self, config: ClusterConfig, folder: DataFolder, runtime: Runtime, node: str, tasks: Tasks) -> None:
        self._config = config
        self._folder = folder
        self._runtime = runtime
        self._node = node
        self._tasks = tasks
        self._member: Member | None = None
        self._keeping_member: asyncio.Task[None] | None = None
        self._gateway: Gateway | None = None
        self._tls: ssl.SSLContext | None = None
        self._presence: Presence | None = None
        self._store: EtcdStore | None = None
        self._services: Services | None = None
        """Services that follow the log; None before `run`."""
        self._has_arrived = asyncio.Event()

    @property
    def store(self) -> EtcdStore:
        assert self._store is not None
        return self._store

    async def open(self) -> None:
        config, runtime = self._config, self._runtime
        position, known = self._open_position()
        tls = self._tls = config.tls()
        if config.is_embedded:
            settings, folder = config.member(self._node), Path(self._folder.path) / MEMBER_FOLDER
            self._member = Member(settings, folder, find_program(), tls)
            await self._member.start()
            log.info("etcd member of this node started")
            self._keeping_member = self._tasks.spawn(self._member.keep_running(), "etcd-member")
        gateway = self._gateway = Gateway(config.gateway(), tls)
        await retry_until_answered(gateway.check_versions)
        store = TaskedStore(
            self._tasks,
            gateway,
            runtime,
            prefix=config.prefix,
            node=self._node,
            new_nonce=lambda: uuid.uuid4().hex,
            remember=lambda reached: runtime.blocking(lambda: position.save(reached)),
            arrived=self._take_arrived,
        )
        if known.seq == 0:  # otherwise the cluster existed: a missing one must not be created again
            begin = partial(store.create_cluster, known.cluster)
            known = self._joined(
                await (self._is_created_elsewhere(gateway) if config.join else retry_until_answered(begin))
            )
        life = Life(self._folder.identity.folder_id, uuid.uuid4().hex)
        keys = Keys(config.prefix)
        self._presence = Presence(gateway, runtime, keys, node=self._node, life=life, seconds=config.lease_seconds)
        await retry_until_answered(self._presence.register)
        await retry_until_answered(lambda: store.open(known))
        log.info("metadata of cluster %s in etcd: entry %d", known.cluster, store.position.seq)
        self._store = store

    def _open_position(self) -> tuple[PositionFile, Position]:
        """The folder's position. A new folder durably chooses a cluster id before it creates that cluster in etcd."""
        folder = self._folder
        position = PositionFile(folder.disk, folder.path, self._node)
        known = position.load()
        if is_moving(known):
            raise BrokerError(
                Reason.VERSION_CONFLICT,
                f"{folder.path} has an unfinished move into cluster {known.cluster if known else ''}: run "
                "`braid cluster init` again",
            )
        if known is None and folder.identity.cluster:
            raise BrokerError(
                Reason.FOLDER_NOT_FOUND,
                f"{folder.path} belongs to cluster {folder.identity.cluster}, but its position files cluster.a and "
                "cluster.b "
                "are lost: restore them from a backup",
            )
        if not folder.identity.cluster and folder.topics():
            raise BrokerError(
                Reason.VERSION_CONFLICT,
                f"{folder.path} has topics and its own metadata, which a start does not move into etcd: run "
                "`braid cluster init`, or start with an empty data_dir",
            )
        if known is None:
            known = Position(uuid.uuid4().hex, 0, "")
            position.save(known)
        return position, known

    def _joined(self, found: str) -> Position:
        """Make the cluster in etcd, whichever folder created it, this folder's cluster."""
        folder = self._folder
        if folder.identity.cluster not in ("", found):
            raise BrokerError(
                Reason.VERSION_CONFLICT,
                f"etcd holds cluster {found} at prefix {self._config.prefix!r}, but {folder.path} belongs to "
                f"{folder.identity.cluster}: check the addresses of etcd and the prefix",
            )
        if not folder.identity.cluster:
            folder.join_cluster(found)
        return Position(found, 0, "")

    async def _is_created_elsewhere(self, gateway: Gateway) -> str:
        """Wait for the cluster that another node creates."""
        keys, loop = Keys(self._config.prefix), asyncio.get_running_loop()
        until = loop.time() + JOIN_SECONDS_MAX
        say_at = loop.time()
        while (found := await retry_until_answered(partial(image_snapshots.read_head, gateway, keys))) is None:
            if loop.time() >= until:
                raise BrokerError(
                    Reason.UNAVAILABLE,
                    f"no cluster exists at prefix {self._config.prefix!r}, and this node creates none (cluster.join): "
                    "run "
                    "`braid cluster init` on the node with topics, or start a node without cluster.join",
                )
            if loop.time() >= say_at:
                log.warning("waiting for another node to create a cluster at prefix %r", self._config.prefix)
                say_at = loop.time() + SAY_SECONDS
            await asyncio.sleep(AGAIN_SECONDS)
        return found[0].cluster

    # -- while it runs ---------------------------------------------------------------------------------------

    async def run(self, services: Services) -> None:
        """Record the folders that the start created, then follow the metadata log."""
        assert self._presence is not None
        self._services = services
        self._tasks.spawn(self._presence.keep_registered(), "presence")
        await retry_until_answered(services.reconciler.note_made)
        await retry_until_answered(services.producer_ids.fill_reserve)
        self._tasks.every(RESERVE_SECONDS, partial(_refill_reserve, services.producer_ids), "producer-ids")
        self._tasks.spawn(self.store.follow_changes(), "metadata")
        self._tasks.spawn(self.store.check_watch(), "metadata-tick")

    def _take_arrived(self) -> None:
        if (services := self._services) is not None:
            services.metadata.catch_up()
            services.rules.apply()
            services.quota_changes.apply()
            self._has_arrived.set()

    async def follow_metadata(self, reconciler: Reconciler) -> None:
        """Reconcile the folder with new entries. Runs only after all partitions are open, so that nothing is opened
        twice.
        """
        while True:
            await self._has_arrived.wait()
            self._has_arrived.clear()
            try:
                faults = await reconciler.apply_metadata()
            except BrokerError as error:  # a start or a change takes long; retried below
                log.warning("data folder not reconciled yet: %s", error)
                self._has_arrived.set()
                continue
            for name, fault in faults.items():
                log.error("topic %r cannot be reconciled: %s", name, fault)

    def leases(
        self, members: Callable[[], Membership], told: Callable[[LeaseMessage], None], lost: Callable[[LeaseLost], None]
    ) -> LeaseMonitor:
        """Lease monitoring for failure detection and the controller."""
        assert self._gateway is not None
        return LeaseMonitor(self._gateway, self._runtime, Keys(self._config.prefix), members, told, lost)

    def report(self) -> EtcdReport:
        gateway, store = self._gateway, self._store
        if gateway is None or store is None:
            return EtcdReport(is_up=False)
        return EtcdReport(store.outage is None, store.outages, list(gateway.seconds.counts), gateway.seconds.total)

    def outage(self) -> str:
        """The outage report for operators; empty while etcd answers."""
        outage = None if self._store is None else self._store.outage
        return "" if outage is None else outage.report(self._runtime.monotonic())

    def member_problem(self) -> str:
        """Trouble of the embedded member, as text; empty while the member runs or if none exists."""
        return "" if self._member is None else self._member.trouble

    def reload_certificate(self) -> None:
        """Reload the client certificate for etcd. An embedded member reloads its own for each connection."""
        if self._tls is None:
            return
        try:
            self._config.reload_tls(self._tls)
        except (BrokerError, OSError) as error:
            log.error("etcd client certificate not reloaded: %s", error)  # noqa: TRY400
        else:
            log.info("etcd client certificate reloaded")

    async def remove_member(self, node: str) -> None:
        """Remove the embedded member of a removed node: while it counts, the others need it for their majority."""
        if self._gateway is not None and self._config.is_embedded:
            await in_task(self._tasks, self._remove_member(self._gateway, node))

    async def _remove_member(self, gateway: Gateway, node: str) -> None:
        member = "ID"
        try:
            for each in await gateway.members():
                if each.name == node:
                    member = f"{each.ID:x}"
                    await gateway.remove_member(each.ID)
                    log.warning("etcd member %s removed: its node was removed", node)
        except EtcdError as error:
            raise BrokerError(
                Reason.UNAVAILABLE,
                f"node {node} was removed, but its etcd member may remain: {error}; see `braid doctor`, then run: "
                f"etcdctl member remove {member}",
            ) from error

    def leave_member(self) -> None:
        """Stop restarting the member, because the node stops."""
        if self._keeping_member is not None:
            self._keeping_member.cancel()

    async def stop(self) -> None:
        """Release the node's number, then stop the member last, when nothing is written any more."""
        if self._presence is not None:
            with contextlib.suppress(EtcdError):  # then its lease expires
                await self._presence.leave()
        if self._gateway is not None:
            self._gateway.close()
        if self._keeping_member is not None:
            self._keeping_member.cancel()
            await asyncio.wait([self._keeping_member])
        if self._member is not None:
            await self._member.stop()


async def _refill_reserve(ids: ProducerIds) -> None:
    with contextlib.suppress(BrokerError):  # etcd is unavailable, which the reserve is for
        await ids.fill_reserve()


async def retry_until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat `call` until a member answers: members may be starting or electing a leader."""
    loop = asyncio.get_running_loop()
    until = loop.time() + START_SECONDS_MAX
    say_at = loop.time()
    while True:
        try:
            return await call()
        except (EtcdAwayError, BrokerError) as error:
            is_final = isinstance(error, BrokerError) and error.reason is not Reason.UNAVAILABLE
            if is_final or loop.time() >= until:
                raise
            if loop.time() >= say_at:
                log.warning("waiting for etcd, up to %.0f s more: %s", until - loop.time(), error)
                say_at = loop.time() + SAY_SECONDS
        await asyncio.sleep(AGAIN_SECONDS)
